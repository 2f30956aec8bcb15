"""The scheduler's metrics. Names and meanings mirror vLLM's where there is a counterpart."""

from collections.abc import Callable
from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from scheduler_service.accounting import Summary
from scheduler_service.validation import MAX_DRAFT_TOKENS

# A step of a small model takes a few milliseconds, so the buckets are fine below 10 ms.
_TOKEN_BUCKETS_S = (
    0.0005, 0.001, 0.0015, 0.002, 0.003, 0.004, 0.005, 0.006, 0.008, 0.01, 0.0125, 0.016, 0.02, 0.022, 0.025,
    0.03, 0.04, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1, 2.5, 10,
)  # fmt: skip
_REQUEST_BUCKETS_S = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160,
    640,
)  # fmt: skip
_STEP_TOKEN_BUCKETS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)


class SchedulerMetrics:
    """What the scheduler measures.

    Args:
        registry: The process's registry.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        def counter(name: str, text: str, labels: tuple[str, ...] = ()) -> Counter:
            return Counter(f"spearhead_{name}", text, labels, registry=registry)

        def gauge(name: str, text: str) -> Gauge:
            return Gauge(f"spearhead_{name}", text, registry=registry)

        def histogram(name: str, text: str, buckets: tuple[float, ...] = _REQUEST_BUCKETS_S) -> Histogram:
            return Histogram(f"spearhead_{name}", text, buckets=buckets, registry=registry)

        self._running = gauge("num_requests_running", "Requests in the running batch.")
        self._waiting = gauge("num_requests_waiting", "Requests that wait to run.")
        self._kv_usage = gauge("kv_cache_usage_perc", "Share of the target's KV pages in use, 0..1.")
        self._last_step_age = gauge(
            "last_step_age_seconds", "Since the engine last finished a step, or since work came."
        )
        self.draft_up = gauge("draft_up", "Connections to draft services that agree; 0 = plain decoding.")
        self.verify_up = gauge("verify_up", "Verify services that are connected and agree; 0 = none.")
        self.prediction_ratio = gauge(
            "step_prediction_ratio", "Measured over predicted time of the target's steps, moving average."
        )
        self._time_to_first_token = histogram("time_to_first_token_seconds", "Arrival to first token.")
        self._inter_token = histogram(
            "inter_token_latency_seconds", "Time between outputs of a request.", _TOKEN_BUCKETS_S
        )
        self._step_time = histogram("step_time_seconds", "Time of one engine step.", _TOKEN_BUCKETS_S)
        self._e2e = histogram("e2e_request_latency_seconds", "Arrival to end.")
        self._queue = histogram("request_queue_time_seconds", "Waiting to be scheduled.")
        self._prefill = histogram("request_prefill_time_seconds", "Steps until the prompt was computed.")
        self._inference = histogram(
            "request_inference_time_seconds", "From being scheduled to the end, without waiting."
        )
        self._step_tokens = histogram(
            "iteration_tokens_total", "Tokens of one engine step, drafts included.", _STEP_TOKEN_BUCKETS
        )
        self._decode = histogram("request_decode_time_seconds", "First token to end.")
        self._prompt_tokens = counter("prompt_tokens", "Prompt tokens of requests that started.")
        self._generation_tokens = counter("generation_tokens", "Tokens generated.")
        self._cache_queries = counter(
            "prefix_cache_queries", "Prompt tokens that were looked for in the prefix cache."
        )
        self._cache_hits = counter("prefix_cache_hits", "Prompt tokens taken from the prefix cache.")
        self._success = counter("request_success", "Requests that finished.", ("finished_reason",))
        self._failure = counter("request_failure", "Requests that failed.", ("reason",))
        self._drafts = counter("spec_decode_num_drafts", "Runs of drafts verified.")
        self._draft_tokens = counter("spec_decode_num_draft_tokens", "Draft tokens verified.")
        self._accepted = counter("spec_decode_num_accepted_tokens", "Draft tokens accepted.")
        accepted_at = counter(
            "spec_decode_num_accepted_tokens_per_pos",
            "Accepted drafts by position in the run.",
            ("position",),
        )
        self._accepted_at_position = [accepted_at.labels(position) for position in range(MAX_DRAFT_TOKENS)]
        self._preemptions = counter("num_preemptions", "Requests preempted and computed again.")
        self._moves = counter("requests_moved", "Requests that lost their worker and went to another one.")
        self._stale = counter("stale_replies", "Replies that came too late and were dropped.", ("worker",))
        self._draft_failures = counter("draft_failures", "Messages to the draft service that failed.")
        self._step_failures = counter("step_failures", "Steps that the verify service did not finish.")
        self._round_counts = _RoundCounts()

    def watch(
        self,
        *,
        running: Callable[[], int],
        waiting: Callable[[], int],
        kv_cache_usage: Callable[[], float],
        last_step_age_s: Callable[[], float],
    ) -> None:
        """Ties gauges to their source, so that they are always true."""
        self._running.set_function(running)
        self._waiting.set_function(waiting)
        self._kv_usage.set_function(kv_cache_usage)
        self._last_step_age.set_function(last_step_age_s)

    def started(self, prompt_tokens: int, queue_s: float, *, trace_id: str) -> None:
        """A request was scheduled for the first time.

        Here and below, ``trace_id`` is that of the request and becomes an exemplar; empty = not recorded.
        """
        self._prompt_tokens.inc(prompt_tokens)
        self._queue.observe(queue_s, _exemplar(trace_id))

    def prefix_cache(self, *, queried: int, found: int) -> None:
        """The prefix cache was asked for the prompt of a new request; both in tokens."""
        self._cache_queries.inc(queried)
        self._cache_hits.inc(found)

    def step(self, duration_s: float, *, tokens: int) -> None:
        """A step of so many tokens ended; its rounds are counted now, all at once."""
        self._step_time.observe(duration_s)
        self._step_tokens.observe(tokens)
        counts, self._round_counts = self._round_counts, _RoundCounts()
        self._generation_tokens.inc(counts.kept)
        if counts.drafts:
            self._drafts.inc(counts.drafts)
            self._draft_tokens.inc(counts.drafted)
            self._accepted.inc(counts.accepted)
            for position, count in enumerate(counts.at_position):
                if count:
                    self._accepted_at_position[position].inc(count)

    def round(
        self, *, kept: int, drafted: int, accepted: int, since_last_s: float | None, trace_id: str
    ) -> None:
        """A step committed tokens for one request; counted with :meth:`step`.

        Args:
            kept: Tokens of the output.
            drafted: Drafts verified.
            accepted: Drafts accepted.
            since_last_s: Since the tokens before; ``None`` = these are the first.
        """
        if since_last_s is not None:
            self._inter_token.observe(since_last_s, _exemplar(trace_id))
        counts = self._round_counts
        counts.kept += kept
        if drafted:
            counts.drafts += 1
            counts.drafted += drafted
            counts.accepted += accepted
            for position in range(accepted):
                counts.at_position[position] += 1

    def first_token(self, elapsed_s: float, *, trace_id: str) -> None:
        """The first token of a request was committed."""
        self._time_to_first_token.observe(elapsed_s, _exemplar(trace_id))

    def finished(self, summary: Summary, *, trace_id: str) -> None:
        """A request finished."""
        exemplar = _exemplar(trace_id)
        self._success.labels(summary.finish.reason.value).inc()
        self._e2e.observe(summary.e2e_s, exemplar)
        if summary.time_to_first_token_s is not None:
            self._prefill.observe(summary.prefill_s, exemplar)
            self._decode.observe(summary.e2e_s - summary.time_to_first_token_s, exemplar)
            self._inference.observe(summary.e2e_s - summary.queue_s, exemplar)

    def failed(self, reason: str, summary: Summary, *, trace_id: str) -> None:
        """A request failed or was cancelled; ``reason`` is that of its error."""
        self._failure.labels(reason).inc()
        self._e2e.observe(summary.e2e_s, _exemplar(trace_id))

    def preempted(self) -> None:
        """A request was preempted."""
        self._preemptions.inc()

    def moved(self) -> None:
        """A request lost its worker and goes to another one."""
        self._moves.inc()

    def stale_reply(self, worker: str) -> None:
        """A reply of ``worker`` (``verify`` or ``draft``) came too late."""
        self._stale.labels(worker).inc()

    def draft_failed(self) -> None:
        """A message to the draft service failed."""
        self._draft_failures.inc()

    def step_failed(self) -> None:
        """A whole step failed."""
        self._step_failures.inc()


@dataclass(slots=True)
class _RoundCounts:
    """What the rounds of one step add up to: a counter's lock is dear when 256 requests share a step."""

    kept: int = 0
    drafts: int = 0
    drafted: int = 0
    accepted: int = 0
    at_position: list[int] = field(default_factory=lambda: [0] * MAX_DRAFT_TOKENS)


def _exemplar(trace_id: str) -> dict[str, str] | None:
    return {"trace_id": trace_id} if trace_id else None
