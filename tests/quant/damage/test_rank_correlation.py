import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from spearhead.quant.damage import spearman

_VALUES = st.lists(st.tuples(st.integers(0, 6), st.floats(0, 1)), min_size=3, max_size=40)


@given(_VALUES)
def test_it_is_scipys_with_ties(pairs: list[tuple[int, float]]) -> None:
    first, second = zip(*pairs, strict=True)
    if len(set(first)) > 1 and len(set(second)) > 1:
        assert spearman(first, second) == pytest.approx(stats.spearmanr(first, second).statistic, abs=1e-12)
    else:
        assert spearman(first, second) is None


def test_an_order_and_its_reverse() -> None:
    assert spearman([1, 2, 3], [10, 20, 25]) == pytest.approx(1.0)
    assert spearman([1, 2, 3], [3, 2, -9]) == pytest.approx(-1.0)
    assert spearman([1.0], [2.0]) is None
