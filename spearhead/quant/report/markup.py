"""Markup that cannot be made without escaping: text becomes :data:`Markup` only through here."""

import re
from collections.abc import Iterable, Mapping
from html import escape
from typing import NewType

Markup = NewType("Markup", str)
"""Well-formed HTML or SVG; everything in it that came from outside is escaped."""

Attributes = Mapping[str, str | float]

# XML has no spelling for these; neither has HTML for most of them.
_FORBIDDEN = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def text(value: str) -> Markup:
    """Escaped text, for content and attribute values; what no document may hold becomes U+FFFD."""
    return Markup(escape(_FORBIDDEN.sub("\ufffd", value), quote=True))


def element(tag: str, attributes: Attributes | None = None, *children: Markup) -> Markup:
    """``<tag attributes>children</tag>``.

    Args:
        tag: Written as it is; never from outside.
        attributes: Values are escaped, numbers shortened to a hundredth.
        children: In order.
    """
    return Markup(f"<{tag}{_attributes(attributes)}>{''.join(children)}</{tag}>")


def void(tag: str, attributes: Attributes | None = None) -> Markup:
    """``<tag attributes/>``: an element without content."""
    return Markup(f"<{tag}{_attributes(attributes)}/>")


def join(parts: Iterable[Markup]) -> Markup:
    """Several pieces one after the other."""
    return Markup("".join(parts))


def number(value: float) -> str:
    """A coordinate, shortened to a hundredth: ``3``, ``3.5``, ``-0.25``."""
    shortened = f"{value:.2f}".rstrip("0").rstrip(".")
    return "0" if shortened == "-0" else shortened


def _attributes(attributes: Attributes | None) -> str:
    return "".join(
        f' {name}="{text(value) if isinstance(value, str) else number(value)}"'
        for name, value in (attributes or {}).items()
    )
