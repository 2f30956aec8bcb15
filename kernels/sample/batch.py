"""What sampling takes and gives: the law of each row, sparse edits of its logits, and the tokens."""

from dataclasses import dataclass

from torch import Tensor

SEEN, SUPPRESSED = 1, 2
"""Flags of an edit: the token is in prompt or output; the token must not be sampled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Edits:
    """Tokens whose logits are changed before anything else, E of them over all rows; each once a row.

    In this order: the bias is added; suppression makes the logit minus infinity; for seen tokens a positive
    logit is divided and a negative one multiplied by the repetition penalty, then the presence penalty (if
    the count is positive) and count times the frequency penalty are subtracted.

    Attributes:
        row_starts: int32 ``(B + 1,)``, first edit of each row, then their end.
        token_ids: int32 ``(E,)``.
        bias: float32 ``(E,)``.
        counts: float32 ``(E,)``, occurrences in the output.
        flags: int32 ``(E,)``, sums of ``SEEN`` and ``SUPPRESSED``.
        repetition: float32 ``(B,)``.
        presence: float32 ``(B,)``.
        frequency: float32 ``(B,)``.
    """

    row_starts: Tensor
    token_ids: Tensor
    bias: Tensor
    counts: Tensor
    flags: Tensor
    repetition: Tensor
    presence: Tensor
    frequency: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingBatch:
    """The laws of B rows.

    Attributes:
        temperature: float32 ``(B,)``; 0 = greedy.
        top_k: int32 ``(B,)``; 0 = off.
        top_p: float64 ``(B,)`` in (0, 1]; 1 = off.
        log_min_p: float32 ``(B,)``, logarithm of the floor; the lowest finite number = off.
        seeds: int64 ``(B,)``, the bits of unsigned keys.
        positions: int64 ``(B,)``, positions of the tokens that are drawn.
        filtered: Whether any row has top_k, top_p or min_p; ``False`` saves the passes that look for them.
        edits: ``None`` = no row is edited.
        alternatives: Best tokens a row to report with log-probabilities; ``None`` = no log-probabilities.
    """

    temperature: Tensor
    top_k: Tensor
    top_p: Tensor
    log_min_p: Tensor
    seeds: Tensor
    positions: Tensor
    filtered: bool
    edits: Edits | None = None
    alternatives: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RowLogprobs:
    """Log-probabilities under the unmodified logits.

    Attributes:
        logprob: float32 ``(B,)``, of the sampled token.
        rank: int32 ``(B,)``, of the sampled token; 1 = most likely.
        top_token_ids: int32 ``(B, n)``, best first, ties by lowest id.
        top_logprobs: float32 ``(B, n)``.
    """

    logprob: Tensor
    rank: Tensor
    top_token_ids: Tensor
    top_logprobs: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Samples:
    """One token a row.

    Attributes:
        token_ids: int64 ``(B,)``.
        margin: float32 ``(B,)``, gap between the two best raw logits.
        probability: float32 ``(B,)``, of the token after all transforms.
        finite: bool ``(B,)``; false = the row held NaN or positive infinity, and the token means nothing.
        logprobs: ``None`` = not asked for.
    """

    token_ids: Tensor
    margin: Tensor
    probability: Tensor
    finite: Tensor
    logprobs: RowLogprobs | None
