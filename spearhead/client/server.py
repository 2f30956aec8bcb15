"""What a server says about itself: plain data."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A model that a worker serves; the fields are those of ``spearhead.v1.ModelInfo``."""

    model: str
    revision: str
    tokenizer_hash: str
    vocab_size: int
    context_length: int
    dtype: str
    weight_dtype: str
    device: str
    weight_bytes: int
    kv_cache_bytes: int
    kv_page_size: int
    kv_page_count: int
    batch_invariant: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerInfo:
    """What is served and its limits.

    Attributes:
        version: Of the server software.
        protocol_version: Of the contract.
        target: The target model.
        variant: The weights that are served, "fp16", "w4" or "w4+ec".
        draft: The draft model; ``None`` without a draft service.
        draft_status: "ready", "absent", "lost: …" or "refused: …".
        context_length: Longest prompt and output together, in tokens.
        max_running_requests: Most requests that run at once.
        max_waiting_requests: Most requests that wait.
        max_draft_tokens: Largest number of drafts a step.
    """

    version: str
    protocol_version: int
    target: Model
    variant: str
    draft: Model | None
    draft_status: str
    context_length: int
    max_running_requests: int
    max_waiting_requests: int
    max_draft_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """How busy the server is; ``kv_cache_usage`` is a share, 0..1."""

    running_requests: int
    waiting_requests: int
    waiting_tokens: int
    kv_cache_usage: float
    step_count: int
    draining: bool
