import math
from dataclasses import dataclass
from enum import StrEnum

import pytest

from spearhead.errors import CalibrationError
from spearhead.quant.report.codec import decode, encode


class Colour(StrEnum):
    RED = "red"


@dataclass(frozen=True, slots=True, kw_only=True)
class Inner:
    value: float
    count: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Outer:
    name: str
    flag: bool
    colour: Colour
    rows: tuple[Inner, ...]
    extra: Inner | None


def outer(**changes: object) -> Outer:
    fields: dict[str, object] = {
        "name": "x",
        "flag": True,
        "colour": Colour.RED,
        "rows": (Inner(value=0.1, count=None), Inner(value=-0.0, count=3)),
        "extra": None,
    }
    return Outer(**(fields | changes))  # type: ignore[arg-type]


def test_a_record_reads_back_equal() -> None:
    assert decode(Outer, encode(outer())) == outer()
    assert encode(outer())["rows"] == [{"value": 0.1, "count": None}, {"value": -0.0, "count": 3}]


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_number_that_is_not_finite_is_refused_with_its_path(bad: float) -> None:
    with pytest.raises(CalibrationError, match=r"rows\[1\]\.value"):
        encode(outer(rows=(Inner(value=1.0, count=0), Inner(value=bad, count=0))))
    with pytest.raises(CalibrationError, match=r"extra\.value"):
        decode(Outer, encode(outer()) | {"extra": {"value": bad, "count": 1}})


@pytest.mark.parametrize(
    ("path", "bad"),
    [
        ("name", 3),
        ("flag", 1),
        ("colour", "blue"),
        ("rows", {}),
        ("rows", None),
        ("extra", []),
        ("extra.count", True),
        ("extra.count", 1.0),
        ("extra.value", "1"),
        ("extra.value", None),
        ("extra.value", False),
        ("extra.value", 10**400),
    ],
)
def test_another_type_is_refused_with_its_path(path: str, bad: object) -> None:
    data: dict[str, object] = dict(encode(outer()))
    head, _, rest = path.partition(".")
    data[head] = {"value": 1.0, "count": 1} | {rest: bad} if rest else bad
    with pytest.raises(CalibrationError, match=f"report field {path} is"):
        decode(Outer, data)


def test_unknown_and_missing_fields_are_refused_by_name() -> None:
    with pytest.raises(CalibrationError, match="root: unknown more"):
        decode(Outer, encode(outer()) | {"more": 1})
    with pytest.raises(CalibrationError, match=r"extra: missing count"):
        decode(Outer, encode(outer()) | {"extra": {"value": 1.0}})
    with pytest.raises(CalibrationError, match="not an object"):
        decode(Outer, encode(outer()) | {"extra": "x"})


def test_a_record_of_another_type_or_a_list_for_a_tuple_is_not_written() -> None:
    with pytest.raises(CalibrationError, match=r"extra is .*not Inner"):
        encode(outer(extra=outer()))
    with pytest.raises(CalibrationError, match=r"rows is .*not a tuple"):
        encode(outer(rows=[Inner(value=1.0, count=None)]))
