"""Which steps are captured as graphs, and how a step is filled up to one of them: pure functions."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np

from spearhead.model.gpu.step import SHORT_ROWS, AttentionTables, Integers, StepTables

MAX_GRAPH_ROWS = 64
"""Beyond, a step computes for longer than it takes to launch."""

_SEQUENCES = (1, 2, 4, 8, 16, 32, 64)
_ROWS_EACH = (1, 5, SHORT_ROWS)  # no draft, a usual one, the longest
_CONTEXTS = (1024, 8192)
_PAGE_GRANULE = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphShape:
    """The most that one captured step takes.

    Attributes:
        sequences: B.
        rows_each: Of a sequence.
        context: Tokens of a sequence, the new ones included.
    """

    sequences: int
    rows_each: int
    context: int

    @property
    def rows(self) -> int:
        """N, all of which are computed."""
        return self.sequences * self.rows_each

    def pages(self, page_size: int) -> int:
        """Width of the page table."""
        return -(-self.context // (page_size * _PAGE_GRANULE)) * _PAGE_GRANULE

    def holds(self, numbers: StepTables) -> bool:
        """Whether a step fits: short sequences only, and no more of anything."""
        if len(numbers.attention) != 1:
            return False
        (group,) = numbers.attention
        return (
            len(group.lengths) <= self.sequences
            and group.max_rows <= self.rows_each
            and group.max_length <= self.context
            and group.row_count <= self.rows
        )


def graph_shapes(context_length: int) -> tuple[GraphShape, ...]:
    """Shapes to capture, the cheapest first.

    Args:
        context_length: Longest sequence in tokens; longer ones than the largest shape's are launched.
    """
    contexts = sorted({min(context, context_length) for context in _CONTEXTS})
    found = [
        GraphShape(sequences=sequences, rows_each=rows, context=context)
        for sequences, rows, context in product(_SEQUENCES, _ROWS_EACH, contexts)
        if sequences * rows <= MAX_GRAPH_ROWS
    ]
    return tuple(sorted(found, key=lambda shape: (shape.rows, shape.sequences, shape.context)))


def fitting(shapes: Sequence[GraphShape], numbers: StepTables) -> GraphShape | None:
    """The first shape that holds a step; ``None`` = the step is launched kernel by kernel."""
    return next((shape for shape in shapes if shape.holds(numbers)), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class FilledStep:
    """A step of exactly a shape's size; what fills it up is computed, and belongs to no sequence.

    Attributes:
        token_ids: ``(N,)``, 0 in rows that fill up.
        positions: ``(N,)``, 0 there, which rotary tables have.
        slots: ``(N,)``, -1 there: written nowhere.
        logit_places: ``(N,)``, 0 beyond those that are wanted.
        owners: ``(N,)``, positions, but -1 there: of no sequence.
        row_starts: ``(B + 1,)``.
        lengths: ``(B,)``, 0 for sequences that fill up.
        page_table: ``(B, P)``.
    """

    token_ids: Integers
    positions: Integers
    slots: Integers
    logit_places: Integers
    owners: Integers
    row_starts: Integers
    lengths: Integers
    page_table: Integers

    @property
    def arrays(self) -> list[Integers]:
        """In the order of the attributes."""
        return [
            self.token_ids,
            self.positions,
            self.slots,
            self.logit_places,
            self.owners,
            self.row_starts,
            self.lengths,
            self.page_table,
        ]


def filled(numbers: StepTables, shape: GraphShape, page_size: int) -> FilledStep:
    """A step, filled up.

    Args:
        numbers: That the shape holds.
        shape: Of the graph.
        page_size: Tokens a page.
    """
    assert shape.holds(numbers), "another shape was chosen for this step"
    (group,) = numbers.attention
    pages = np.zeros((shape.sequences, shape.pages(page_size)), np.int32)
    width = min(group.page_table.shape[1], pages.shape[1])  # beyond, it holds no page of these sequences
    pages[: len(group.lengths), :width] = group.page_table[:, :width]
    return FilledStep(
        token_ids=_padded(numbers.token_ids, shape.rows, 0),
        positions=_padded(numbers.positions, shape.rows, 0),
        slots=_padded(numbers.slots, shape.rows, -1),
        logit_places=_padded(numbers.logit_places, shape.rows, 0),
        owners=_padded(numbers.positions, shape.rows, -1),
        row_starts=_padded(group.row_starts, shape.sequences + 1, group.row_count),
        lengths=_padded(group.lengths, shape.sequences, 0),
        page_table=pages,
    )


def idle(shape: GraphShape, page_size: int) -> FilledStep:
    """A step of no sequence at all, which reads and writes no page."""
    none = np.zeros(0, np.int32)
    group = AttentionTables(
        first_row=0,
        row_count=0,
        row_starts=np.zeros(1, np.int32),
        lengths=none,
        page_table=np.zeros((0, 0), np.int32),
        max_rows=0,
        max_length=0,
    )
    numbers = StepTables(token_ids=none, positions=none, slots=none, logit_places=none, attention=(group,))
    return filled(numbers, shape, page_size)


def _padded(values: Integers, size: int, fill: int) -> Integers:
    return np.concatenate((values, np.full(size - len(values), fill, np.int32)))
