"""Paired bootstrap over segments (or prompts): every statistic is recomputed on the same resamples.

Tokens of a segment depend on each other, segments hardly do, so segments are drawn. Two variants of one
model fail on the same tokens; comparing them on the same draws takes that common part out, which two
independent intervals would not.

A few units agree by chance: n differences all have one sign once in 2**(n - 1) times though nothing differs,
and resamples of them know nothing else. So no p-value is less than that; intervals of fewer than six units
are too narrow (of two, one in two misses the truth) and decide nothing.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Samples = npt.NDArray[np.float64]
"""float64 ``(1 + draws,)``: a statistic on the whole sample, then on each resample."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """An estimate with its uncertainty.

    Attributes:
        value: On the whole sample.
        low: 2.5th percentile of the resamples; ``None`` with fewer than two units.
        high: 97.5th percentile.
        p_value: Two-sided, of the statistic being equal to the null value; ``None`` without one, and for a
            single unit.
    """

    value: float
    low: float | None
    high: float | None
    p_value: float | None = None


class PairedBootstrap:
    """Resamples of units, the same for every statistic.

    Args:
        unit_count: Segments or prompts, at least one.
        draws: Resamples.
        seed: Same seed and counts, same resamples.
    """

    def __init__(self, unit_count: int, *, draws: int = 2000, seed: int = 0) -> None:
        self.unit_count = unit_count
        generator = np.random.default_rng(seed)
        drawn = generator.multinomial(unit_count, np.full(unit_count, 1 / unit_count), size=draws)
        self._weights = np.vstack([np.ones((1, unit_count)), drawn])  # (1 + draws, units)

    def means(self, values: npt.NDArray[np.float32]) -> Samples:
        """Mean over the numbers of all units, each number weighing the same.

        Args:
            values: ``(units, n)``; NaN does not count, infinity does.
        """
        counts = ~np.isnan(values)
        sums = np.where(counts, values, 0.0).sum(axis=1, dtype=np.float64)
        return self.ratios(sums, counts.sum(axis=1).astype(np.float64))

    def ratios(self, numerators: Samples, denominators: Samples) -> Samples:
        """Sum of one number a unit over the sum of another, each ``(units,)``."""
        return np.asarray((self._weights @ numerators) / (self._weights @ denominators), np.float64)

    def interval(self, samples: Samples, null: float | None = None) -> Interval:
        """Summary of a statistic, computed elementwise from what the methods above returned.

        Args:
            samples: The statistic.
            null: What it would be without an effect: 0 for a difference, 1 for a ratio.
        """
        value, resampled = float(samples[0]), samples[1:]
        if self.unit_count < 2:
            return Interval(value=value, low=None, high=None)
        low, high = np.percentile(resampled, (2.5, 97.5))
        p_value = _p_value(resampled, null, self.unit_count)
        return Interval(value=value, low=float(low), high=float(high), p_value=p_value)


def _p_value(resampled: Samples, null: float | None, unit_count: int) -> float | None:
    if null is None:
        return None
    # The observed sample counts as one draw, so that no finite number of draws claims certainty.
    below, above = (resampled <= null).sum() + 1, (resampled >= null).sum() + 1
    found = min(1.0, 2 * min(below, above) / (len(resampled) + 1))
    return float(max(found, 2.0 ** (1 - unit_count)))
