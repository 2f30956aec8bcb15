"""HTML tables and the blocks that hold them."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from spearhead.quant.report.markup import Markup, element, join, text

_OPEN_ROWS = 40


class Kind(StrEnum):
    """What a column holds; the value is its class in the style sheet."""

    NUMBER = ""
    NAME = "t"
    PROSE = "p"


@dataclass(frozen=True, slots=True)
class Column:
    """One column.

    Attributes:
        title: Its heading, with the unit.
        kind: Numbers stand right, names left, and only prose wraps.
    """

    title: str
    kind: Kind = Kind.NUMBER

    @property
    def attributes(self) -> dict[str, str | float]:
        """Of each of its cells."""
        return {"class": self.kind} if self.kind else {}


def table(caption: str, columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> Markup:
    """A table that scrolls sideways where it is too wide; the first cell of a row heads it.

    Args:
        caption: What it holds.
        columns: Headings.
        rows: One text a column; anything, it is escaped.
    """
    head = join(
        element("th", {"scope": "col", **column.attributes}, text(column.title)) for column in columns
    )
    body = join(element("tr", None, _row(columns, row)) for row in rows)
    grid = element(
        "table", None,
        element("caption", None, text(caption)),
        element("thead", None, element("tr", None, head)),
        element("tbody", None, body),
    )  # fmt: skip
    return element("div", {"class": "scroll", "role": "region", "tabindex": "0", "aria-label": caption}, grid)


def folded(summary: str, content: Markup, row_count: int) -> Markup:
    """Content under a line that opens it; short tables start open, and paper shows what is open."""
    state: dict[str, str | float] = {"open": ""} if row_count <= _OPEN_ROWS else {}
    return element("details", state, element("summary", None, text(summary)), content)


def figure(drawing: Markup, caption: str) -> Markup:
    """A drawing with its caption."""
    return element("figure", None, drawing, element("figcaption", None, text(caption)))


def paragraph(content: str, style: str = "") -> Markup:
    """One paragraph of plain text."""
    return element("p", {"class": style} if style else None, text(content))


def section(identifier: str, title: str, *content: Markup) -> Markup:
    """A part of the page; without content it says that the run had none.

    Args:
        identifier: For links within the page.
        title: Heading.
        content: Empty pieces count as none.
    """
    found = [part for part in content if part] or [paragraph("Not part of this run.", "quiet")]
    return element("section", {"id": identifier}, element("h2", None, text(title)), *found)


def _row(columns: Sequence[Column], cells: Sequence[str]) -> Markup:
    first, *rest = cells
    heading = element("th", {"scope": "row"}, text(first))
    return join(
        [heading]
        + [
            element("td", column.attributes, text(cell))
            for column, cell in zip(columns[1:], rest, strict=True)
        ]
    )
