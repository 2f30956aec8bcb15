"""Lines and markers as path data."""

from collections.abc import Sequence
from typing import Final

from spearhead.quant.report.markup import Markup, element, number, void

_Point = tuple[float, float]

# Outlines for a marker of radius 1. Shapes tell series apart where colours cannot.
_POLYGONS: Final[dict[str, tuple[_Point, ...]]] = {
    "square": ((-0.85, -0.85), (0.85, -0.85), (0.85, 0.85), (-0.85, 0.85)),
    "triangle": ((0, -1.1), (1.05, 0.8), (-1.05, 0.8)),
    "diamond": ((0, -1.25), (1.1, 0), (0, 1.25), (-1.1, 0)),
    "wedge": ((0, 1.1), (1.05, -0.8), (-1.05, -0.8)),
    "hexagon": ((-1.1, 0), (-0.55, -0.95), (0.55, -0.95), (1.1, 0), (0.55, 0.95), (-0.55, 0.95)),
    "cross": (
        (-0.4, -1.2), (0.4, -1.2), (0.4, -0.4), (1.2, -0.4), (1.2, 0.4), (0.4, 0.4),
        (0.4, 1.2), (-0.4, 1.2), (-0.4, 0.4), (-1.2, 0.4), (-1.2, -0.4), (-0.4, -0.4),
    ),
}  # fmt: skip

SHAPES: Final = ("circle", *_POLYGONS)
"""All marker shapes."""


def line_path(points: Sequence[_Point]) -> str:
    """Path data of a line through points, in a tenth of a pixel; empty for none."""
    return "".join(f"{'L' if index else 'M'}{x:.1f} {y:.1f}" for index, (x, y) in enumerate(points))


def marker(shape: str, x: float, y: float, radius: float, *details: Markup, style: str = "") -> Markup:
    """One marker.

    Args:
        shape: One of :data:`SHAPES`.
        x: Centre.
        y: Centre.
        radius: Pixels.
        details: Children, such as a ``<title>`` that shows where the pointer rests.
        style: Class.
    """
    attributes: dict[str, str | float] = {"class": style} if style else {}
    if shape == "circle":
        return element("circle", attributes | {"cx": x, "cy": y, "r": radius}, *details)
    corners = (f"{number(x + radius * dx)},{number(y + radius * dy)}" for dx, dy in _POLYGONS[shape])
    return element("polygon", attributes | {"points": " ".join(corners)}, *details)


def swatch(style: str, shape: str) -> Markup:
    """A piece of line with a marker, for a legend; hidden from screen readers, which read the name."""
    return element(
        "svg",
        {
            "class": f"swatch {style}",
            "viewBox": "0 0 28 12",
            "width": 28,
            "height": 12,
            "aria-hidden": "true",
        },
        void("path", {"class": "line", "d": "M1 6H27"}),
        marker(shape, 14, 6, 4, style="mark"),
    )
