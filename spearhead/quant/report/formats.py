"""How numbers are written for people: always the same digits for the same quantity."""

import math

from spearhead.quant.report.ladder import KlDifference, RungResult

NONE = "–"
"""Stands for what was not measured."""


def perplexity(value: float) -> str:
    """Two decimals; powers of ten from 100,000 on."""
    return f"{value:.2f}" if value < 1e5 else _power(value, 2)


def kl(value: float | None) -> str:
    """Four decimals; powers of ten below 0.001. Nats a token."""
    if value is None:
        return NONE
    return f"{value:.4f}" if value == 0 or abs(value) >= 1e-3 else _power(value, 2)


def difference(value: KlDifference | None) -> str:
    """``−0.0168 (95%: −0.0192 to −0.0143)``."""
    if value is None:
        return NONE
    confidence = f"{100 * value.confidence:g}%"
    return f"{_signed(value.mean)} ({confidence}: {_signed(value.low)} to {_signed(value.high)})"


def verdict(rung: RungResult) -> str:
    """``kept`` or ``dropped``."""
    return "kept" if rung.kept else "dropped"


def damage(value: float | None) -> str:
    """Three significant digits."""
    return NONE if value is None else f"{value:.3g}"


def percent(value: float | None) -> str:
    """One decimal; two below 10."""
    if value is None:
        return NONE
    shortened = round(value, 2 if abs(value) < 10 else 1) + 0.0  # a negative zero becomes zero
    return f"{shortened:.{2 if abs(value) < 10 else 1}f}%".replace("-", "−")


def ratio(value: float) -> str:
    """Three decimals and a multiplication sign."""
    return f"{value:.3f}×" if value < 1000 else f"{_power(value, 2)}×"


def all_of(count: int, noun: str) -> str:
    """``All 58 points``; one needs no ``all``."""
    return f"1 {noun}" if count == 1 else f"All {count} {noun}s"


def whole(value: int) -> str:
    """With a comma between thousands."""
    return f"{value:,}"


def size(value: float) -> str:
    """Bytes in decimal units, for axes: ``250 kB``, ``1.5 MB``."""
    if value < 1000:
        return f"{value:g} B"
    power = min(int(math.log10(value) / 3 + 1e-9), 4)
    return f"{value / 1000**power:.4g} {' kMGT'[power]}B"


def tick(value: float) -> str:
    """A label on an axis: as few digits as a nice number needs."""
    return f"{value:.6g}" if value == 0 or 1e-4 <= abs(value) < 1e5 else _power(value, 0)


def duration(seconds: float) -> str:
    """``53.2 s``, ``4 min 3 s``, ``2 h 5 min``."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def _power(value: float, decimals: int) -> str:
    mantissa, _, exponent = f"{value:.{decimals}e}".partition("e")
    return f"{mantissa}e{int(exponent)}"


def _signed(value: float) -> str:
    return f"{value:+.3g}".replace("-", "−")
