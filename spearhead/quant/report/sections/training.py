"""Loss curves of every rung and seed."""

from spearhead.quant.report import formats
from spearhead.quant.report.document import RecoveryReport
from spearhead.quant.report.ladder import TrainingRun
from spearhead.quant.report.markup import Markup, element, join, text
from spearhead.quant.report.plots import loss_domain, loss_plot, seed_styles
from spearhead.quant.report.svg import swatch
from spearhead.quant.report.table import Column, figure, folded, section, table


def training_section(report: RecoveryReport) -> Markup:
    """One panel a rung, the ends of each run, and the steps at which held-out KL was measured."""
    runs = report.training
    return section("training", "Training", _panels(runs), _ends(runs), _steps(runs))


def _panels(runs: tuple[TrainingRun, ...]) -> Markup:
    domain, styles = loss_domain(runs), seed_styles(runs)
    if not domain:
        return Markup("")
    by_rung = {run.rung: [one for one in runs if one.rung is run.rung] for run in runs}
    legend = [
        element("span", None, swatch(style, "circle"), text(f"seed {seed}")) for seed, style in styles.items()
    ]
    caption = "Thin: KL of the batch. Thick: held-out KL; a ring marks the step that was kept."
    panels = [figure(loss_plot(same, domain, styles), caption) for same in by_rung.values()]
    return join([element("div", {"class": "legend"}, *legend), element("div", {"class": "panels"}, *panels)])


def _ends(runs: tuple[TrainingRun, ...]) -> Markup:
    if not runs:
        return Markup("")
    columns = [
        Column("rung"), Column("seed"), Column("best step"),
        Column("best held-out KL"), Column("stopped early at"), Column("last step"),
    ]  # fmt: skip
    rows = [
        (
            run.rung, str(run.seed), formats.whole(run.best_step), formats.kl(_best(run)),
            formats.NONE if run.early_stop_step is None else formats.whole(run.early_stop_step),
            formats.whole(run.points[-1].step) if run.points else formats.NONE,
        )
        for run in runs
    ]  # fmt: skip
    return table("Training runs; KL in nats a token", columns, rows)


def _steps(runs: tuple[TrainingRun, ...]) -> Markup:
    columns = [Column("rung"), Column("seed"), Column("step"), Column("train KL"), Column("held-out KL")]
    rows = [
        (
            run.rung, str(run.seed), formats.whole(point.step), formats.kl(point.train_kl),
            formats.kl(point.held_out_kl),
        )
        for run in runs
        for point in run.points
        if point.held_out_kl is not None
    ]  # fmt: skip
    if not rows:
        return Markup("")
    title = f"{formats.all_of(len(rows), 'measurement')} of held-out KL"
    return folded(title, table("Losses, nats a token", columns, rows), len(rows))


def _best(run: TrainingRun) -> float | None:
    return next((point.held_out_kl for point in run.points if point.step == run.best_step), None)
