"""What a client asked for, checked, with every default resolved."""

from dataclasses import dataclass, field
from typing import Literal

Precision = Literal["default", "full"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingSpec:
    """How tokens are chosen; the meaning of each field is that of ``SamplingParams`` in the contract."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int = 0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationSpec:
    """One request.

    Attributes:
        request_id: Unique among the requests that run or wait.
        prompt_token_ids: At least one.
        sampling: How tokens are chosen.
        max_tokens: Most tokens to generate; fits the context together with the prompt.
        min_tokens: No stop token before this many.
        stop_strings: Generation ends before the first of them.
        stop_token_ids: Generation ends with one of them; the model's own end tokens are among them
            unless the client ignores those.
        max_draft_tokens: Most drafts a step; 0 = off, ``None`` = the scheduler chooses.
        precision: Which weights verify.
        itl_slo_s: Wanted time between tokens; ``None`` = no wish.
        ttft_slo_s: Wanted time to the first token; ``None`` = no wish.
        priority: Higher first, -100..100.
        chat: The prompt is a conversation.
        logprob_count: Alternatives to return with each token; ``None`` = no log-probabilities.
    """

    request_id: str
    prompt_token_ids: tuple[int, ...]
    sampling: SamplingSpec = field(default_factory=SamplingSpec)
    max_tokens: int
    min_tokens: int = 0
    stop_strings: tuple[str, ...] = ()
    stop_token_ids: frozenset[int] = frozenset()
    max_draft_tokens: int | None = None
    precision: Precision = "default"
    itl_slo_s: float | None = None
    ttft_slo_s: float | None = None
    priority: int = 0
    logprob_count: int | None = None
    chat: bool = False

    @property
    def max_length(self) -> int:
        """Longest that prompt and output can become together, tokens."""
        return len(self.prompt_token_ids) + self.max_tokens
