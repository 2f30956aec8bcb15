"""The outermost element of a drawing, and text within it."""

from dataclasses import dataclass

from spearhead.quant.report.markup import Markup, element, text


@dataclass(frozen=True, slots=True, kw_only=True)
class Canvas:
    """A drawing with a name that a screen reader can speak.

    Attributes:
        identifier: Unique in the page; letters, digits and hyphens.
        width: Pixels at full size; the page may shrink it.
        height: Likewise.
        title: What it is.
        description: What it shows; the numbers stand in a table beside it.
    """

    identifier: str
    width: float
    height: float
    title: str
    description: str

    def draw(self, *children: Markup) -> Markup:
        """The ``<svg>`` element."""
        names = (f"{self.identifier}-title", f"{self.identifier}-description")
        return element(
            "svg",
            {
                "role": "img",
                "viewBox": f"0 0 {self.width:g} {self.height:g}",
                "width": self.width,
                "height": self.height,
                "aria-labelledby": " ".join(names),
            },
            element("title", {"id": names[0]}, text(self.title)),
            element("desc", {"id": names[1]}, text(self.description)),
            *children,
        )


def label(x: float, y: float, content: str, style: str = "") -> Markup:
    """One line of text.

    Args:
        x: Position of its anchor.
        y: Position of its baseline.
        content: Anything; is escaped.
        style: Classes of the page's style sheet, such as ``end`` or ``middle strong``.
    """
    return element("text", {"x": x, "y": y} | ({"class": style} if style else {}), text(content))
