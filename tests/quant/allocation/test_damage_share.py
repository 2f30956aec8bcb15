import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spearhead.errors import CalibrationError
from spearhead.quant.allocation import damage_shares


def of(values: list[float]) -> tuple[float, float]:
    shares = damage_shares(map(str, range(len(values))), {str(i): v for i, v in enumerate(values)})
    return shares.normalised_entropy, shares.effective_count


@pytest.mark.parametrize("count", [2, 112, 210])
def test_equal_damage_has_entropy_one_and_counts_every_module(count: int) -> None:
    entropy, effective = of([0.3] * count)
    assert entropy == pytest.approx(1.0)
    assert effective == pytest.approx(count)


def test_one_damaged_module_counts_as_one() -> None:
    assert of([0.0, 5.0, 0.0]) == (0.0, 1.0)
    assert of([5.0]) == (0.0, 1.0)


def test_the_effective_number_is_m_to_the_normalised_entropy() -> None:
    entropy, effective = of([0.7, 0.2, 0.1, 0.0])
    by_hand = -(0.7 * math.log(0.7) + 0.2 * math.log(0.2) + 0.1 * math.log(0.1))
    assert effective == pytest.approx(math.exp(by_hand))
    assert effective == pytest.approx(4**entropy)


@given(st.lists(st.floats(min_value=0, max_value=1e308), min_size=1, max_size=30))
def test_shares_add_up_and_entropy_stays_in_range(values: list[float]) -> None:
    shares = damage_shares(map(str, range(len(values))), {str(i): v for i, v in enumerate(values)})
    assert sum(shares.shares.values()) == pytest.approx(1.0 if any(values) else 0.0)
    assert 0.0 <= shares.normalised_entropy <= 1.0
    assert 0.0 <= shares.effective_count <= len(values) * (1 + 1e-9)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1e-9])
def test_damage_that_is_no_size_names_its_module(value: float) -> None:
    with pytest.raises(CalibrationError, match=r"the damage of model\.layers\.3 is"):
        damage_shares(["a", "model.layers.3"], {"a": 1.0, "model.layers.3": value})


def test_damage_that_was_not_measured_names_its_module() -> None:
    with pytest.raises(CalibrationError, match="the damage of b was not measured"):
        damage_shares(["a", "b"], {"a": 1.0})
