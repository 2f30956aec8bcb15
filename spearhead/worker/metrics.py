"""Prometheus metrics of a model service."""

from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from spearhead.model.engine import Failure

_STEP_BUCKETS = (
    0.0005, 0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1, 2, 5,
)  # fmt: skip


class WorkerMetrics:
    """What a worker counts; the names carry the worker's kind.

    Args:
        registry: Of this process.
        worker: ``verify`` or ``draft``.
    """

    def __init__(self, registry: CollectorRegistry, worker: str) -> None:
        prefix = f"spearhead_{worker}"

        def gauge(name: str, text: str, labels: tuple[str, ...] = ()) -> Gauge:
            return Gauge(f"{prefix}_{name}", text, labels, registry=registry)

        self._steps = Counter(f"{prefix}_steps", "Messages computed.", registry=registry)
        self._tokens = Counter(f"{prefix}_tokens", "Tokens computed, drafts included.", registry=registry)
        self._item_errors = Counter(
            f"{prefix}_item_errors", "Items that could not be computed.", ("reason",), registry=registry
        )
        self._seconds = Histogram(
            f"{prefix}_step_seconds", "Time in the model thread.", buckets=_STEP_BUCKETS, registry=registry
        )
        self._sequences = gauge("sequences", "Sequences that hold KV pages.")
        self._usage = gauge("kv_cache_usage_perc", "Share of KV pages that sequences hold, 0 to 1.")
        self._weight_bytes = gauge("weight_bytes", "Bytes of weights in memory.")
        self._kv_bytes = gauge("kv_cache_bytes", "Bytes of the KV cache.")
        self._variant = gauge("variant_info", "1 for the weights that are served.", ("variant",))

    def set_sizes(self, *, weight_bytes: int, kv_bytes: int) -> None:
        """Publishes what the model holds in memory."""
        self._weight_bytes.set(weight_bytes)
        self._kv_bytes.set(kv_bytes)

    def set_variant(self, variant: str) -> None:
        """Publishes the served variant."""
        self._variant.clear()
        self._variant.labels(variant).set(1)

    def step(self, tokens: int, compute_ns: int) -> None:
        """Counts one message."""
        self._steps.inc()
        self._tokens.inc(tokens)
        self._seconds.observe(compute_ns / 1e9)

    def item_errors(self, outcomes: Iterable[object]) -> None:
        """Counts the items of a message that failed."""
        for outcome in outcomes:
            if isinstance(outcome, Failure):
                self._item_errors.labels(outcome.reason.name.lower()).inc()

    def set_sequences(self, count: int, *, held_pages: int, page_count: int) -> None:
        """Publishes sequences and pages as they are now."""
        self._sequences.set(count)
        self._usage.set(held_pages / page_count if page_count else 0.0)
