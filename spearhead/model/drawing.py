"""Draws the target's own tokens for rows of logits, up to the first draft that it disagrees with."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import Tensor

from spearhead.model.sampling import History, Logprobs, Sample, SamplingParameters, logprobs, sample


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawRequest:
    """The rows of one sequence: one for each draft, and one more.

    Attributes:
        logits: float32 ``(draft_count + 1, V)``.
        tokens: The sequence, drafts included.
        draft_count: Drafts among ``tokens``, the last ones.
        law: How to sample.
        logprob_count: Alternatives to report; ``None`` = no log-probabilities.
    """

    logits: Tensor
    tokens: Sequence[int]
    draft_count: int
    law: SamplingParameters
    logprob_count: int | None

    @property
    def known(self) -> int:
        """Tokens that are no drafts."""
        return len(self.tokens) - self.draft_count


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawn:
    """One token.

    Attributes:
        sample: The token.
        logprobs: ``None`` = not asked for, or not finite.
    """

    sample: Sample
    logprobs: Logprobs | None


Draw = Callable[[Sequence[DrawRequest]], list[list[Drawn]]]
"""For each request the draws up to the first that is no draft of it, or is not finite."""


def draw_each(requests: Sequence[DrawRequest]) -> list[list[Drawn]]:
    """Draws on the processor, row by row; a row after a disagreement is never looked at."""
    return [_draw(request) for request in requests]


def _draw(request: DrawRequest) -> list[Drawn]:
    rows = request.logits.numpy(force=True)
    history = History(request.tokens[: request.known], request.law)
    drawn: list[Drawn] = []
    for index, row in enumerate(rows):
        chosen = sample(row, request.law, history)
        details = None
        if request.logprob_count is not None and chosen.finite:
            details = logprobs(row, chosen.token_id, request.logprob_count)
        drawn.append(Drawn(sample=chosen, logprobs=details))
        if ends(request, index, chosen):
            break
        history.append(chosen.token_id)
    return drawn


def ends(request: DrawRequest, index: int, chosen: Sample) -> bool:
    """Whether nothing after row ``index`` counts: it was the last, broken, or no draft."""
    last = index == request.draft_count
    return last or not chosen.finite or request.tokens[request.known + index] != chosen.token_id
