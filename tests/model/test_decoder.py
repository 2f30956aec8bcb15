"""Row counts: few, proved ones."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spearhead.model.decoder import MAX_ROWS, RowBlocks


@given(st.sampled_from([1, 2, 4, 8, 16, 32]), st.integers(1, 3 * MAX_ROWS))
def test_rows_are_padded_to_the_next_count_that_was_proved(block, count):
    blocks = RowBlocks(linear=block)
    padded = blocks.padded(count)
    assert padded >= count
    assert padded % block == 0
    rest = padded % MAX_ROWS
    assert rest == 0 or rest in blocks.buckets
    assert blocks.padded(padded) == padded


@pytest.mark.parametrize("block", [1, 2, 4, 8, 16, 32])
def test_there_are_few_counts_and_the_last_is_the_largest(block):
    buckets = RowBlocks(linear=block).buckets
    assert len(buckets) <= 40
    assert list(buckets) == sorted(set(buckets))
    assert buckets[0] == block
    assert buckets[-1] == MAX_ROWS
