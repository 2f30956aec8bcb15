"""Train and held-out KL over the steps of one rung, one colour a seed."""

from collections.abc import Sequence

from spearhead.quant.report import formats
from spearhead.quant.report.ladder import TrainingRun
from spearhead.quant.report.markup import Markup, element, join, text, void
from spearhead.quant.report.svg import Canvas, Frame, LinearScale, LogScale, Scale, axes, line_path, marker

_FRAME = Frame(left=62, top=34, right=486, bottom=250)
_POINTS = 600  # more than a point a pixel shows nothing more
_MARKED = 40
_COLOURS = 7
_LOG_FROM = 8  # largest over least value from which only logarithms show the end of training


def loss_domain(runs: Sequence[TrainingRun]) -> tuple[float, ...]:
    """All losses of several runs: give them to each plot, and their axes agree."""
    points = [point for run in runs for point in run.points]
    return tuple(
        value for point in points for value in (point.train_kl, point.held_out_kl) if value is not None
    )


def seed_styles(runs: Sequence[TrainingRun]) -> dict[int, str]:
    """A colour class a seed, the same in all plots."""
    seeds = sorted({run.seed for run in runs})
    return {seed: f"s{index % _COLOURS}" for index, seed in enumerate(seeds)}


def loss_plot(runs: Sequence[TrainingRun], domain: Sequence[float], styles: dict[int, str]) -> Markup:
    """Thin: the batch. Thick: held out, a ring where it was least.

    Args:
        runs: Of one rung, at least one.
        domain: Of :func:`loss_domain`.
        styles: Of :func:`seed_styles`.
    """
    rung = runs[0].rung
    last = max((run.points[-1].step for run in runs if run.points), default=1)
    x = LinearScale(low=0, high=max(last, 1), start=_FRAME.left, end=_FRAME.right)
    y = _loss_scale(domain)
    return Canvas(
        identifier=f"loss-{rung}",
        width=510,
        height=296,
        title=f"Loss of the {rung} rung",
        description="Thin lines: KL of the training batch. Thick lines: KL of held-out sequences.",
    ).draw(
        axes(
            _FRAME, x, y,
            x_title="step", y_title=f"{rung}: KL, nats a token", x_format=formats.tick, y_format=formats.tick,
        ),
        join(_curves(run, x, y, styles[run.seed]) for run in runs),
    )  # fmt: skip


def _loss_scale(domain: Sequence[float]) -> Scale:
    positive = [value for value in domain if value > 0]
    if len(positive) == len(domain) and positive and max(positive) > _LOG_FROM * min(positive):
        return LogScale.fit(positive, _FRAME.bottom, _FRAME.top)
    return LinearScale.fit(domain, _FRAME.bottom, _FRAME.top)


def _curves(run: TrainingRun, x: Scale, y: Scale, style: str) -> Markup:
    train = [(x(p.step), y(p.train_kl)) for p in run.points if p.train_kl is not None]
    held_out = [(p.step, p.held_out_kl) for p in run.points if p.held_out_kl is not None]
    places = [(x(step), y(value)) for step, value in held_out]
    parts = [
        void("path", {"class": "line thin", "d": line_path(_thinned(train))}),
        void("path", {"class": "line thick", "d": line_path(_thinned(places))}),
    ]
    for (step, value), (at, height) in zip(held_out, places, strict=True):
        if step == run.best_step or len(held_out) <= _MARKED:
            hint = f"seed {run.seed}, step {step}: {formats.kl(value)}"
            best = step == run.best_step
            parts.append(
                marker(
                    "circle", at, height, 5.5 if best else 2.5,
                    element("title", None, text(hint + (" (best)" if best else ""))),
                    style="ring" if best else "mark",
                )
            )  # fmt: skip
    return element("g", {"class": style}, *parts)


def _thinned(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    every = -(-len(points) // _POINTS) or 1
    kept = list(points[::every])
    return kept if not points or kept[-1] == points[-1] else [*kept, points[-1]]
