"""The decoder on a CUDA device: the same steps as :mod:`spearhead.model.decoder`, through the GPU kernels.

A layer is five launches around four products::

    norm (+ residual, codes) ─► qkv ─► rope, cache write ─► attention ─► output
    norm (+ residual, codes) ─► gate, up ─► activation (codes) ─► down

Products of few rows compute the codes of compensators without gates themselves. Others have them from the
kernel in front, but for the attention's output, whose kernel changes form with the load: there they cost a
launch.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels.compensator import GpuCompensator
from kernels.linear import BLOCK_ROWS
from kernels.paged_attention import PagedBatch, paged_attention
from kernels.producer import CodeWorkspace
from kernels.rms_norm import Normed, rms_norm
from kernels.rope_and_cache import rope_and_cache
from kernels.silu_mul import silu_mul
from spearhead.model.architecture import ModelConfig, inverse_frequencies
from spearhead.model.attention import Segment
from spearhead.model.forward import Forward
from spearhead.model.gpu.step import Pass, StepTables, passes, tables
from spearhead.model.gpu.upload import upload
from spearhead.model.kv_cache import KvStorage
from spearhead.model.parallel import ALONE, Ranks
from spearhead.model.parallel.row_parallel import complete
from spearhead.model.weights import LayerWeights, LinearWeights, ModelWeights


class Products(Protocol):
    """What the decoder multiplies with; see :class:`spearhead.model.gpu.products.GpuLinears`.

    Attributes:
        codes: Where kernels in front of products add codes up.
    """

    codes: CodeWorkspace

    def multiply(self, x: Tensor, linear: LinearWeights, codes: Tensor | None = None) -> Tensor: ...  # noqa: D102
    def front(self, linear: LinearWeights, rows: int) -> GpuCompensator | None: ...  # noqa: D102
    def start(self, weights: ModelWeights, rows: int) -> None: ...  # noqa: D102


class Replays(Protocol):
    """Steps that were captured; see :class:`spearhead.model.gpu.graphs.StepGraphs`."""

    def replay(self, weights: ModelWeights, numbers: StepTables) -> tuple[Tensor, Tensor] | None: ...  # noqa: D102


@dataclass(frozen=True, slots=True, kw_only=True)
class Sequences:
    """What one attention launch serves.

    Attributes:
        rows: Of the pass.
        batch: Of their sequences.
    """

    rows: slice
    batch: PagedBatch


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What all layers of one pass share, on the device.

    Attributes:
        token_ids: int32 ``(N,)``.
        positions: int32 ``(N,)``.
        slots: int32 ``(N,)``, where keys and values go.
        logit_places: int32 ``(L,)``, rows whose logits are wanted.
        attention: One or two launches a layer.
    """

    token_ids: Tensor
    positions: Tensor
    slots: Tensor
    logit_places: Tensor
    attention: tuple[Sequences, ...]


class GpuDecoder:
    """Computes logits; owns the rotary tables and writes to the KV storage it was given.

    Not thread-safe: scratch memory belongs to one stream.

    Args:
        config: Shape of the model, or of one rank's part of it.
        storage: KV pages, in the compute type. On a processor, where no kernel runs, the kernels'
            references compute.
        products: Multiplies by prepared weights.
        context_length: Longest sequence that will be asked for, in tokens.
        ranks: Who computes the other parts. Then every forward pass is one of all ranks together.

    Attributes:
        graphs: Set once, before the first step; ``None`` = every step is launched kernel by kernel.
    """

    def __init__(
        self,
        config: ModelConfig,
        storage: KvStorage,
        products: Products,
        *,
        context_length: int,
        ranks: Ranks = ALONE,
    ) -> None:
        self.ranks = ranks
        self.config = config
        self.storage = storage
        self.context_length = context_length
        self.device = storage.layers[0].device
        self.products = products
        self.graphs: Replays | None = None
        self._current = self.device.index if self.device.type == "cuda" else -1  # -1 = leave it as it is
        frequencies, factor = inverse_frequencies(config.rope, config.head_dim)
        angles = torch.outer(torch.arange(context_length, dtype=torch.float32), frequencies)
        self._cosines = (angles.cos() * factor).to(self.device)  # (context, head_dim / 2)
        self._sines = (angles.sin() * factor).to(self.device)

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
            weights: One of the variants that the decoder was made for.
            segments: New tokens of each sequence; their pages are allocated already.
            token_ids: All new tokens, segment after segment.
            logit_rows: Rows of ``token_ids`` whose logits are wanted, rising.

        Returns:
            Logits on the device, and which rows are finite.
        """
        with torch.cuda.device(self._current):
            # Of several passes all but the last have MAX_ROWS rows, so that at most one is a replay.
            parts = passes(segments, logit_rows)
            computed = [self._compute(weights, part, token_ids) for part in parts]
            finite = [True] * len(token_ids)
            for part, (_, good) in zip(parts, computed, strict=True):
                for row, value in zip(part.rows, good.tolist(), strict=True):
                    finite[row] = value
            return Forward(logits=torch.cat([logits for logits, _ in computed]), finite=finite)

    def _compute(self, weights: ModelWeights, part: Pass, token_ids: Sequence[int]) -> tuple[Tensor, Tensor]:
        """float32 logits ``(L, V)`` in the order of the step, and bool ``(N,)`` in that of the pass."""
        numbers = tables(part, token_ids, self.storage.page_size)
        replayed = None if self.graphs is None else self.graphs.replay(weights, numbers)
        return self.compute(weights, self._send(numbers)) if replayed is None else replayed

    def compute(self, weights: ModelWeights, step: Step) -> tuple[Tensor, Tensor]:
        """A step that is on the device; waits for nothing, so that it may be captured.

        Returns:
            float32 logits ``(L, V)``, and whether rows are finite, bool ``(N,)``.
        """
        self.products.start(weights, len(step.token_ids))
        added = F.embedding(step.token_ids, weights.embedding)  # (N, D)
        hidden: Tensor | None = None
        for index, layer in enumerate(weights.layers):
            added, hidden = self._layer(index, layer, added, hidden, step)
        assert hidden is not None, "a model has layers"
        finite = (hidden + added).isfinite().all(-1)
        last = rms_norm(
            added.index_select(0, step.logit_places),
            weights.final_norm,
            self.config.rms_norm_eps,
            hidden.index_select(0, step.logit_places),
        )
        return self.products.multiply(last.y, weights.head).float(), finite

    def _send(self, numbers: StepTables) -> Step:
        groups = numbers.attention
        arrays = [numbers.token_ids, numbers.positions, numbers.slots, numbers.logit_places]
        for group in groups:
            arrays += [group.row_starts, group.lengths, group.page_table]
        token_ids, positions, slots, logit_places, *rest = upload(arrays, self.device)
        sequences = []
        for group, (row_starts, lengths, page_table) in zip(
            groups, zip(rest[::3], rest[1::3], rest[2::3], strict=True), strict=True
        ):
            rows = slice(group.first_row, group.first_row + group.row_count)
            batch = PagedBatch(
                page_table=page_table,
                row_starts=row_starts,
                lengths=lengths,
                positions=positions[rows],
                page_size=self.storage.page_size,
                max_rows=group.max_rows,
                max_length=group.max_length,
            )
            sequences.append(Sequences(rows=rows, batch=batch))
        return Step(
            token_ids=token_ids,
            positions=positions,
            slots=slots,
            logit_places=logit_places,
            attention=tuple(sequences),
        )

    def _layer(
        self, index: int, layer: LayerWeights, added: Tensor, hidden: Tensor | None, step: Step
    ) -> tuple[Tensor, Tensor]:
        """One layer; the residual stream comes and goes as ``added`` plus ``hidden``, for the norm to sum."""
        multiply = self.products.multiply
        normed = self._norm(added, layer.input_norm, hidden, layer.qkv)
        qkv = multiply(normed.y, layer.qkv, normed.codes)
        attended = self._attention(index, layer, qkv, step)
        output = self._complete(multiply(attended, layer.output), attended, layer.output)
        normed = self._norm(output, layer.post_attention_norm, normed.hidden, layer.gate_up)
        gate_up = multiply(normed.y, layer.gate_up, normed.codes)
        activated = silu_mul(gate_up, self.products.front(layer.down, len(gate_up)), self.products.codes)
        down = multiply(activated.y, layer.down, activated.codes)
        return self._complete(down, activated.y, layer.down), normed.hidden

    def _complete(self, y: Tensor, x: Tensor, linear: LinearWeights) -> Tensor:
        """A product, whole, that may be one rank's part of a sum."""
        if linear.after_sum is None:
            return y
        return complete(self.ranks, y, x, linear.after_sum, block_rows=BLOCK_ROWS)

    def _norm(self, x: Tensor, weight: Tensor, residual: Tensor | None, reader: LinearWeights) -> Normed:
        return rms_norm(
            x,
            weight,
            self.config.rms_norm_eps,
            residual,
            self.products.front(reader, len(x)),
            self.products.codes,
        )

    def _attention(self, index: int, layer: LayerWeights, qkv: Tensor, step: Step) -> Tensor:
        """Turns queries and keys, writes the cache, attends: ``(N, (H + 2 KV) D)`` to ``(N, H D)``."""
        config, cache = self.config, self.storage.layers[index]
        heads = qkv.view(len(qkv), -1, config.head_dim)
        rope_and_cache(
            heads,
            cache,
            self._cosines,
            self._sines,
            step.positions,
            step.slots,
            config.head_count,
            layer.q_norm,
            layer.k_norm,
            config.rms_norm_eps,
        )
        return self.attend(index, heads[:, : config.head_count], step)

    def attend(self, index: int, query: Tensor, step: Step) -> Tensor:
        """Attention of turned queries ``(N, H, D)`` over the cache of layer ``index``: ``(N, H D)``."""
        cache, window = self.storage.layers[index], self.config.sliding_windows[index]
        scale = self.config.head_dim**-0.5
        parts = [
            paged_attention(query[one.rows], cache, one.batch, scale, window).y for one in step.attention
        ]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def step_of(self, segments: Sequence[Segment]) -> Step:
        """The device's view of one pass over segments, without tokens that matter."""
        (part,) = passes(segments, (), sum(segment.count for segment in segments))
        return self._send(tables(part, [0] * len(part.rows), self.storage.page_size))
