"""Elements of HTML and SVG in which everything from outside is escaped."""

import re
from html import escape
from typing import NewType

Markup = NewType("Markup", str)
"""Made only by the functions here."""

# No spelling of these is allowed in a document.
_UNSPEAKABLE = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ud800-\udfff\ufffe\uffff]")


def plain(words: object) -> Markup:
    """Words as they are to be read."""
    return Markup(escape(_UNSPEAKABLE.sub("\ufffd", str(words))))


def tag(name: str, *content: Markup, **attributes: str | float) -> Markup:
    """An element; values of attributes are escaped, numbers shortened to a hundredth.

    Args:
        name: Of the element.
        content: Its content.
        attributes: Its attributes; ``css`` stands for ``class``, underscores for hyphens.
    """
    spelled = "".join(f' {_attribute(key)}="{_value(value)}"' for key, value in attributes.items())
    return Markup(f"<{name}{spelled}>{''.join(content)}</{name}>")


def _attribute(key: str) -> str:
    return "class" if key == "css" else key.replace("_", "-")


def _value(value: str | float) -> str:
    return plain(value) if isinstance(value, str) else f"{value:.2f}".rstrip("0").rstrip(".")
