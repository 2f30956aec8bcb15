"""Predicts the time of one forward pass from the measured latencies of its operations.

A pass costs the sum over its operations: everything that depends on the number of rows (linear layers and
per-step overhead) is one curve, the output head is a curve over the rows that are sampled, and attention is
a surface over (rows, context) for each sequence. Curves are piecewise linear through the measured points,
made monotone by a running maximum, so that a noisy measurement never makes more work look cheaper. Beyond
the last point they go on with the last slope; below the first they are flat.
"""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from spearhead.errors import ConfigError

Floats = npt.NDArray[np.float64]

FAR = float(1 << 24)  # A node so far out that "beyond it" never happens; holds the extrapolation.
_LISTED_ROWS = 2049  # More than most steps have; those look it up more slowly.
FEW_ROWS = 17  # A committed token and the most drafts that the contract allows.
OPS = ("linear", "attention", "head", "overhead")


class Latency(Protocol):
    """One measurement, the fields of ``spearhead.v1.KernelLatency``."""

    @property
    def op(self) -> str:
        """One of ``linear``, ``attention``, ``head``, ``overhead``."""

    @property
    def n(self) -> int:
        """Output features, or 0."""

    @property
    def k(self) -> int:
        """Input features, or 0."""

    @property
    def rank(self) -> int:
        """Compensator rank, 0 = none."""

    @property
    def rows(self) -> int:
        """Rows of the batch; for attention, rows of one sequence."""

    @property
    def context(self) -> int:
        """For attention: tokens in the KV cache before these rows."""

    @property
    def calls_per_forward(self) -> int:
        """How often one forward pass runs it."""

    @property
    def median_us(self) -> float:
        """Median time of one call, microseconds."""


class Curve:
    """A monotone piecewise linear function of the number of rows.

    Args:
        nodes: Row counts, rising; the last is ``FAR``.
        seconds: Time at each node.
    """

    def __init__(self, nodes: Floats, seconds: Floats) -> None:
        self.nodes = nodes
        self.seconds = seconds
        # No rows cost nothing, and the first row costs what the first node does.
        start = [0.0, 1.0] if nodes[0] > 1 else [0.0]
        self._nodes_from_0 = np.concatenate((start, nodes))
        self._seconds_from_0 = np.concatenate(([0.0, *seconds[: len(start) - 1]], seconds))
        # Lists answer single look-ups ten times faster than arrays.
        self._listed: list[float] = self.at_each(np.arange(_LISTED_ROWS)).tolist()

    def at(self, rows: int) -> float:
        """Seconds for ``rows``; 0 for no rows."""
        return self._listed[rows] if rows < _LISTED_ROWS else float(self.at_each(np.array(rows)))

    def at_each(self, rows: npt.NDArray[Any]) -> Floats:
        """Seconds for each whole number in ``rows``, same shape; 0 for no rows."""
        return np.asarray(np.interp(rows, self._nodes_from_0, self._seconds_from_0))


class StepCost:
    """The cost model of one model on one machine.

    Args:
        forward: Linear layers and overhead by rows of the step.
        head: The output head by sampled rows.
        attention_rows: Row counts of the attention surface, rising.
        attention_contexts: Context lengths of the attention surface, rising.
        attention_s: The surface, shape (rows, contexts), seconds for one sequence in all layers.

    Attributes:
        few_rows_attention_s: The surface at 1..``FEW_ROWS`` rows, shape (FEW_ROWS, contexts): a decoding
            sequence with its drafts.
        sampled_pass: ``forward`` and ``head`` together, for a pass that samples every row.
    """

    def __init__(
        self,
        forward: Curve,
        head: Curve,
        attention_rows: Floats,
        attention_contexts: Floats,
        attention_s: Floats,
    ) -> None:
        self.forward = forward
        self.head = head
        self.attention_contexts = attention_contexts
        self._attention_rows = attention_rows
        self._attention_s = attention_s
        self._rows: list[float] = attention_rows.tolist()
        self._contexts: list[float] = attention_contexts.tolist()
        self._surface: list[list[float]] = attention_s.tolist()
        self.few_rows_attention_s = self._lines(FEW_ROWS)
        nodes = np.union1d(forward.nodes, head.nodes)
        self.sampled_pass = Curve(nodes, forward.at_each(nodes) + head.at_each(nodes))

    def attention(self, rows: int, context: int) -> float:
        """Seconds of attention, all layers, for one sequence.

        Args:
            rows: Query rows.
            context: Tokens in the KV cache before them.
        """
        i, u = _locate(self._rows, rows)
        j, v = _locate(self._contexts, context)
        low, high = self._surface[i], self._surface[i + 1]
        at_low = low[j] + v * (low[j + 1] - low[j])
        at_high = high[j] + v * (high[j + 1] - high[j])
        return at_low + u * (at_high - at_low)

    def predict_s(self, rows: int, attention: Iterable[tuple[int, int]], sampled_rows: int) -> float:
        """Seconds of one forward pass.

        Args:
            rows: Rows of all sequences together.
            attention: (rows, context before them) of each sequence.
            sampled_rows: Rows that go through the output head.
        """
        return (
            self.forward.at(rows)
            + self.head.at(sampled_rows)
            + sum(self.attention(own, context) for own, context in attention)
        )

    def linear_fit(self) -> "StepCost":
        """The same costs forced into ``a + b * rows + c * rows * context``: the baseline policy."""
        rows, contexts = self._attention_rows[:-1], self.attention_contexts[:-1]
        # Attention of a chunk of r rows behind c tokens looks at c + r / 2 tokens on average.
        looked_at = np.outer(rows, contexts) + (rows**2)[:, None] / 2
        measured = self._attention_s[:-1, :-1]
        slope = float((looked_at * measured).sum()) / max(float((looked_at**2).sum()), 1e-30)
        rows, contexts = np.append(rows, FAR), np.append(contexts, FAR)
        surface = slope * (np.outer(rows, contexts) + (rows**2)[:, None] / 2)
        return StepCost(_fit(self.forward), _fit(self.head), rows, contexts, surface)

    def _lines(self, rows: int) -> Floats:
        wanted = np.arange(1, rows + 1, dtype=np.float64)
        columns = [np.interp(wanted, self._attention_rows, column) for column in self._attention_s.T]
        return np.stack(columns, axis=1)


def compile_cost(latencies: Sequence[Latency]) -> StepCost:
    """Adds up the measured operations of one model.

    Raises:
        ConfigError: An unknown operation, a value out of range, or too few points to draw a curve.
    """
    groups: dict[str, dict[tuple[int, int, int], dict[tuple[int, int], float]]] = {op: {} for op in OPS}
    for entry in latencies:
        _check(entry)
        shape = groups[entry.op].setdefault((entry.n, entry.k, entry.rank), defaultdict(float))
        shape[(entry.rows, entry.context)] += entry.median_us * entry.calls_per_forward * 1e-6
    for op in ("linear", "attention", "head"):
        for shape_key, points in groups[op].items():
            if len({rows for rows, _ in points}) < 2:
                raise ConfigError(
                    f"latency table: {op} {shape_key} was measured at one row count only; "
                    "at least 2 are needed. Run `spearhead profile` again"
                )
    if not groups["linear"]:
        raise ConfigError("latency table: no 'linear' entry. Run `spearhead profile` again")
    forward = [*groups["linear"].values(), *groups["overhead"].values()]
    surface = _surface(list(groups["attention"].values()))
    return StepCost(_curve(forward), _curve(list(groups["head"].values())), *surface)


def _check(entry: Latency) -> None:
    if entry.op not in OPS:
        raise ConfigError(f"latency table: unknown operation {entry.op!r}; known: {', '.join(OPS)}")
    if entry.rows < 1 or entry.context < 0 or entry.calls_per_forward < 1:
        raise ConfigError(
            f"latency table: {entry.op} with rows={entry.rows}, context={entry.context}, "
            f"calls_per_forward={entry.calls_per_forward}; rows and calls must be at least 1, "
            "context at least 0"
        )
    if not 0 <= entry.median_us < float("inf"):
        raise ConfigError(f"latency table: {entry.op} takes {entry.median_us} us; it must be a finite time")


def _curve(groups: Sequence[dict[tuple[int, int], float]]) -> Curve:
    nodes = sorted({rows for points in groups for rows, _ in points})
    if not nodes:
        return Curve(np.array([1.0, FAR]), np.zeros(2))
    grid = np.array([*nodes, FAR])
    total = np.zeros(len(grid))
    for points in groups:
        own = sorted((rows, seconds) for (rows, _), seconds in points.items())
        total += _interpolate(grid, [rows for rows, _ in own], [seconds for _, seconds in own])
    return Curve(grid, total)


def _surface(groups: Sequence[dict[tuple[int, int], float]]) -> tuple[Floats, Floats, Floats]:
    rows = np.array([*sorted({r for points in groups for r, _ in points} or {1}), FAR])
    contexts = np.array([*sorted({c for points in groups for _, c in points} or {0}), FAR])
    total = np.zeros((len(rows), len(contexts)))
    for points in groups:
        own_rows = sorted({r for r, _ in points})
        lines = []
        for own in own_rows:
            line = sorted((c, seconds) for (r, c), seconds in points.items() if r == own)
            lines.append(_interpolate(contexts, [c for c, _ in line], [seconds for _, seconds in line]))
        # Later rows are never cheaper, also where a line is an extrapolation.
        by_rows = np.maximum.accumulate(np.stack(lines), axis=0)
        columns = [_interpolate(rows, own_rows, column.tolist()) for column in by_rows.T]
        total += np.maximum.accumulate(np.stack(columns, axis=1), axis=1)
    return rows, contexts, total


def _interpolate(grid: Floats, nodes: Sequence[float], seconds: Sequence[float]) -> Floats:
    """The monotone curve through the points, at ``grid``; the last slope holds beyond the last node."""
    rising = np.maximum.accumulate(np.asarray(seconds, dtype=np.float64))
    slope = (rising[-1] - rising[-2]) / (nodes[-1] - nodes[-2]) if len(nodes) > 1 else 0.0
    inside = np.interp(grid, np.asarray(nodes, dtype=np.float64), rising)
    return np.asarray(inside + slope * np.maximum(grid - nodes[-1], 0.0))


def _locate(nodes: Sequence[float], value: float) -> tuple[int, float]:
    """Segment and position in it; flat below the first node."""
    if value <= nodes[0]:
        return 0, 0.0
    i = bisect_right(nodes, value, 1, len(nodes) - 1) - 1
    return i, (value - nodes[i]) / (nodes[i + 1] - nodes[i])


def _fit(curve: Curve) -> Curve:
    """The least-squares line through the measured points, rising and nowhere below zero."""
    nodes, seconds = curve.nodes[:-1], curve.seconds[:-1]
    if len(nodes) == 1:
        return curve
    slope, start = np.polyfit(nodes, seconds, 1)
    slope = max(float(slope), 0.0)
    start = max(float(start) + slope, 0.0)
    return Curve(np.array([1.0, FAR]), np.array([start, start + slope * (FAR - 1.0)]))
