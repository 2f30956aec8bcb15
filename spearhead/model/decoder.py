"""One decoder for Llama, Qwen2, Qwen3 and Mistral shapes, over paged KV.

There is no prefill phase and no decode phase: a step is a list of segments, each some new tokens of one
sequence, and one forward pass serves all their rows. Weights are an argument, so that variants of one
model share the decoder and the layout of the cache.
"""

import bisect
import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels import w4a16
from kernels.compensator import compensate
from kernels.linear import linear as multiply_dense
from spearhead.model.architecture import ModelConfig, inverse_frequencies
from spearhead.model.attention import AttentionGroup, Segment, build_groups, paged_attention
from spearhead.model.forward import Forward
from spearhead.model.kv_cache import KvStorage
from spearhead.model.parallel import ALONE, Ranks
from spearhead.model.parallel.row_parallel import complete
from spearhead.model.weights import LayerWeights, LinearWeights, ModelWeights

MAX_ROWS = 512


@dataclass(frozen=True, kw_only=True)  # no slots: the buckets are cached in the instance
class RowBlocks:
    """How row counts are padded, so that results do not depend on them (:mod:`spearhead.model.invariance`).

    Attributes:
        linear: Smallest row count of a projection.
        attention: Row counts of the products inside attention are multiples of this.
    """

    linear: int = 1
    attention: int = 4

    @functools.cached_property
    def buckets(self) -> tuple[int, ...]:
        """The row counts of projections, rising to ``MAX_ROWS``.

        Few, since the matrix library compiles code for each: one to four milliseconds, and half a megabyte a
        matrix, at the first use of each count.
        """
        steps = ((16, 1), (64, 8), (256, 32), (MAX_ROWS, 64))
        counts: list[int] = [self.linear]
        for last, step in steps:
            step = max(step, self.linear)
            counts += range(counts[-1] + step - counts[-1] % step, last + 1, step)
        return tuple(counts)

    def padded(self, count: int) -> int:
        """The row count that ``count`` rows are padded to; beyond ``MAX_ROWS`` it is computed in parts."""
        whole, rest = divmod(count, MAX_ROWS)
        return whole * MAX_ROWS + (self.buckets[bisect.bisect_left(self.buckets, rest)] if rest else 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Step:
    """What all layers of one forward pass share; row counts are padded."""

    row_count: int
    padding: int
    slots: Tensor
    cosines: Tensor
    sines: Tensor
    groups: list[AttentionGroup]


class Decoder:
    """Computes logits; owns the rotary tables and writes to the KV storage it was given.

    Args:
        config: Shape of the model, or of one rank's part of it.
        storage: KV pages.
        context_length: Longest sequence that will be asked for, in tokens.
        row_blocks: Row padding, the same on all ranks.
        device: Of weights and storage.
        ranks: Who computes the other parts. Then every forward pass is one of all ranks together.
    """

    def __init__(
        self,
        config: ModelConfig,
        storage: KvStorage,
        *,
        context_length: int,
        row_blocks: RowBlocks,
        device: torch.device,
        ranks: Ranks = ALONE,
    ) -> None:
        self.ranks = ranks
        self.config = config
        self.storage = storage
        self.row_blocks = row_blocks
        self.context_length = context_length
        self._device = device
        self._windows = frozenset(config.sliding_windows)
        # Attention takes powers of two, which torch computes several times faster than powers of e.
        self._scale = config.head_dim**-0.5 * math.log2(math.e)
        self._eps = torch.tensor(config.rms_norm_eps, device=device)
        frequencies, factor = inverse_frequencies(config.rope, config.head_dim)
        angles = torch.outer(torch.arange(context_length, dtype=torch.float32), frequencies)
        cosines, sines = angles.cos() * factor, angles.sin() * factor
        self._cosines = torch.cat((cosines, cosines), dim=-1).to(device)  # (context, head_dim)
        self._sines = torch.cat((-sines, sines), dim=-1).to(device)

    @torch.inference_mode()
    def forward(
        self,
        weights: ModelWeights,
        segments: Sequence[Segment],
        token_ids: Sequence[int],
        logit_rows: Sequence[int],
    ) -> Forward:
        """Computes the KV of new tokens and the logits of some of them.

        Args:
            weights: One variant.
            segments: New tokens of each sequence; their pages are allocated already.
            token_ids: All new tokens, segment after segment: N of them.
            logit_rows: Rows of ``token_ids`` whose logits are wanted, rising.

        Returns:
            Logits, and which rows are finite.
        """
        step = self._prepare(segments, len(token_ids))
        tokens = torch.tensor([*token_ids, *[0] * step.padding], device=self._device)
        hidden = weights.embedding[tokens]  # (N, D)
        for index, layer in enumerate(weights.layers):
            hidden = self._layer(index, layer, hidden, step)
        finite = hidden[: len(token_ids)].isfinite().all(-1).tolist()
        return Forward(logits=self._logits(weights, hidden, logit_rows), finite=finite)

    def _prepare(self, segments: Sequence[Segment], row_count: int) -> _Step:
        size = self.storage.page_size
        padding = self.row_blocks.padded(row_count) - row_count
        positions = [p for s in segments for p in range(s.start, s.start + s.count)]
        slots = [
            s.pages[p // size] * size + p % size for s in segments for p in range(s.start, s.start + s.count)
        ]
        places = torch.tensor(positions + [0] * padding, device=self._device)
        return _Step(
            row_count=row_count,
            padding=padding,
            slots=torch.tensor(slots, device=self._device),
            cosines=self._per_head(self._cosines[places]),
            sines=self._per_head(self._sines[places]),
            groups=build_groups(
                segments,
                page_size=size,
                heads_per_kv_head=self.config.head_count // self.config.kv_head_count,
                row_block=self.row_blocks.attention,
                windows=self._windows,
                device=self._device,
            ),
        )

    def _per_head(self, table: Tensor) -> Tensor:
        """(N, head_dim) to (N, H + KV, head_dim); queries get attention's scale as well."""
        config = self.config
        queries = (table * self._scale)[:, None].expand(-1, config.head_count, -1)
        return torch.cat((queries, table[:, None].expand(-1, config.kv_head_count, -1)), dim=1)

    def _layer(self, index: int, layer: LayerWeights, hidden: Tensor, step: _Step) -> Tensor:
        attended = self._attention(index, layer, rms_norm(hidden, layer.input_norm, self._eps), step)
        hidden = self._product(attended, layer.output).add_(hidden)
        gate_up = linear(rms_norm(hidden, layer.post_attention_norm, self._eps), layer.gate_up)
        gate, up = gate_up.chunk(2, dim=-1)
        return self._product(F.silu(gate).mul_(up), layer.down).add_(hidden)

    def _product(self, x: Tensor, weights: LinearWeights) -> Tensor:
        """A product that may be one rank's part of a sum."""
        y = linear(x, weights)
        return y if weights.after_sum is None else complete(self.ranks, y, x, weights.after_sum)

    def _attention(self, index: int, layer: LayerWeights, normed: Tensor, step: _Step) -> Tensor:
        config, count = self.config, step.row_count
        heads = linear(normed, layer.qkv).view(len(normed), -1, config.head_dim)  # (N, H + 2 KV, head_dim)
        turning = heads[:, : config.head_count + config.kv_head_count]
        if layer.q_norm is not None and layer.k_norm is not None:
            norms = torch.cat(
                (layer.q_norm.expand(config.head_count, -1), layer.k_norm.expand(config.kv_head_count, -1))
            )
            turning = rms_norm(turning, norms, self._eps)
        rotated = rotate(turning, step.cosines, step.sines)
        heads[:, config.head_count : -config.kv_head_count] = rotated[:, config.head_count :]
        cache, size = self.storage.layers[index], self.storage.page_size
        cache.view(len(cache), -1, config.head_dim).index_copy_(
            0, step.slots, heads[:count, config.head_count :]
        )
        query, window = rotated[:, : config.head_count], config.sliding_windows[index]
        if len(step.groups) == 1 and step.groups[0].valid is None and not step.padding:
            # One group covers all rows in order.
            return paged_attention(query, cache, step.groups[0], window, size).to(normed.dtype)
        output = normed.new_zeros(len(normed), config.head_count * config.head_dim)
        for group in step.groups:
            attended = paged_attention(query, cache, group, window, size)
            output.index_copy_(0, group.valid_rows, attended.to(normed.dtype))
        return output

    def _logits(self, weights: ModelWeights, hidden: Tensor, logit_rows: Sequence[int]) -> Tensor:
        padding = self.row_blocks.padded(len(logit_rows)) - len(logit_rows)
        rows = torch.tensor([*logit_rows, *[0] * padding], dtype=torch.int64, device=self._device)
        normed = rms_norm(hidden[rows], weights.final_norm, self._eps)
        return linear(normed, weights.head)[: len(logit_rows)].float().cpu()


def rms_norm(hidden: Tensor, weight: Tensor, eps: Tensor) -> Tensor:
    """Root-mean-square norm over the last dimension, computed in float32, in the dtype of ``hidden``.

    Args:
        hidden: ``(..., D)``.
        weight: Broadcasts to ``hidden``.
        eps: float32 scalar.
    """
    wide = hidden.to(torch.float32, copy=True)
    norm = torch.linalg.vector_norm(wide, dim=-1, keepdim=True)
    scale = torch.addcmul(eps, norm, norm, value=1 / wide.shape[-1]).rsqrt_()
    return wide.mul_(scale).to(hidden.dtype).mul_(weight)


def rotate(heads: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    """Rotary embedding, float32.

    Args:
        heads: ``(N, heads, head_dim)``.
        cosines: float32 of the same shape; its halves are equal.
        sines: float32 of the same shape; the first half is negated.
    """
    wide = heads.float()
    return torch.addcmul(wide * cosines, wide.roll(wide.shape[-1] // 2, -1), sines)


def multiply(
    x: Tensor, weight: Tensor | w4a16.PackedWeight | w4a16.GpuWeight, bias: Tensor | None = None
) -> Tensor:
    """``x weightᵀ + bias`` for at most ``MAX_ROWS`` rows, however the weight is held; (M, K) to (M, N)."""
    if isinstance(weight, Tensor):
        return multiply_dense(x, weight, bias)
    assert isinstance(weight, w4a16.PackedWeight), "weights for a GPU were given to the processor's path"
    y = w4a16.multiply(x, weight)
    return y if bias is None else y.add_(bias)


def linear(x: Tensor, weights: LinearWeights) -> Tensor:
    """``x weightᵀ + bias`` plus the compensators of each row range; (rows, K) to (rows, N)."""
    if len(x) <= MAX_ROWS:
        y = multiply(x, weights.weight, weights.bias)
    else:  # row invariance is proved for at most MAX_ROWS at once
        y = torch.cat([multiply(part, weights.weight, weights.bias) for part in torch.split(x, MAX_ROWS)])
    for placed in weights.compensators:
        gate = placed.gate
        correction = compensate(
            x, placed.a, placed.b, None if gate is None else (gate.w1, gate.b1, gate.w2, gate.b2)
        )
        y[:, placed.row_offset : placed.row_offset + placed.row_count] += correction.to(y.dtype)
    return y
