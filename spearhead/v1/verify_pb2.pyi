from spearhead.v1 import types_pb2 as _types_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class VerifyServiceGetModelInfoRequest(_message.Message):
    __slots__ = ("protocol_version",)
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    protocol_version: int
    def __init__(self, protocol_version: _Optional[int] = ...) -> None: ...

class VerifyServiceGetModelInfoResponse(_message.Message):
    __slots__ = ("info", "variant", "variants", "compensator_digest", "rank_count")
    INFO_FIELD_NUMBER: _ClassVar[int]
    VARIANT_FIELD_NUMBER: _ClassVar[int]
    VARIANTS_FIELD_NUMBER: _ClassVar[int]
    COMPENSATOR_DIGEST_FIELD_NUMBER: _ClassVar[int]
    RANK_COUNT_FIELD_NUMBER: _ClassVar[int]
    info: _types_pb2.ModelInfo
    variant: str
    variants: _containers.RepeatedScalarFieldContainer[str]
    compensator_digest: str
    rank_count: int
    def __init__(self, info: _Optional[_Union[_types_pb2.ModelInfo, _Mapping]] = ..., variant: _Optional[str] = ..., variants: _Optional[_Iterable[str]] = ..., compensator_digest: _Optional[str] = ..., rank_count: _Optional[int] = ...) -> None: ...

class StepRequest(_message.Message):
    __slots__ = ("step_id", "traceparent", "items", "releases")
    STEP_ID_FIELD_NUMBER: _ClassVar[int]
    TRACEPARENT_FIELD_NUMBER: _ClassVar[int]
    ITEMS_FIELD_NUMBER: _ClassVar[int]
    RELEASES_FIELD_NUMBER: _ClassVar[int]
    step_id: int
    traceparent: str
    items: _containers.RepeatedCompositeFieldContainer[StepItem]
    releases: _containers.RepeatedCompositeFieldContainer[_types_pb2.SequenceRelease]
    def __init__(self, step_id: _Optional[int] = ..., traceparent: _Optional[str] = ..., items: _Optional[_Iterable[_Union[StepItem, _Mapping]]] = ..., releases: _Optional[_Iterable[_Union[_types_pb2.SequenceRelease, _Mapping]]] = ...) -> None: ...

class StepItem(_message.Message):
    __slots__ = ("sequence_id", "epoch", "committed_length", "token_ids", "draft_token_count", "max_compute_tokens", "sample", "sampling", "precision", "logprob_count")
    SEQUENCE_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_LENGTH_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    DRAFT_TOKEN_COUNT_FIELD_NUMBER: _ClassVar[int]
    MAX_COMPUTE_TOKENS_FIELD_NUMBER: _ClassVar[int]
    SAMPLE_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    PRECISION_FIELD_NUMBER: _ClassVar[int]
    LOGPROB_COUNT_FIELD_NUMBER: _ClassVar[int]
    sequence_id: int
    epoch: int
    committed_length: int
    token_ids: bytes
    draft_token_count: int
    max_compute_tokens: int
    sample: bool
    sampling: _types_pb2.WorkerSampling
    precision: _types_pb2.Precision
    logprob_count: int
    def __init__(self, sequence_id: _Optional[int] = ..., epoch: _Optional[int] = ..., committed_length: _Optional[int] = ..., token_ids: _Optional[bytes] = ..., draft_token_count: _Optional[int] = ..., max_compute_tokens: _Optional[int] = ..., sample: bool = ..., sampling: _Optional[_Union[_types_pb2.WorkerSampling, _Mapping]] = ..., precision: _Optional[_Union[_types_pb2.Precision, str]] = ..., logprob_count: _Optional[int] = ...) -> None: ...

class StepResponse(_message.Message):
    __slots__ = ("step_id", "results", "timing", "free_page_count", "variant")
    STEP_ID_FIELD_NUMBER: _ClassVar[int]
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    TIMING_FIELD_NUMBER: _ClassVar[int]
    FREE_PAGE_COUNT_FIELD_NUMBER: _ClassVar[int]
    VARIANT_FIELD_NUMBER: _ClassVar[int]
    step_id: int
    results: _containers.RepeatedCompositeFieldContainer[StepItemResult]
    timing: _types_pb2.WorkerTiming
    free_page_count: int
    variant: str
    def __init__(self, step_id: _Optional[int] = ..., results: _Optional[_Iterable[_Union[StepItemResult, _Mapping]]] = ..., timing: _Optional[_Union[_types_pb2.WorkerTiming, _Mapping]] = ..., free_page_count: _Optional[int] = ..., variant: _Optional[str] = ...) -> None: ...

class StepItemResult(_message.Message):
    __slots__ = ("sequence_id", "epoch", "computed_length", "cached_token_count", "accepted_draft_count", "next_token_id", "logprobs", "error", "top2_margin")
    SEQUENCE_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    COMPUTED_LENGTH_FIELD_NUMBER: _ClassVar[int]
    CACHED_TOKEN_COUNT_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_DRAFT_COUNT_FIELD_NUMBER: _ClassVar[int]
    NEXT_TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    TOP2_MARGIN_FIELD_NUMBER: _ClassVar[int]
    sequence_id: int
    epoch: int
    computed_length: int
    cached_token_count: int
    accepted_draft_count: int
    next_token_id: int
    logprobs: _containers.RepeatedCompositeFieldContainer[_types_pb2.TokenLogprobs]
    error: _types_pb2.ItemError
    top2_margin: float
    def __init__(self, sequence_id: _Optional[int] = ..., epoch: _Optional[int] = ..., computed_length: _Optional[int] = ..., cached_token_count: _Optional[int] = ..., accepted_draft_count: _Optional[int] = ..., next_token_id: _Optional[int] = ..., logprobs: _Optional[_Iterable[_Union[_types_pb2.TokenLogprobs, _Mapping]]] = ..., error: _Optional[_Union[_types_pb2.ItemError, _Mapping]] = ..., top2_margin: _Optional[float] = ...) -> None: ...

class SetVariantRequest(_message.Message):
    __slots__ = ("variant",)
    VARIANT_FIELD_NUMBER: _ClassVar[int]
    variant: str
    def __init__(self, variant: _Optional[str] = ...) -> None: ...

class SetVariantResponse(_message.Message):
    __slots__ = ("previous_variant", "variant")
    PREVIOUS_VARIANT_FIELD_NUMBER: _ClassVar[int]
    VARIANT_FIELD_NUMBER: _ClassVar[int]
    previous_variant: str
    variant: str
    def __init__(self, previous_variant: _Optional[str] = ..., variant: _Optional[str] = ...) -> None: ...

class ListVariantsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListVariantsResponse(_message.Message):
    __slots__ = ("variants",)
    VARIANTS_FIELD_NUMBER: _ClassVar[int]
    variants: _containers.RepeatedCompositeFieldContainer[VariantInfo]
    def __init__(self, variants: _Optional[_Iterable[_Union[VariantInfo, _Mapping]]] = ...) -> None: ...

class VariantInfo(_message.Message):
    __slots__ = ("name", "current", "stored_bytes", "resident_bytes", "quantization")
    NAME_FIELD_NUMBER: _ClassVar[int]
    CURRENT_FIELD_NUMBER: _ClassVar[int]
    STORED_BYTES_FIELD_NUMBER: _ClassVar[int]
    RESIDENT_BYTES_FIELD_NUMBER: _ClassVar[int]
    QUANTIZATION_FIELD_NUMBER: _ClassVar[int]
    name: str
    current: bool
    stored_bytes: int
    resident_bytes: int
    quantization: str
    def __init__(self, name: _Optional[str] = ..., current: bool = ..., stored_bytes: _Optional[int] = ..., resident_bytes: _Optional[int] = ..., quantization: _Optional[str] = ...) -> None: ...

class VerifyServiceProfileKernelsRequest(_message.Message):
    __slots__ = ("rows", "contexts")
    ROWS_FIELD_NUMBER: _ClassVar[int]
    CONTEXTS_FIELD_NUMBER: _ClassVar[int]
    rows: _containers.RepeatedScalarFieldContainer[int]
    contexts: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, rows: _Optional[_Iterable[int]] = ..., contexts: _Optional[_Iterable[int]] = ...) -> None: ...

class VerifyServiceProfileKernelsResponse(_message.Message):
    __slots__ = ("profile",)
    PROFILE_FIELD_NUMBER: _ClassVar[int]
    profile: _types_pb2.KernelProfile
    def __init__(self, profile: _Optional[_Union[_types_pb2.KernelProfile, _Mapping]] = ...) -> None: ...
