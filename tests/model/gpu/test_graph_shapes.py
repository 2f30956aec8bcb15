"""Which steps are captured, and what fills them up."""

import numpy as np
import pytest

from spearhead.model.attention import Segment
from spearhead.model.gpu.graph_shapes import (
    MAX_GRAPH_ROWS,
    GraphShape,
    filled,
    fitting,
    graph_shapes,
    idle,
)
from spearhead.model.gpu.step import SHORT_ROWS, passes, tables

SHAPES = graph_shapes(8192)


def numbers(*segments: tuple[int, int], logit_rows: tuple[int, ...] = ()):
    """The step of sequences, each ``(start, count)``."""
    each = [
        Segment(pages=range(100 * i, 100 * i + -(-(start + count) // 16)), start=start, count=count)
        for i, (start, count) in enumerate(segments)
    ]
    total = sum(count for _, count in segments)
    (part,) = passes(each, logit_rows)
    return tables(part, range(1, total + 1), 16)


@pytest.mark.parametrize(
    ("segments", "expected"),
    [
        ([(10, 1)], (1, 1, 1024)),
        ([(10, 2)], (1, 5, 1024)),
        ([(10, SHORT_ROWS)], (1, SHORT_ROWS, 1024)),
        ([(1022, 2)], (1, 5, 1024)),
        ([(1023, 2)], (1, 5, 8192)),
        ([(10, 1)] * 3, (4, 1, 1024)),
        ([(10, 5), (20, 3), (0, 1)], (4, 5, 1024)),
        ([(10, 1)] * 64, (64, 1, 1024)),
    ],
)
def test_a_step_takes_the_smallest_shape_that_holds_it(segments, expected):
    sequences, rows_each, context = expected
    assert fitting(SHAPES, numbers(*segments)) == GraphShape(
        sequences=sequences, rows_each=rows_each, context=context
    )


@pytest.mark.parametrize(
    "segments",
    [[(0, SHORT_ROWS + 1)], [(0, 1), (0, 40)], [(8192, 1)], [(5, 5)] * 30, [(5, 1)] * 65],
    ids=["long", "mixed", "far", "rows", "sequences"],
)
def test_other_steps_are_launched(segments):
    assert fitting(SHAPES, numbers(*segments)) is None


@pytest.mark.parametrize("context_length", [64, 1024, 2000, 8192, 131072])
def test_shapes_are_few_distinct_and_bounded(context_length):
    shapes = graph_shapes(context_length)
    assert len(shapes) == len(set(shapes)) <= 32
    assert all(shape.rows <= MAX_GRAPH_ROWS and shape.context <= context_length for shape in shapes)
    assert [shape.rows for shape in shapes] == sorted(shape.rows for shape in shapes)


def test_rows_that_fill_up_belong_to_no_sequence_and_are_written_nowhere():
    step = numbers((10, 2), (30, 1), logit_rows=(1, 2))
    shape = fitting(SHAPES, step)
    full = filled(step, shape, 16)
    assert shape == GraphShape(sequences=2, rows_each=5, context=1024)
    assert full.token_ids.tolist() == [1, 2, 3] + [0] * 7
    assert full.positions.tolist() == [10, 11, 30] + [0] * 7
    assert full.owners.tolist() == [10, 11, 30] + [-1] * 7
    assert full.slots.tolist() == [10, 11, 1630] + [-1] * 7
    assert full.logit_places.tolist() == [1, 2] + [0] * 8
    assert full.row_starts.tolist() == [0, 2, 3]
    assert full.lengths.tolist() == [12, 31]
    assert full.page_table.shape == (2, 64)
    assert full.page_table[1, :2].tolist() == [100, 101]


def test_sequences_that_fill_up_have_no_rows():
    full = filled(numbers((0, 1), (0, 1), (0, 1)), GraphShape(sequences=8, rows_each=1, context=1024), 16)
    assert full.row_starts.tolist() == [0, 1, 2, 3, 3, 3, 3, 3, 3]
    assert full.lengths.tolist() == [1, 1, 1, 0, 0, 0, 0, 0]


@pytest.mark.parametrize("page_size", [16, 256])
@pytest.mark.parametrize("shape", SHAPES[::5], ids=str)
def test_an_idle_step_has_the_size_of_every_step_of_its_shape(shape, page_size):
    nothing = idle(shape, page_size)
    step = filled(numbers((3, 1)), shape, 16) if page_size == 16 else nothing
    assert [array.shape for array in nothing.arrays] == [array.shape for array in step.arrays]
    assert all(array.dtype == np.int32 for array in nothing.arrays)
    assert nothing.page_table.shape[1] * page_size >= shape.context
    assert (nothing.slots == -1).all() and (nothing.lengths == 0).all()
