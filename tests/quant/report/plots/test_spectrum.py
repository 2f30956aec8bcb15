import re
from xml.etree import ElementTree

import pytest

from spearhead.quant.report import DamageKind, Spectrum
from spearhead.quant.report.plots import spectrum_plot


def draw(shares: tuple[float, ...], effective: float, chosen: int) -> ElementTree.Element:
    return ElementTree.fromstring(
        spectrum_plot(
            Spectrum(
                kind=DamageKind.KL,
                shares=shares,
                entropy_nats=1.0,
                entropy_normalized=0.5,
                effective_count=effective,
                chosen_count=chosen,
                correlations=(),
            )
        )
    )


def bars(drawing: ElementTree.Element) -> list[float]:
    data = next(path.get("d", "") for path in drawing.iter("path") if path.get("class") == "bars")
    return [float(top) for top in re.findall(r"V([\d.]+)H", data)]


def test_bars_fall_and_undamaged_modules_have_none() -> None:
    tops = bars(draw((0.6, 0.3, 0.1, 1e-9, 0.0), 2.2, 3))
    assert len(tops) == 3 and tops == sorted(tops)


def test_modules_are_counted_in_whole_numbers() -> None:
    labels = [text.text or "" for text in draw((1.0,), 1.0, 1).iter("text")]
    assert "1" in labels and not [label for label in labels if re.fullmatch(r"[01]\.\d", label)]


@pytest.mark.parametrize(
    ("effective", "chosen"), [(2.0, 3), (3.0, 2), (90.0, 95), (95.0, 90), (40.0, 40), (1.0, 100)]
)
def test_no_mark_crosses_the_label_of_the_other(effective: float, chosen: int) -> None:
    drawing = draw((0.01,) * 100, effective, chosen)
    marks = [group for group in drawing.iter("g") if (group.get("class") or "").startswith("mark-line")]
    lines, labels = [], []
    for mark in marks:
        data = mark.find("path").get("d", "")  # type: ignore[union-attr]
        at, top = (float(part) for part in data[1:].partition("V")[0].split())
        lines.append((at, top))
        text = mark.find("text")
        assert text is not None
        x, y, width = float(text.get("x", "nan")), float(text.get("y", "nan")), 7.0 * len(text.text or "")
        labels.append((x - width, x, y) if text.get("class") == "end" else (x, x + width, y))
    for (at, top), (left, right, y) in zip(lines, reversed(labels), strict=True):
        assert not (left < at < right and top < y)
        assert right < 920
