"""Steps in numbers: nothing is lost by cutting, and every token finds its slot and its pages."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from spearhead.model.attention import Segment
from spearhead.model.gpu.step import SHORT_ROWS, passes, tables

SIZE = 16


def segment(first_page: int, start: int, count: int) -> Segment:
    return Segment(pages=range(first_page, first_page + 100), start=start, count=count)


@given(
    counts=st.lists(st.integers(1, 60), min_size=1, max_size=8),
    limit=st.integers(1, 100),
    every=st.integers(1, 5),
)
def test_passes_hold_every_row_once_in_order_of_their_sequence(counts, limit, every):
    segments = [segment(100 * index, 7 * index, count) for index, count in enumerate(counts)]
    owners = [(index, 7 * index + row) for index, count in enumerate(counts) for row in range(count)]
    wanted = range(0, len(owners), every)
    parts = passes(segments, wanted, limit)
    assert sorted(row for part in parts for row in part.rows) == list(range(len(owners)))
    assert all(len(part.rows) <= limit for part in parts)
    assert [part.rows[place] for part in parts for place in part.logit_places] == list(wanted)
    for part in parts:
        places = [
            (piece.pages[0] // 100, piece.start + row)
            for piece in part.segments
            for row in range(piece.count)
        ]
        assert places == [owners[row] for row in part.rows]
    seen: dict[int, int] = {}
    for index, position in (owners[row] for part in parts for row in sorted(part.rows)):
        assert position == seen.get(index, 7 * index)
        seen[index] = position + 1


def test_long_segments_follow_short_ones_in_a_launch_of_their_own():
    segments = [segment(0, 5, SHORT_ROWS + 1), segment(100, 30, 1), segment(200, 0, SHORT_ROWS)]
    (part,) = passes(segments, range(18, 19))
    numbers = tables(part, list(range(36)), SIZE)
    short, long = numbers.attention
    assert (short.first_row, short.row_count, short.max_rows, short.max_length) == (0, 18, 17, 31)
    assert (long.first_row, long.row_count, long.max_rows, long.max_length) == (18, 18, 18, 23)
    assert short.row_starts.tolist() == [0, 1, 18]
    assert short.lengths.tolist() == [31, 17]
    assert numbers.token_ids.tolist() == [*range(18, 36), *range(18)]
    assert numbers.logit_places.tolist() == [0]


def test_a_token_goes_to_the_slot_of_its_position():
    pages = (9, 4, 7)
    (part,) = passes([Segment(pages=pages, start=14, count=20)], ())
    numbers = tables(part, [0] * 20, SIZE)
    assert numbers.positions.tolist() == list(range(14, 34))
    expected = [pages[position // SIZE] * SIZE + position % SIZE for position in range(14, 34)]
    assert numbers.slots.tolist() == expected


def test_page_tables_are_as_wide_as_what_kernels_are_compiled_for():
    (part,) = passes([segment(3, 250, 7), segment(500, 0, 2)], ())
    (group,) = tables(part, [0] * 9, SIZE).attention
    assert group.page_table.shape == (2, 32)
    assert group.page_table[0, :17].tolist() == list(range(3, 20))
    assert not np.any(group.page_table[0, 17:])
    assert group.page_table[1, :2].tolist() == [500, 0]
