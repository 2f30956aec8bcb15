"""The outcome of one check."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What a check saw.

    Attributes:
        subject: What was looked at.
        ok: Nothing is wrong with it.
        text: What was seen.
        remedy: How to mend it; empty when ok.
    """

    subject: str
    ok: bool
    text: str
    remedy: str = ""
