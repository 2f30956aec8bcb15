"""The page: well-formed, self-contained, complete, and safe whatever a model calls its modules."""

import dataclasses
import re
from collections.abc import Callable
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest

from spearhead.quant.report import (
    DamageKind,
    EvaluationTable,
    ModuleRow,
    RecoveryReport,
    Rung,
    formats,
    report_html,
)

MakeReport = Callable[..., RecoveryReport]

VOID = {"meta"}
HOSTILE = "</title></svg><script>alert(1)</script><img src=x onerror=\"alert('2')\">&amp;\0"
EMPTY: dict[str, object] = {
    "texts": (), "modules": (), "spectrum": None, "training": (), "rungs": (), "series": (),
    "byte_ratios": (), "evaluations": (), "warnings": (),
}  # fmt: skip


class Page(HTMLParser):
    """Checks nesting, and collects attributes, identifiers and visible text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.cells: list[str] = []
        self.feed(page)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._found(tag, attrs)
        self.open.append(tag)
        if tag in ("td", "th"):
            self.cells.append("")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._found(tag, attrs)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] in ("td", "th"):
            self.cells[-1] += data

    def _found(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]

    def all(self, name: str) -> list[str]:
        return [value for found, value in self.attributes if found == name]


def drawings(page: str) -> list[ElementTree.Element]:
    found = re.findall(r"<svg.*?</svg>", page, re.DOTALL)
    return [ElementTree.fromstring(drawing) for drawing in found]


def test_the_page_is_well_formed_and_its_identifiers_are_unique(make_report: MakeReport) -> None:
    page = Page(report_html(make_report()))
    identifiers = page.all("id")
    assert len(identifiers) == len(set(identifiers))
    assert {target.removeprefix("#") for target in page.all("href")} <= set(identifiers)


def test_drawings_are_xml_with_a_title_and_a_description(make_report: MakeReport) -> None:
    found = [drawing for drawing in drawings(report_html(make_report())) if drawing.get("role") == "img"]
    # Heat map, spectrum, two rungs' losses, ladder, and two measures on each of two texts.
    assert len(found) == 9
    for drawing in found:
        identifiers = [child.get("id") for child in drawing if child.tag in ("title", "desc")]
        assert " ".join(map(str, identifiers)) == drawing.get("aria-labelledby")
        assert all(child.text for child in drawing if child.tag in ("title", "desc"))


def test_every_drawing_has_a_table_in_its_section(make_report: MakeReport) -> None:
    for section in report_html(make_report()).split("<section ")[1:]:
        assert "<figure" not in section or "<table" in section


def test_nothing_is_loaded_and_nothing_runs(make_report: MakeReport) -> None:
    text = report_html(make_report())
    page = Page(text)
    assert not {"script", "img", "link", "iframe", "object", "use", "image"} & set(page.tags)
    assert all(target.startswith("#") for target in page.all("href"))
    assert not page.all("src") and not page.all("style")
    assert "url(" not in text and "@import" not in text and "://" not in text
    assert not [name for name, _ in page.attributes if name.startswith("on")]
    assert "default-src 'none'; style-src 'unsafe-inline'" in page.all("content")


def hostile(report: RecoveryReport) -> RecoveryReport:
    module = dataclasses.replace(report.modules[0], name=HOSTILE, projection=HOSTILE, reason=HOSTILE)
    series = dataclasses.replace(report.series[0], name=HOSTILE)
    rung = dataclasses.replace(report.rungs[0], reason=HOSTILE)
    identity = dataclasses.replace(report.identity, model=HOSTILE, commands=(HOSTILE,), device=HOSTILE)
    return dataclasses.replace(
        report,
        identity=identity,
        modules=(module, *report.modules[1:]),
        series=(series, *report.series[1:]),
        rungs=(rung, *report.rungs[1:]),
        warnings=(HOSTILE,),
    )


def test_hostile_names_stay_text(make_report: MakeReport) -> None:
    honest, text = Page(report_html(make_report())), report_html(hostile(make_report()))
    page = Page(text)
    assert sorted(set(page.tags)) == sorted(set(honest.tags))
    assert "onerror" not in [name for name, _ in page.attributes]
    assert "<script" not in text and "\0" not in text
    shown = HOSTILE.replace("\0", "\ufffd")
    assert page.cells.count(shown) >= 4  # module, its reason, series, rung
    assert drawings(text)


def test_every_number_of_the_tables_appears(make_report: MakeReport) -> None:
    report = make_report()
    cells = set(Page(report_html(report)).cells)
    assert expected_cells(report) <= cells


def expected_cells(report: RecoveryReport) -> set[str]:
    found: set[str] = set()
    for module in report.modules:
        found |= {module.name, str(module.rank), formats.percent(100 * module.share), module.reason}
        found |= {formats.damage(module.damage_by(kind)) for kind in DamageKind}
        found |= {formats.whole(module.compensator_bytes), f"{module.output_width} × {module.input_width}"}
    for run in report.training:
        measured = [point for point in run.points if point.held_out_kl is not None]
        found |= {formats.kl(value) for point in measured for value in (point.train_kl, point.held_out_kl)}
    for rung in report.rungs:
        found |= {rung.reason, formats.kl(rung.held_out_kl), formats.difference(rung.difference)}
        found |= {formats.whole(rung.compensator_bytes)}
    scored = [point.texts for series in report.series for point in series.points]
    for score in [score for texts in [*scored, *(rung.texts for rung in report.rungs)] for score in texts]:
        found |= {formats.perplexity(score.perplexity), formats.kl(score.kl)}
    for point in [point for series in report.series for point in series.points]:
        found |= {formats.whole(point.compensator_bytes), f"{point.mean_rank:.2f}"}
        found |= {formats.percent(point.budget_percent)}
    for row in [row for table in report.evaluations for row in table.rows]:
        found |= {formats.perplexity(row.perplexity), formats.percent(row.gap_closed_percent)}
        found |= {formats.kl(value) for value in (row.kl_mean, row.kl_median, row.kl_p99)}
        found |= {formats.ratio(row.perplexity_ratio), formats.percent(100 * row.top1_agreement)}
        found |= {formats.whole(row.served_bytes), row.convention, formats.percent(row.kl_closed_percent)}
    return found


def test_a_ratio_that_is_only_a_bound_says_so(make_report: MakeReport) -> None:
    cells = Page(report_html(make_report())).cells
    assert "11.2%" in cells and "≤ 5.62%" in cells


@pytest.mark.parametrize("identifier", ["damage", "training", "rungs", "quality", "evaluation"])
def test_an_empty_part_says_that_it_did_not_run(make_report: MakeReport, identifier: str) -> None:
    page = report_html(make_report(**EMPTY))
    part = page.split(f'<section id="{identifier}">')[1].split("</section>")[0]
    assert "Not part of this run." in part and "<svg" not in part
    assert Page(page).tags.count("table") == 1  # wall-clock time


def test_without_a_gate_there_is_no_gate(make_report: MakeReport) -> None:
    report = make_report()
    report = dataclasses.replace(
        report,
        rungs=report.rungs[:3],
        training=tuple(run for run in report.training if run.rung is not Rung.GATED),
        series=tuple(series for series in report.series if series.name != "gated"),
    )
    page = report_html(report)
    Page(page)
    assert "gated" not in page and "loss-trained" in page


def test_without_baselines_there_is_still_our_curve(make_report: MakeReport) -> None:
    report = make_report()
    page = report_html(dataclasses.replace(report, series=report.series[:1], byte_ratios=()))
    assert "All 4 points" in page and "Bytes at equal perplexity" not in page
    assert len([one for one in drawings(page) if one.get("role") == "img"]) == 9


def test_one_module_alone_is_drawn(make_report: MakeReport) -> None:
    report = make_report(layers=1)
    module = dataclasses.replace(report.modules[0], share=1.0)
    assert report.spectrum is not None
    spectrum = dataclasses.replace(
        report.spectrum, shares=(1.0,), entropy_nats=0.0, entropy_normalized=0.0, effective_count=1.0,
        chosen_count=1,
    )  # fmt: skip
    page = report_html(dataclasses.replace(report, modules=(module,), spectrum=spectrum))
    Page(page)
    assert "All 1 modules" not in page and "1 module" in page
    assert "k_eff = 1.0" in page


def test_no_damage_has_no_spectrum_but_a_map(make_report: MakeReport) -> None:
    report = make_report(layers=2)
    assert report.spectrum is not None
    modules = tuple(dataclasses.replace(module, share=0.0) for module in report.modules)
    spectrum = dataclasses.replace(report.spectrum, shares=(0.0,) * len(modules))
    page = report_html(dataclasses.replace(report, modules=modules, spectrum=spectrum))
    assert "No module was damaged" in page and 'id="heat-map-title"' in page


def test_w4_alone_needs_no_card_of_what_was_recovered(make_report: MakeReport) -> None:
    page = report_html(make_report(rungs=make_report().rungs[:1]))
    assert "without compensators" in page and "recovered" not in page


def test_evaluation_without_rows_says_that_it_did_not_run(make_report: MakeReport) -> None:
    page = report_html(make_report(evaluations=(EvaluationTable(text="WikiText-2", rows=()),)))
    assert "Not part of this run." in page


def test_the_ranks_stand_in_the_cells_of_the_map(make_report: MakeReport) -> None:
    report = make_report()
    heat = next(one for one in drawings(report_html(report)) if "heat-map" in one.get("aria-labelledby", ""))
    shown: dict[str, str | None] = {}
    for group in heat.iter("g"):
        title = group.find("title")
        if title is not None and title.text:
            shown[title.text.partition(":")[0]] = group.findtext("text")
    assert shown == {module.name: str(module.rank) if module.rank else None for module in report.modules}


@pytest.mark.parametrize("layers", [80, 560])
def test_a_deep_model_stays_small(make_report: MakeReport, layers: int) -> None:
    report = make_report(layers=layers)
    assert len(report.modules) == 7 * layers
    assert len(report_html(report).encode("utf-8")) < 3_000_000


def test_layers_may_be_far_apart(make_report: MakeReport) -> None:
    def moved(module: ModuleRow) -> ModuleRow:
        return dataclasses.replace(module, layer=module.layer * 10**9)

    report = make_report(layers=2)
    page = report_html(dataclasses.replace(report, modules=tuple(map(moved, report.modules))))
    assert len(page) < 300_000
