"""Steps captured at start-up as CUDA graphs: one launch instead of ten a layer.

A graph freezes addresses, grids and counts. So each shape has memory for its input, into which a step is
copied in one piece, filled up with rows of no sequence; kernels compute these rows and write nowhere what
they give. A row's bits do not depend on its batch, so a replay gives the bits of launches; the proof at
start-up looks at both. Nothing in a captured step waits for the processor.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.graph_capture import nothing_collected
from kernels.paged_attention import PagedBatch
from spearhead.model.gpu.decoder import Sequences, Step
from spearhead.model.gpu.graph_shapes import MAX_GRAPH_ROWS, FilledStep, GraphShape, filled, fitting, idle
from spearhead.model.gpu.step import StepTables
from spearhead.model.gpu.upload import pack, views
from spearhead.model.weights import ModelWeights

Compute = Callable[[ModelWeights, Step], tuple[Tensor, Tensor]]
Run = Callable[[], None]
Capture = Callable[[Run], Run]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Graph:
    """One captured step.

    Attributes:
        weights: That it computes with.
        memory: Of its input, uint8.
        replay: Computes again what was captured.
    """

    weights: ModelWeights
    memory: Tensor
    replay: Run


class StepGraphs:
    """Captured steps of one decoder; owns their input, and the output that all of them write to.

    Args:
        compute: A step on the device: float32 logits ``(L, V)`` and whether rows are finite, bool ``(N,)``.
        shapes: To capture, the cheapest first.
        page_size: Tokens a page.
        vocab_size: V of the logits.
        device: Where.
        capture: Runs a function once, and returns what repeats it.
    """

    def __init__(
        self,
        compute: Compute,
        shapes: Sequence[GraphShape],
        *,
        page_size: int,
        vocab_size: int,
        device: torch.device,
        capture: Capture,
    ) -> None:
        self._compute, self._shapes, self._page_size = compute, tuple(shapes), page_size
        self._capture, self._device = capture, device
        self._graphs: dict[tuple[str, GraphShape], _Graph] = {}
        with torch.inference_mode():
            self._logits = torch.empty(MAX_GRAPH_ROWS, vocab_size, device=device)
            self._finite = torch.empty(MAX_GRAPH_ROWS, dtype=torch.bool, device=device)

    def __len__(self) -> int:
        """Captured steps."""
        return len(self._graphs)

    @torch.inference_mode()
    def add(self, weights: ModelWeights) -> None:
        """Captures every shape of a variant; the steps that this runs read and write no page."""
        # Largest first, so that later captures find room in what earlier ones have given back.
        for shape in reversed(self._shapes):
            numbers = idle(shape, self._page_size)
            memory = torch.from_numpy(pack(numbers.arrays)).to(self._device)
            step = _step(numbers, memory, shape, self._page_size)
            replay = self._capture(self._writing(weights, step, shape.rows))
            self._graphs[weights.variant, shape] = _Graph(weights=weights, memory=memory, replay=replay)

    def replay(self, weights: ModelWeights, numbers: StepTables) -> tuple[Tensor, Tensor] | None:
        """A step by its graph, if there is one.

        Args:
            weights: One of the variants.
            numbers: The step.

        Returns:
            float32 logits ``(L, V)`` and bool ``(N,)``, which the next replay overwrites; ``None`` = no
            captured shape holds this step.
        """
        shape = fitting(self._shapes, numbers)
        graph = None if shape is None else self._graphs.get((weights.variant, shape))
        if shape is None or graph is None or graph.weights is not weights:
            return None
        graph.memory.copy_(torch.from_numpy(pack(filled(numbers, shape, self._page_size).arrays)))
        graph.replay()
        return self._logits[: len(numbers.logit_places)], self._finite[: len(numbers.token_ids)]

    def _writing(self, weights: ModelWeights, step: Step, rows: int) -> Run:
        def run() -> None:
            logits, finite = self._compute(weights, step)
            self._logits[:rows].copy_(logits)
            self._finite[:rows].copy_(finite)

        return run


def _step(numbers: FilledStep, memory: Tensor, shape: GraphShape, page_size: int) -> Step:
    token_ids, positions, slots, logit_places, owners, row_starts, lengths, page_table = views(
        memory, numbers.arrays
    )
    batch = PagedBatch(
        page_table=page_table,
        row_starts=row_starts,
        lengths=lengths,
        positions=owners,
        page_size=page_size,
        max_rows=shape.rows_each,
        max_length=shape.context,
    )
    return Step(
        token_ids=token_ids,
        positions=positions,
        slots=slots,
        logit_places=logit_places,
        attention=(Sequences(rows=slice(0, shape.rows), batch=batch),),
    )


class CudaCapture:
    """Captures on the current device; all graphs share one pool of memory, since they never run at once."""

    def __init__(self) -> None:
        self._pool = torch.cuda.graph_pool_handle()

    def __call__(self, run: Run) -> Run:
        """Runs once where kernels may still be compiled, then captures; returns the graph's launch."""
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            run()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with nothing_collected(), torch.cuda.graph(graph, pool=self._pool):
            run()
        replay: Run = graph.replay
        return replay
