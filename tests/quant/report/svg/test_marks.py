from xml.etree import ElementTree

import pytest

from spearhead.quant.report.markup import element, text
from spearhead.quant.report.svg import SHAPES, line_path, marker, swatch


def test_a_line_moves_once_and_then_draws() -> None:
    assert line_path([(0, 1), (2.25, 3), (4, 5.55)]) == "M0.0 1.0L2.2 3.0L4.0 5.5"
    assert line_path([]) == ""


@pytest.mark.parametrize("shape", SHAPES)
def test_a_marker_lies_around_its_centre_within_its_radius(shape: str) -> None:
    root = ElementTree.fromstring(
        marker(shape, 100, 50, 4, element("title", None, text("<a>")), style="mark")
    )
    assert root.get("class") == "mark" and root.findtext("title") == "<a>"
    if shape == "circle":
        assert (root.get("cx"), root.get("cy"), root.get("r")) == ("100", "50", "4")
        return
    corners = [tuple(map(float, pair.split(","))) for pair in root.get("points", "").split()]
    assert all(abs(x - 100) <= 5.2 and abs(y - 50) <= 5.2 for x, y in corners)
    assert min(x for x, _ in corners) < 100 < max(x for x, _ in corners)
    assert min(y for _, y in corners) < 50 < max(y for _, y in corners)


def test_a_swatch_is_hidden_from_those_who_hear_the_name() -> None:
    root = ElementTree.fromstring(swatch("s1 ours", "square"))
    assert root.get("aria-hidden") == "true" and root.get("class") == "swatch s1 ours"
