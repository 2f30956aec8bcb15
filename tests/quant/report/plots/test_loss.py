from xml.etree import ElementTree

from spearhead.quant.report import LossPoint, Rung, TrainingRun
from spearhead.quant.report.plots import loss_domain, loss_plot, seed_styles


def run(count: int, best: int = 0, seed: int = 0) -> TrainingRun:
    points = tuple(
        LossPoint(step=step, train_kl=0.4 - 1e-6 * step, held_out_kl=0.5 if step % 1000 == 0 else None)
        for step in range(count)
    )
    return TrainingRun(rung=Rung.TRAINED, seed=seed, points=points, best_step=best, early_stop_step=None)


def draw(*runs: TrainingRun) -> ElementTree.Element:
    return ElementTree.fromstring(loss_plot(runs, loss_domain(runs), seed_styles(runs)))


def curve(drawing: ElementTree.Element, style: str) -> str:
    return next(path.get("d", "") for path in drawing.iter("path") if path.get("class") == f"line {style}")


def test_a_long_training_is_thinned_but_keeps_its_ends() -> None:
    data = curve(draw(run(20_000)), "thin")
    assert data.count("L") <= 601
    assert data.startswith("M62.0 ") and data.rpartition("L")[2].startswith("486.0 ")


def test_a_ring_marks_the_best_step_alone() -> None:
    rings = [one for one in draw(run(5001, best=2000)).iter("circle") if one.get("class") == "ring"]
    assert [ring.findtext("title") for ring in rings] == ["seed 0, step 2000: 0.5000 (best)"]


def test_a_run_without_points_is_drawn_beside_others() -> None:
    drawing = draw(run(0), run(10, seed=1))
    assert curve(drawing, "thin") == ""
    assert len(list(drawing.iter("circle"))) == 1


def test_seeds_keep_their_colour_in_every_plot() -> None:
    assert seed_styles([run(1, seed=5), run(1, seed=2), run(1, seed=5)]) == {2: "s0", 5: "s1"}
