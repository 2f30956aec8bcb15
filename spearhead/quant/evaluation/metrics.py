"""Per-token metrics from final hidden states, in float32, a chunk of tokens at a time.

The logits of a chunk live only while the chunk is measured, and log-probabilities are never stored in 16
bits: that alone would put a floor under the KL divergence.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

CHUNK_BYTES = 64 << 20
"""Size of one (tokens, V) float32 array; about eight of them live at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Projection:
    """Where logits come from: ``hidden @ head.T``.

    Attributes:
        hidden: Any float ``(T, D)``, after the final norm.
        head: float32 ``(V, D)``.
    """

    hidden: Tensor
    head: Tensor

    def log_probabilities(self, start: int, stop: int) -> tuple[Tensor, Tensor]:
        """Logits and log-probabilities of some tokens, each float32 ``(stop - start, V)``."""
        logits = self.hidden[start:stop].float() @ self.head.T
        return logits, logits.log_softmax(-1)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReferenceRows:
    """The full-precision model p on each token.

    Attributes:
        nll: float32 ``(T,)``, negative log-likelihood of the next token in nats.
        margin: float32 ``(T,)``, gap between the two best logits.
    """

    nll: Tensor
    margin: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class VariantRows:
    """Another model q on each token, against p.

    Attributes:
        nll: float32 ``(T,)``, negative log-likelihood of the next token in nats.
        kl: float32 ``(T,)``, KL(p‖q) in nats.
        reverse_kl: float32 ``(T,)``, KL(q‖p) in nats.
        total_variation: float32 ``(T,)``, half the absolute difference of the distributions.
        agrees: float32 ``(T,)``, 1 where both have the same best token, of ties the lowest id.
    """

    nll: Tensor
    kl: Tensor
    reverse_kl: Tensor
    total_variation: Tensor
    agrees: Tensor


def token_metrics(
    reference: Projection,
    variants: Sequence[Projection],
    targets: Tensor,
    *,
    chunk_bytes: int = CHUNK_BYTES,
) -> tuple[ReferenceRows, list[VariantRows]]:
    """Measures variants against a reference on the same tokens.

    Args:
        reference: p; it has the variants' number of tokens and vocabulary.
        variants: The q's.
        targets: int64 ``(T,)``, the token that follows each position.
        chunk_bytes: Bounds the memory; results do not depend on it beyond rounding.

    Returns:
        Rows of the reference and of each variant, on the reference's device.
    """
    size = max(1, chunk_bytes // (4 * reference.head.shape[0]))
    references: list[ReferenceRows] = []
    rows: list[list[VariantRows]] = [[] for _ in variants]
    for start in range(0, len(targets), size):
        stop = min(start + size, len(targets))
        wanted = targets[start:stop, None]
        logits, p = reference.log_probabilities(start, stop)
        best = best_tokens(logits)
        top = logits.topk(2).values
        references.append(ReferenceRows(nll=-p.gather(1, wanted)[:, 0], margin=top[:, 0] - top[:, 1]))
        for variant, collected in zip(variants, rows, strict=True):
            collected.append(_compare(p, best, *variant.log_probabilities(start, stop), wanted))
    joined = ReferenceRows(
        nll=torch.cat([part.nll for part in references]),
        margin=torch.cat([part.margin for part in references]),
    )
    return joined, [_join(parts) for parts in rows]


def best_tokens(logits: Tensor) -> Tensor:
    """int64 ``(T,)``: the largest logit of each row of ``(T, V)``, of ties the lowest id on every device."""
    places = torch.arange(logits.shape[1], device=logits.device)
    ties = logits == logits.amax(-1, keepdim=True)
    return torch.where(ties, places, logits.shape[1]).amin(-1)


def _compare(p: Tensor, best: Tensor, logits: Tensor, q: Tensor, wanted: Tensor) -> VariantRows:
    p_mass, q_mass, gap = p.exp(), q.exp(), p - q
    return VariantRows(
        nll=-q.gather(1, wanted)[:, 0],
        kl=(p_mass * gap).sum(-1),
        reverse_kl=-(q_mass * gap).sum(-1),
        total_variation=(p_mass - q_mass).abs().sum(-1) / 2,
        agrees=(best_tokens(logits) == best).float(),
    )


def _join(parts: Sequence[VariantRows]) -> VariantRows:
    return VariantRows(
        nll=torch.cat([part.nll for part in parts]),
        kl=torch.cat([part.kl for part in parts]),
        reverse_kl=torch.cat([part.reverse_kl for part in parts]),
        total_variation=torch.cat([part.total_variation for part in parts]),
        agrees=torch.cat([part.agrees for part in parts]),
    )
