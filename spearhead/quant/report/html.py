"""The page: one file, no script, nothing loaded from elsewhere."""

from spearhead.quant.report.document import RecoveryReport
from spearhead.quant.report.markup import Markup, element, text, void
from spearhead.quant.report.sections import (
    damage_section,
    evaluation_section,
    quality_section,
    rungs_section,
    setup_section,
    summary_section,
    training_section,
)
from spearhead.quant.report.style import STYLE

_PARTS = {
    "damage": "Damage and ranks",
    "training": "Training",
    "rungs": "Rungs",
    "quality": "Quality against bytes",
    "evaluation": "Evaluation",
    "setup": "Setup",
}


def report_html(report: RecoveryReport) -> str:
    """The whole report as one HTML document.

    It works without scripts, follows the reader's light or dark setting, and prints. Every drawing has its
    numbers in a table. Names from the model are escaped, and the page's own policy forbids any request.
    """
    body = element(
        "body",
        None,
        element("h1", None, text("Recovery report")),
        element("div", {"class": "model"}, text(report.identity.model)),
        element("nav", {"aria-label": "Parts"}, *_links()),
        element(
            "main",
            None,
            summary_section(report),
            damage_section(report),
            training_section(report),
            rungs_section(report),
            quality_section(report),
            evaluation_section(report),
            setup_section(report),
        ),
    )
    return f"<!doctype html>\n{element('html', {'lang': 'en'}, _head(report), body)}\n"


def _head(report: RecoveryReport) -> Markup:
    policy = "default-src 'none'; style-src 'unsafe-inline'"
    return element(
        "head",
        None,
        void("meta", {"charset": "utf-8"}),
        void("meta", {"http-equiv": "Content-Security-Policy", "content": policy}),
        void("meta", {"name": "viewport", "content": "width=device-width, initial-scale=1"}),
        element("title", None, text(f"Recovery report: {report.identity.model}")),
        element("style", None, STYLE),
    )


def _links() -> list[Markup]:
    return [element("a", {"href": f"#{name}"}, text(title)) for name, title in _PARTS.items()]
