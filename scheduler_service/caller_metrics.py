"""The books of the callers as metrics; the label is the name of a bearer token, never the token."""

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from scheduler_service.callers import Callers

_LABELS = ("caller",)


class CallerMetrics(Collector):
    """Reads the accounts when somebody asks for metrics.

    Args:
        callers: The accounts.
    """

    def __init__(self, callers: Callers) -> None:
        self._callers = callers

    def collect(self) -> Iterator[Metric]:
        """One family for each book, with a sample for each caller."""
        running = GaugeMetricFamily(
            "spearhead_caller_requests_running", "Running requests of a caller.", labels=_LABELS
        )
        waiting = GaugeMetricFamily(
            "spearhead_caller_requests_waiting", "Waiting requests of a caller.", labels=_LABELS
        )
        requests = CounterMetricFamily(
            "spearhead_caller_requests", "Requests of a caller that were let in.", labels=_LABELS
        )
        tokens = CounterMetricFamily(
            "spearhead_caller_generation_tokens", "Tokens of a caller's ended requests.", labels=_LABELS
        )
        refused = CounterMetricFamily(
            "spearhead_caller_requests_refused",
            "Requests of a caller that met a limit of its bearer token.",
            labels=(*_LABELS, "limit"),
        )
        for name, account in self._callers.accounts.items():
            running.add_metric((name,), account.running)
            waiting.add_metric((name,), account.waiting)
            requests.add_metric((name,), account.requests)
            tokens.add_metric((name,), account.output_tokens)
            for limit, count in account.refused.items():
                refused.add_metric((name, limit), count)
        yield from (running, waiting, requests, tokens, refused)
