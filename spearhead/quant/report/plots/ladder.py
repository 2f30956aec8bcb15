"""Held-out KL of each rung, with the interval of what it gained over the last one kept."""

from collections.abc import Sequence

from spearhead.quant.report import formats
from spearhead.quant.report.ladder import RungResult
from spearhead.quant.report.markup import Markup, element, join, text, void
from spearhead.quant.report.svg import Canvas, Frame, LinearScale, LogScale, Scale, axes, label, marker

_ROW = 38
_LEFT, _TOP, _RIGHT = 90, 34, 470
_LOG_FROM = 4


def ladder_plot(rungs: Sequence[RungResult]) -> Markup:
    """One row a rung: a filled dot was kept, a hollow one dropped.

    Whiskers are the interval of the difference, laid at the held-out KL that the rung had to beat.

    Args:
        rungs: In the order in which they were tried, at least one.
    """
    frame = Frame(left=_LEFT, top=_TOP, right=_RIGHT, bottom=_TOP + _ROW * len(rungs))
    whiskers = [_whisker(rung) for rung in rungs]
    values = [rung.held_out_kl for rung in rungs] + [end for whisker in whiskers for end in whisker]
    x = _scale(values)
    y = LinearScale(low=-0.5, high=len(rungs) - 0.5, start=frame.top, end=frame.bottom)
    return Canvas(
        identifier="ladder",
        width=920,
        height=frame.bottom + 46,
        title="Rung by rung",
        description="Held-out KL of each rung, nats a token, with the interval of its gain.",
    ).draw(
        axes(
            frame, x, y,
            x_title="held-out KL, nats a token", y_title="",
            x_format=formats.tick, y_format=lambda _: "", y_ticks=len(rungs) + 1, x_ticks=5,
        ),
        label(_RIGHT + 24, _TOP - 12, "KL", "name"),
        label(_RIGHT + 94, _TOP - 12, "against the last one kept", "name"),
        join(
            _row(rung, whisker, x, y(index), frame)
            for index, (rung, whisker) in enumerate(zip(rungs, whiskers, strict=True))
        ),
    )  # fmt: skip


def _scale(values: Sequence[float]) -> Scale:
    if min(values) > 0 and max(values) > _LOG_FROM * min(values):
        return LogScale.fit(values, _LEFT, _RIGHT)
    return LinearScale.fit(values, _LEFT, _RIGHT)


def _whisker(rung: RungResult) -> tuple[float, ...]:
    if rung.difference is None:
        return ()
    before = rung.held_out_kl - rung.difference.mean
    return before + rung.difference.low, before + rung.difference.high


def _row(rung: RungResult, whisker: Sequence[float], x: Scale, y: float, frame: Frame) -> Markup:
    verdict = formats.verdict(rung)
    hint = f"{rung.rung}: {formats.kl(rung.held_out_kl)}, {verdict}. {rung.reason}"
    parts = [
        label(frame.left - 12, y + 4, rung.rung, "end strong"),
        marker("circle", x(rung.held_out_kl), y, 5.5, element("title", None, text(hint)), style="dot"),
        label(frame.right + 24, y + 4, formats.kl(rung.held_out_kl)),
        label(frame.right + 94, y + 4, formats.difference(rung.difference)),
        label(frame.right + 370, y + 4, verdict, "strong"),
    ]
    if whisker:
        low, high = map(x, whisker)
        ends = f"M{low:.1f} {y - 5:.1f}v10M{low:.1f} {y:.1f}H{high:.1f}M{high:.1f} {y - 5:.1f}v10"
        parts.insert(1, void("path", {"class": "whisker", "d": ends}))
    return element("g", {"class": verdict}, *parts)
