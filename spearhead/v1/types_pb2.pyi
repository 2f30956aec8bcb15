from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Precision(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PRECISION_UNSPECIFIED: _ClassVar[Precision]
    PRECISION_DEFAULT: _ClassVar[Precision]
    PRECISION_FULL: _ClassVar[Precision]

class ItemErrorReason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ITEM_ERROR_REASON_UNSPECIFIED: _ClassVar[ItemErrorReason]
    ITEM_ERROR_REASON_CACHE_MISS: _ClassVar[ItemErrorReason]
    ITEM_ERROR_REASON_STALE_EPOCH: _ClassVar[ItemErrorReason]
    ITEM_ERROR_REASON_OUT_OF_PAGES: _ClassVar[ItemErrorReason]
    ITEM_ERROR_REASON_INVALID: _ClassVar[ItemErrorReason]
    ITEM_ERROR_REASON_NON_FINITE: _ClassVar[ItemErrorReason]
    ITEM_ERROR_REASON_PRECISION_UNAVAILABLE: _ClassVar[ItemErrorReason]
PRECISION_UNSPECIFIED: Precision
PRECISION_DEFAULT: Precision
PRECISION_FULL: Precision
ITEM_ERROR_REASON_UNSPECIFIED: ItemErrorReason
ITEM_ERROR_REASON_CACHE_MISS: ItemErrorReason
ITEM_ERROR_REASON_STALE_EPOCH: ItemErrorReason
ITEM_ERROR_REASON_OUT_OF_PAGES: ItemErrorReason
ITEM_ERROR_REASON_INVALID: ItemErrorReason
ITEM_ERROR_REASON_NON_FINITE: ItemErrorReason
ITEM_ERROR_REASON_PRECISION_UNAVAILABLE: ItemErrorReason

class WorkerSampling(_message.Message):
    __slots__ = ("temperature", "top_p", "top_k", "min_p", "seed", "presence_penalty", "frequency_penalty", "repetition_penalty", "logit_bias_token_ids", "logit_bias_values", "suppressed_token_ids", "suppress_below_length", "prompt_length")
    TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    TOP_P_FIELD_NUMBER: _ClassVar[int]
    TOP_K_FIELD_NUMBER: _ClassVar[int]
    MIN_P_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    PRESENCE_PENALTY_FIELD_NUMBER: _ClassVar[int]
    FREQUENCY_PENALTY_FIELD_NUMBER: _ClassVar[int]
    REPETITION_PENALTY_FIELD_NUMBER: _ClassVar[int]
    LOGIT_BIAS_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    LOGIT_BIAS_VALUES_FIELD_NUMBER: _ClassVar[int]
    SUPPRESSED_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    SUPPRESS_BELOW_LENGTH_FIELD_NUMBER: _ClassVar[int]
    PROMPT_LENGTH_FIELD_NUMBER: _ClassVar[int]
    temperature: float
    top_p: float
    top_k: int
    min_p: float
    seed: int
    presence_penalty: float
    frequency_penalty: float
    repetition_penalty: float
    logit_bias_token_ids: bytes
    logit_bias_values: bytes
    suppressed_token_ids: bytes
    suppress_below_length: int
    prompt_length: int
    def __init__(self, temperature: _Optional[float] = ..., top_p: _Optional[float] = ..., top_k: _Optional[int] = ..., min_p: _Optional[float] = ..., seed: _Optional[int] = ..., presence_penalty: _Optional[float] = ..., frequency_penalty: _Optional[float] = ..., repetition_penalty: _Optional[float] = ..., logit_bias_token_ids: _Optional[bytes] = ..., logit_bias_values: _Optional[bytes] = ..., suppressed_token_ids: _Optional[bytes] = ..., suppress_below_length: _Optional[int] = ..., prompt_length: _Optional[int] = ...) -> None: ...

class TokenLogprobs(_message.Message):
    __slots__ = ("token_id", "logprob", "rank", "top_token_ids", "top_logprobs")
    TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    LOGPROB_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    TOP_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    TOP_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    token_id: int
    logprob: float
    rank: int
    top_token_ids: bytes
    top_logprobs: bytes
    def __init__(self, token_id: _Optional[int] = ..., logprob: _Optional[float] = ..., rank: _Optional[int] = ..., top_token_ids: _Optional[bytes] = ..., top_logprobs: _Optional[bytes] = ...) -> None: ...

class WorkerTiming(_message.Message):
    __slots__ = ("received_unix_ns", "queue_ns", "compute_ns", "device_ns", "sample_ns", "total_ns")
    RECEIVED_UNIX_NS_FIELD_NUMBER: _ClassVar[int]
    QUEUE_NS_FIELD_NUMBER: _ClassVar[int]
    COMPUTE_NS_FIELD_NUMBER: _ClassVar[int]
    DEVICE_NS_FIELD_NUMBER: _ClassVar[int]
    SAMPLE_NS_FIELD_NUMBER: _ClassVar[int]
    TOTAL_NS_FIELD_NUMBER: _ClassVar[int]
    received_unix_ns: int
    queue_ns: int
    compute_ns: int
    device_ns: int
    sample_ns: int
    total_ns: int
    def __init__(self, received_unix_ns: _Optional[int] = ..., queue_ns: _Optional[int] = ..., compute_ns: _Optional[int] = ..., device_ns: _Optional[int] = ..., sample_ns: _Optional[int] = ..., total_ns: _Optional[int] = ...) -> None: ...

class ItemError(_message.Message):
    __slots__ = ("reason", "message")
    REASON_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    reason: ItemErrorReason
    message: str
    def __init__(self, reason: _Optional[_Union[ItemErrorReason, str]] = ..., message: _Optional[str] = ...) -> None: ...

class SequenceRelease(_message.Message):
    __slots__ = ("sequence_id",)
    SEQUENCE_ID_FIELD_NUMBER: _ClassVar[int]
    sequence_id: int
    def __init__(self, sequence_id: _Optional[int] = ...) -> None: ...

class ModelInfo(_message.Message):
    __slots__ = ("protocol_version", "model", "revision", "tokenizer_hash", "vocab_size", "context_length", "kv_page_size", "kv_page_count", "dtype", "weight_dtype", "device", "eos_token_ids", "batch_invariant", "weight_bytes", "kv_cache_bytes", "max_compute_tokens")
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    TOKENIZER_HASH_FIELD_NUMBER: _ClassVar[int]
    VOCAB_SIZE_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_LENGTH_FIELD_NUMBER: _ClassVar[int]
    KV_PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    KV_PAGE_COUNT_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_DTYPE_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    EOS_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    BATCH_INVARIANT_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_BYTES_FIELD_NUMBER: _ClassVar[int]
    KV_CACHE_BYTES_FIELD_NUMBER: _ClassVar[int]
    MAX_COMPUTE_TOKENS_FIELD_NUMBER: _ClassVar[int]
    protocol_version: int
    model: str
    revision: str
    tokenizer_hash: str
    vocab_size: int
    context_length: int
    kv_page_size: int
    kv_page_count: int
    dtype: str
    weight_dtype: str
    device: str
    eos_token_ids: _containers.RepeatedScalarFieldContainer[int]
    batch_invariant: bool
    weight_bytes: int
    kv_cache_bytes: int
    max_compute_tokens: int
    def __init__(self, protocol_version: _Optional[int] = ..., model: _Optional[str] = ..., revision: _Optional[str] = ..., tokenizer_hash: _Optional[str] = ..., vocab_size: _Optional[int] = ..., context_length: _Optional[int] = ..., kv_page_size: _Optional[int] = ..., kv_page_count: _Optional[int] = ..., dtype: _Optional[str] = ..., weight_dtype: _Optional[str] = ..., device: _Optional[str] = ..., eos_token_ids: _Optional[_Iterable[int]] = ..., batch_invariant: bool = ..., weight_bytes: _Optional[int] = ..., kv_cache_bytes: _Optional[int] = ..., max_compute_tokens: _Optional[int] = ...) -> None: ...

class KernelLatency(_message.Message):
    __slots__ = ("op", "n", "k", "rank", "rows", "context", "calls_per_forward", "median_us")
    OP_FIELD_NUMBER: _ClassVar[int]
    N_FIELD_NUMBER: _ClassVar[int]
    K_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_FIELD_NUMBER: _ClassVar[int]
    CALLS_PER_FORWARD_FIELD_NUMBER: _ClassVar[int]
    MEDIAN_US_FIELD_NUMBER: _ClassVar[int]
    op: str
    n: int
    k: int
    rank: int
    rows: int
    context: int
    calls_per_forward: int
    median_us: float
    def __init__(self, op: _Optional[str] = ..., n: _Optional[int] = ..., k: _Optional[int] = ..., rank: _Optional[int] = ..., rows: _Optional[int] = ..., context: _Optional[int] = ..., calls_per_forward: _Optional[int] = ..., median_us: _Optional[float] = ...) -> None: ...

class KernelProfile(_message.Message):
    __slots__ = ("device", "versions", "revision", "variant", "latencies")
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    VERSIONS_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    VARIANT_FIELD_NUMBER: _ClassVar[int]
    LATENCIES_FIELD_NUMBER: _ClassVar[int]
    device: str
    versions: _containers.RepeatedScalarFieldContainer[str]
    revision: str
    variant: str
    latencies: _containers.RepeatedCompositeFieldContainer[KernelLatency]
    def __init__(self, device: _Optional[str] = ..., versions: _Optional[_Iterable[str]] = ..., revision: _Optional[str] = ..., variant: _Optional[str] = ..., latencies: _Optional[_Iterable[_Union[KernelLatency, _Mapping]]] = ...) -> None: ...
