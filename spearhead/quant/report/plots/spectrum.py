"""Sorted shares of damage, with the effective number of damaged modules and the number chosen."""

from collections.abc import Sequence

from spearhead.quant.report import formats
from spearhead.quant.report.markup import Markup, element, void
from spearhead.quant.report.selection import Spectrum
from spearhead.quant.report.svg import Canvas, Frame, LinearScale, LogScale, axes, label

_FRAME = Frame(left=70, top=76, right=900, bottom=312)
_LABEL_WIDTH = 190  # of a mark, and of the name of the axis left of it
_DECADES = 6  # shares below a millionth of the largest are not worth an axis


def spectrum_plot(spectrum: Spectrum) -> Markup:
    """Bars on a logarithmic axis.

    Args:
        spectrum: With at least one positive share.
    """
    shown = [100 * share for share in spectrum.shares if share > spectrum.shares[0] * 10.0**-_DECADES]
    x = LinearScale(low=0.5, high=len(spectrum.shares) + 0.5, start=_FRAME.left, end=_FRAME.right)
    y = LogScale.fit(shown, _FRAME.bottom, _FRAME.top)
    return Canvas(
        identifier="spectrum",
        width=920,
        height=358,
        title="Damage spectrum",
        description=(
            f"Shares of damage of {len(spectrum.shares)} modules, largest first, logarithmic. Entropy "
            f"{spectrum.entropy_nats:.3f} nats, {spectrum.entropy_normalized:.3f} of the largest possible; "
            f"effective number {spectrum.effective_count:.1f}; {spectrum.chosen_count} modules chosen."
        ),
    ).draw(
        label(_FRAME.left - 7, 14, _headline(spectrum), "strong"),
        axes(
            _FRAME, x, y,
            x_title="modules, most damaged first", y_title="share of damage",
            x_format=_whole, y_format=lambda value: f"{formats.tick(value)}%", x_ticks=8,
        ),
        void("path", {"class": "bars", "d": _bars(shown, x, y)}),
        *_marks(spectrum, x),
    )  # fmt: skip


def _whole(count: float) -> str:
    """No label between two modules."""
    return formats.tick(count) if count.is_integer() else ""


def _headline(spectrum: Spectrum) -> str:
    return (
        f"H = {spectrum.entropy_nats:.3f} nats ({spectrum.entropy_normalized:.3f} of ln M), "
        f"k_eff = exp(H) = {spectrum.effective_count:.1f} of {len(spectrum.shares)} modules"
    )


def _bars(percents: Sequence[float], x: LinearScale, y: LogScale) -> str:
    half = 0.42 if len(percents) <= 300 else 0.5  # gaps thinner than a pixel only look like noise
    return "".join(
        f"M{x(index - half):.1f} {_FRAME.bottom:g}V{y(value):.1f}H{x(index + half):.1f}V{_FRAME.bottom:g}Z"
        for index, value in enumerate(percents, start=1)
    )


def _marks(spectrum: Spectrum, x: LinearScale) -> list[Markup]:
    """Vertical lines for both counts, with labels on two rows so that no line crosses a label."""
    effective, chosen = spectrum.effective_count, float(spectrum.chosen_count)
    marks = [
        (effective, f"k_eff = {effective:.1f}", "effective"),
        (chosen, f"chosen k = {spectrum.chosen_count}", "chosen"),
    ]
    room = _position(max(effective, chosen), x) > _FRAME.left + _LABEL_WIDTH
    # Labels to the left: the line further right goes up higher. To the right: the other one.
    marks.sort(key=lambda mark: mark[0], reverse=room)
    return [
        _mark(_position(count, x), content, style, row) for row, (count, content, style) in enumerate(marks)
    ]


def _position(count: float, x: LinearScale) -> float:
    """Right after the ``count``-th bar."""
    return x(min(max(count + 0.5, x.low), x.high))


def _mark(at: float, content: str, style: str, row: int) -> Markup:
    left = at > _FRAME.left + _LABEL_WIDTH
    top = _FRAME.top - 30 + 18 * row
    return element(
        "g",
        {"class": f"mark-line {style}"},
        void("path", {"d": f"M{at:.1f} {top - 10:g}V{_FRAME.bottom:g}"}),
        label(at + (-6 if left else 6), top, content, "end" if left else ""),
    )
