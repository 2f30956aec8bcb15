"""From values to positions, and which values deserve a tick."""

import math
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

# Mantissas of ticks within a decade, from few to many.
_MANTISSAS = ((1,), (1, 3), (1, 2, 5), (1, 1.5, 2, 3, 5, 7), (1, 2, 3, 4, 5, 6, 7, 8, 9))
_ROUNDING = 1e-9


class Scale(Protocol):
    """One axis."""

    def __call__(self, value: float) -> float:
        """The position of a value of the domain."""

    def shows(self, value: float) -> bool:
        """Whether the axis has a place for the value."""

    def ticks(self, wanted: int) -> tuple[float, ...]:
        """About as many nice values as wanted, rising, all within the domain."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearScale:
    """Equal steps for equal differences.

    Attributes:
        low: Least value, at ``start``.
        high: Largest value, at ``end``; more than ``low``.
        start: Position.
        end: Position; may be less than ``start``.
    """

    low: float
    high: float
    start: float
    end: float

    def __post_init__(self) -> None:
        assert self.low < self.high

    def __call__(self, value: float) -> float:
        """The position of a value."""
        return self.start + (self.end - self.start) * (value - self.low) / (self.high - self.low)

    def shows(self, value: float) -> bool:
        """Whether the value lies within the domain."""
        return self.low <= value <= self.high

    def ticks(self, wanted: int) -> tuple[float, ...]:
        """See :func:`linear_ticks`."""
        return linear_ticks(self.low, self.high, wanted)

    @classmethod
    def fit(cls, values: Iterable[float], start: float, end: float, *, margin: float = 0.05) -> "LinearScale":
        """A domain that holds all values with a margin (part of the span) on both sides."""
        found = list(values) or [0.0, 1.0]
        low, high = min(found), max(found)
        pad = (high - low) * margin or abs(high) * margin or 1.0
        return cls(low=low - pad, high=high + pad, start=start, end=end)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogScale:
    """Equal steps for equal ratios; the attributes are those of :class:`LinearScale`, ``low`` positive."""

    low: float
    high: float
    start: float
    end: float

    def __post_init__(self) -> None:
        assert 0 < self.low < self.high

    def __call__(self, value: float) -> float:
        """The position of a positive value."""
        part = (math.log(value) - math.log(self.low)) / (math.log(self.high) - math.log(self.low))
        return self.start + (self.end - self.start) * part

    def shows(self, value: float) -> bool:
        """Whether the value lies within the domain; zero never does."""
        return self.low <= value <= self.high

    def ticks(self, wanted: int) -> tuple[float, ...]:
        """See :func:`log_ticks`."""
        return log_ticks(self.low, self.high, wanted)

    @classmethod
    def fit(cls, values: Iterable[float], start: float, end: float, *, margin: float = 0.06) -> "LogScale":
        """A domain that holds all positive values with a margin (part of the span of logarithms).

        Numbers too small for float64's full precision count as zero.
        """
        found = [value for value in values if value >= sys.float_info.min] or [1.0, 10.0]
        low, high = min(found), max(found)
        factor = (high / low) ** margin if high > low * (1 + _ROUNDING) else 1.5
        # The ends of float64 have no room for a margin.
        least, largest = sys.float_info.min, sys.float_info.max
        low, high = max(low / factor, least), min(high * factor, largest)
        return cls(low=low, high=high, start=start, end=end)


def linear_ticks(low: float, high: float, wanted: int) -> tuple[float, ...]:
    """Multiples of 1, 2 or 5 times a power of ten between two values.

    Args:
        low: Least.
        high: Largest; more than ``low``.
        wanted: About how many, at least 2.
    """
    step = _nice_step((high - low) / wanted)
    first = math.ceil(low / step - _ROUNDING)
    last = math.floor(high / step + _ROUNDING)
    return tuple(min(max(_clean(index * step), low), high) for index in range(first, last + 1))


def log_ticks(low: float, high: float, wanted: int) -> tuple[float, ...]:
    """Round values between two positive ones: powers of ten, or finer where those are too few.

    Args:
        low: Least, positive.
        high: Largest; more than ``low``.
        wanted: About how many, at least 2.
    """
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    every = max(1, math.ceil((last - first) / wanted))
    choices = [
        _decade_ticks(low, high, range(first, last + 1, every), mantissas)
        for mantissas in (_MANTISSAS if every == 1 else _MANTISSAS[:1])
    ]
    best = min(choices, key=lambda ticks: abs(len(ticks) - wanted))
    # Less than a factor of two or so: the axis is nearly linear there.
    return best if len(best) >= 3 or every > 1 else linear_ticks(low, high, wanted)


def _decade_ticks(
    low: float, high: float, decades: Iterable[int], mantissas: Iterable[float]
) -> tuple[float, ...]:
    values = (_clean(mantissa * 10.0**decade) for decade in decades for mantissa in mantissas)
    return tuple(value for value in values if low <= value <= high)


def _nice_step(raw: float) -> float:
    power = 10.0 ** math.floor(math.log10(raw))
    return next(mantissa * power for mantissa in (1, 2, 5, 10) if mantissa * power >= raw * (1 - _ROUNDING))


def _clean(value: float) -> float:
    """Without the last digits' noise: 0.30000000000000004 is 0.3."""
    return float(f"{value:.12g}")
