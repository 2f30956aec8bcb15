"""The sampling law row by row, with sorting, in the plainest operations."""

import numpy as np
import torch
from torch import Tensor

from kernels.sample.batch import SEEN, SUPPRESSED, Edits, RowLogprobs, Samples, SamplingBatch

_ROUNDS = 10
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_LOW = 0xFFFFFFFF


def gumbel(seed: int, position: int, count: int) -> Tensor:
    """Noise of the token ids 0 … count - 1, float32: Philox4x32-10, 23 bits, ``-log(-log(u))``.

    Args:
        seed: Key, 64 bits of any sign.
        position: Of the token that is drawn.
        count: Token ids.
    """
    blocks = np.arange((count + 3) // 4, dtype=np.uint64)
    key = [seed & _LOW, seed >> 32 & _LOW]
    x = [blocks, *[np.full_like(blocks, word) for word in (0, position & _LOW, position >> 32 & _LOW)]]
    low, shift = np.uint64(_LOW), np.uint64(32)
    for _ in range(_ROUNDS):
        first, second = x[0] * np.uint64(_MULTIPLIERS[0]), x[2] * np.uint64(_MULTIPLIERS[1])
        x = [
            (second >> shift) ^ x[1] ^ np.uint64(key[0]),
            second & low,
            (first >> shift) ^ x[3] ^ np.uint64(key[1]),
            first & low,
        ]
        key = [(word + step) & _LOW for word, step in zip(key, _WEYL, strict=True)]
    bits = np.stack(x, axis=1).reshape(-1)[:count]
    uniform = ((bits >> np.uint64(9)).astype(np.float32) + np.float32(0.5)) * np.float32(2.0**-23)
    return torch.from_numpy(-np.log(-np.log(uniform)))


def sample(logits: Tensor, batch: SamplingBatch) -> Samples:
    """One token a row: edits, temperature, min-p, top-k, top-p, then the largest of logit plus noise.

    Every tie goes to the lowest token id. Log-probabilities are those of the logits as given.

    Args:
        logits: float32 ``(B, V)``; not changed.
        batch: Laws of the rows.
    """
    rows = [_sample_row(logits[row], batch, row) for row in range(len(logits))]
    device = logits.device
    tokens = torch.tensor([row[0] for row in rows], dtype=torch.int64, device=device)
    return Samples(
        token_ids=tokens,
        margin=torch.tensor([row[1] for row in rows], dtype=torch.float32, device=device),
        probability=torch.tensor([row[2] for row in rows], dtype=torch.float32, device=device),
        finite=torch.tensor([row[3] for row in rows], dtype=torch.bool, device=device),
        logprobs=None if batch.alternatives is None else _logprobs(logits, tokens, batch.alternatives),
    )


def _sample_row(raw: Tensor, batch: SamplingBatch, row: int) -> tuple[int, float, float, bool]:
    best = int(raw.argmax())
    if not bool(raw[best].isfinite()):
        return best, 0.0, 0.0, False
    others = raw.clone()
    others[best] = float("-inf")
    margin = float(raw[best] - others.max())
    shaped = raw if batch.edits is None else _edited(raw, batch.edits, row)
    temperature = float(batch.temperature[row])
    scaled = (shaped - shaped.max()) / (temperature or 1.0)
    if temperature == 0:
        token, kept = int(_lowest_best(shaped)), scaled
    else:
        kept = torch.full_like(scaled, float("-inf"))
        prefix = _prefix(scaled, batch, row)
        kept[prefix] = scaled[prefix]
        noise = gumbel(int(batch.seeds[row]), int(batch.positions[row]), len(raw)).to(raw.device)
        token = int(_lowest_best(kept + noise))
    weights = kept.double().exp()
    return token, margin, float(weights[token] / weights.sum()), True


def _lowest_best(values: Tensor) -> Tensor:
    return (values == values.max()).nonzero()[0, 0]


def _edited(raw: Tensor, edits: Edits, row: int) -> Tensor:
    shaped = raw.clone()
    for edit in range(int(edits.row_starts[row]), int(edits.row_starts[row + 1])):
        value = raw[edits.token_ids[edit]] + edits.bias[edit]
        flags, count = int(edits.flags[edit]), edits.counts[edit]
        if flags & SUPPRESSED:
            value = torch.full_like(value, float("-inf"))
        if flags & SEEN:
            value = value / edits.repetition[row] if value > 0 else value * edits.repetition[row]
            value = value - edits.presence[row] * (count > 0)
            value = value - edits.frequency[row] * count
        shaped[edits.token_ids[edit]] = value
    return shaped


def _prefix(scaled: Tensor, batch: SamplingBatch, row: int) -> Tensor:
    """Token ids that survive the filters: the first of the order logit falling, id rising."""
    order = torch.sort(scaled, descending=True, stable=True).indices
    order = order[scaled[order] >= batch.log_min_p[row]]
    top_k, top_p = int(batch.top_k[row]), float(batch.top_p[row])
    if top_k > 0:
        order = order[:top_k]
    if top_p < 1:
        mass = scaled[order].double().exp().cumsum(0)
        order = order[: int((mass < top_p * mass[-1]).sum()) + 1]
    return order


def _logprobs(logits: Tensor, token_ids: Tensor, count: int) -> RowLogprobs:
    logprobs = torch.log_softmax(logits.double(), dim=1)
    chosen = logits.gather(1, token_ids[:, None])
    order = torch.sort(logits, dim=1, descending=True, stable=True).indices[:, :count]
    return RowLogprobs(
        logprob=logprobs.gather(1, token_ids[:, None])[:, 0].float(),
        rank=(logits > chosen).sum(1).to(torch.int32) + 1,
        top_token_ids=order.to(torch.int32),
        top_logprobs=logprobs.gather(1, order).float(),
    )
