from spearhead.v1 import types_pb2 as _types_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class DraftServiceGetModelInfoRequest(_message.Message):
    __slots__ = ("protocol_version",)
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    protocol_version: int
    def __init__(self, protocol_version: _Optional[int] = ...) -> None: ...

class DraftServiceGetModelInfoResponse(_message.Message):
    __slots__ = ("info", "drafter", "max_draft_tokens")
    INFO_FIELD_NUMBER: _ClassVar[int]
    DRAFTER_FIELD_NUMBER: _ClassVar[int]
    MAX_DRAFT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    info: _types_pb2.ModelInfo
    drafter: str
    max_draft_tokens: int
    def __init__(self, info: _Optional[_Union[_types_pb2.ModelInfo, _Mapping]] = ..., drafter: _Optional[str] = ..., max_draft_tokens: _Optional[int] = ...) -> None: ...

class ProposeRequest(_message.Message):
    __slots__ = ("step_id", "traceparent", "items", "releases")
    STEP_ID_FIELD_NUMBER: _ClassVar[int]
    TRACEPARENT_FIELD_NUMBER: _ClassVar[int]
    ITEMS_FIELD_NUMBER: _ClassVar[int]
    RELEASES_FIELD_NUMBER: _ClassVar[int]
    step_id: int
    traceparent: str
    items: _containers.RepeatedCompositeFieldContainer[ProposeItem]
    releases: _containers.RepeatedCompositeFieldContainer[_types_pb2.SequenceRelease]
    def __init__(self, step_id: _Optional[int] = ..., traceparent: _Optional[str] = ..., items: _Optional[_Iterable[_Union[ProposeItem, _Mapping]]] = ..., releases: _Optional[_Iterable[_Union[_types_pb2.SequenceRelease, _Mapping]]] = ...) -> None: ...

class ProposeItem(_message.Message):
    __slots__ = ("sequence_id", "epoch", "committed_length", "token_ids", "max_draft_tokens", "max_compute_tokens", "sampling")
    SEQUENCE_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_LENGTH_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    MAX_DRAFT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MAX_COMPUTE_TOKENS_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    sequence_id: int
    epoch: int
    committed_length: int
    token_ids: bytes
    max_draft_tokens: int
    max_compute_tokens: int
    sampling: _types_pb2.WorkerSampling
    def __init__(self, sequence_id: _Optional[int] = ..., epoch: _Optional[int] = ..., committed_length: _Optional[int] = ..., token_ids: _Optional[bytes] = ..., max_draft_tokens: _Optional[int] = ..., max_compute_tokens: _Optional[int] = ..., sampling: _Optional[_Union[_types_pb2.WorkerSampling, _Mapping]] = ...) -> None: ...

class ProposeResponse(_message.Message):
    __slots__ = ("step_id", "results", "timing", "free_page_count")
    STEP_ID_FIELD_NUMBER: _ClassVar[int]
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    TIMING_FIELD_NUMBER: _ClassVar[int]
    FREE_PAGE_COUNT_FIELD_NUMBER: _ClassVar[int]
    step_id: int
    results: _containers.RepeatedCompositeFieldContainer[ProposeItemResult]
    timing: _types_pb2.WorkerTiming
    free_page_count: int
    def __init__(self, step_id: _Optional[int] = ..., results: _Optional[_Iterable[_Union[ProposeItemResult, _Mapping]]] = ..., timing: _Optional[_Union[_types_pb2.WorkerTiming, _Mapping]] = ..., free_page_count: _Optional[int] = ...) -> None: ...

class ProposeItemResult(_message.Message):
    __slots__ = ("sequence_id", "epoch", "computed_length", "cached_token_count", "draft_token_ids", "confidences", "error")
    SEQUENCE_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    COMPUTED_LENGTH_FIELD_NUMBER: _ClassVar[int]
    CACHED_TOKEN_COUNT_FIELD_NUMBER: _ClassVar[int]
    DRAFT_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    CONFIDENCES_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    sequence_id: int
    epoch: int
    computed_length: int
    cached_token_count: int
    draft_token_ids: bytes
    confidences: bytes
    error: _types_pb2.ItemError
    def __init__(self, sequence_id: _Optional[int] = ..., epoch: _Optional[int] = ..., computed_length: _Optional[int] = ..., cached_token_count: _Optional[int] = ..., draft_token_ids: _Optional[bytes] = ..., confidences: _Optional[bytes] = ..., error: _Optional[_Union[_types_pb2.ItemError, _Mapping]] = ...) -> None: ...

class DraftServiceProfileKernelsRequest(_message.Message):
    __slots__ = ("rows", "contexts")
    ROWS_FIELD_NUMBER: _ClassVar[int]
    CONTEXTS_FIELD_NUMBER: _ClassVar[int]
    rows: _containers.RepeatedScalarFieldContainer[int]
    contexts: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, rows: _Optional[_Iterable[int]] = ..., contexts: _Optional[_Iterable[int]] = ...) -> None: ...

class DraftServiceProfileKernelsResponse(_message.Message):
    __slots__ = ("profile",)
    PROFILE_FIELD_NUMBER: _ClassVar[int]
    profile: _types_pb2.KernelProfile
    def __init__(self, profile: _Optional[_Union[_types_pb2.KernelProfile, _Mapping]] = ...) -> None: ...
