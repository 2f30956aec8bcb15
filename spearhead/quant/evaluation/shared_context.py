"""Two verifiers and a drafter on the same contexts, where theory says how far acceptance can differ.

On one context, two verifiers p and q that share their noise pick different tokens with probability at most
2 TV / (1 + TV), which is what Gumbel noise achieves as a coupling (Daliri, Musco and Suresh, 2024). So no
drafter's acceptance can differ by more; along outputs of their own it can, since contexts differ too.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from spearhead.quant.evaluation.drafters import Propose
from spearhead.quant.evaluation.metrics import Projection, token_metrics
from spearhead.quant.evaluation.model_variant import EvaluatedModel
from spearhead.quant.evaluation.sampling_law import SamplingLaw, picks_along

_STANDARD_ERRORS = 3.0
"""A correct measurement breaks a bound of so many about once in 700 comparisons."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedContext:
    """Acceptance of one drafter by full precision and by a variant, on full precision's own output.

    Attributes:
        reference_acceptance: Share of positions where the first draft is what full precision picks.
        acceptance: Share of positions where it is what the variant picks.
        total_variation: Mean over the positions, of the two laws at the sampling temperature.
        bound: Mean of 2 TV / (1 + TV): the most by which the acceptances can differ.
        sampling_error: Three standard errors of their difference over prompts.
        within_bound: Whether the difference is at most bound plus sampling error.
    """

    reference_acceptance: float
    acceptance: float
    total_variation: float
    bound: float
    sampling_error: float
    within_bound: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedPicks:
    """What full precision and a variant pick along full precision's output, and how far apart they are.

    Attributes:
        sequences: int64 ``(P, T)``.
        reference: int64 ``(P, T - start)``.
        variant: Likewise.
        total_variation: float32, likewise.
    """

    sequences: Tensor
    reference: Tensor
    variant: Tensor
    total_variation: Tensor

    @classmethod
    def of(
        cls,
        reference: EvaluatedModel,
        variant: EvaluatedModel,
        sequences: Tensor,
        start: int,
        law: SamplingLaw,
        *,
        tokens_at_once: int,
    ) -> "SharedPicks":
        """Runs both along the sequences.

        Args:
            reference: Full precision.
            variant: The other verifier.
            sequences: int64 ``(P, T)``, prompts included.
            start: Length of the prompts.
            law: What tokens are picked by.
            tokens_at_once: Tokens that pass through a layer together.
        """
        picks = [
            picks_along(model, sequences, start, law, tokens_at_once=tokens_at_once)
            for model in (reference, variant)
        ]
        if law.temperature == 0:
            apart = (picks[0] != picks[1]).float()
        else:
            apart = _total_variation(reference, variant, sequences, start, law, tokens_at_once)
        return cls(sequences=sequences, reference=picks[0], variant=picks[1], total_variation=apart)

    def check(self, proposals: Sequence[Propose], start: int) -> SharedContext:
        """One drafter's acceptance by both; ``proposals`` are along the sequences, one each."""
        count = self.reference.shape[1]
        drafts = torch.tensor(
            [[next(iter(propose(start + t, 1)), -1) for t in range(count)] for propose in proposals]
        )
        hits = [(drafts == picks).double() for picks in (self.reference, self.variant)]
        change = (hits[1] - hits[0]).mean(1).numpy()
        apart = self.total_variation.double()
        bound = float((2 * apart / (1 + apart)).mean())
        error = _STANDARD_ERRORS * _standard_error(change)
        return SharedContext(
            reference_acceptance=float(hits[0].mean()),
            acceptance=float(hits[1].mean()),
            total_variation=float(apart.mean()),
            bound=bound,
            sampling_error=error,
            within_bound=bool(abs(change.mean()) <= bound + error),
        )


def _total_variation(
    reference: EvaluatedModel,
    variant: EvaluatedModel,
    sequences: Tensor,
    start: int,
    law: SamplingLaw,
    tokens_at_once: int,
) -> Tensor:
    """Of the laws that tokens are picked by, ``(P, T - start)``."""
    projections = [
        Projection(
            hidden=model.final_hidden(sequences, tokens_at_once=tokens_at_once)[:, start - 1 : -1].flatten(
                0, 1
            ),
            head=model.head[: law.vocab_size].float() / law.temperature,
        )
        for model in (reference, variant)
    ]
    targets = sequences[:, start:].flatten().to(projections[0].hidden.device)
    with torch.no_grad():
        _, (found,) = token_metrics(projections[0], projections[1:], targets)
    return found.total_variation.cpu().view(len(sequences), -1)


def _standard_error(per_prompt: npt.NDArray[np.float64]) -> float:
    count = len(per_prompt)
    return float(per_prompt.std(ddof=1) / count**0.5) if count > 1 else 1.0
