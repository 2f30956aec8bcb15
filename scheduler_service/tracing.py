"""The spans of one request: queue, prefill and decode segments below the RPC's own span.

Times come in as monotonic seconds, recorded while the work was done. Nothing is built for a request
whose RPC span is not recorded.
"""

import time
from array import array

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import Span, SpanContext, Tracer

from scheduler_service.accounting import Summary
from scheduler_service.spec import GenerationSpec
from spearhead.telemetry import record_span

ROUNDS_PER_SEGMENT = 256
LEAST_REST_S = 0.1
"""Shorter rests make no span: a prompt may rest after each of a thousand chunks."""
LEAST_BLOCK_S = 0.025
"""A client that takes an output within this time is not slow."""
_ROUND_ARRAYS = ("step_ids", "start_ns", "emit_ns", "drafted", "accepted", "emitted")


class WallClock:
    """Turns monotonic seconds into Unix nanoseconds, by the offset at its creation."""

    def __init__(self) -> None:
        self._offset_ns = time.time_ns() - time.monotonic_ns()

    def unix_ns(self, monotonic_s: float) -> int:
        """The Unix time of a monotonic time."""
        return self._offset_ns + int(monotonic_s * 1e9)


class RequestTrace:
    """The spans of one request.

    Args:
        tracer: Where they go.
        server_span: The span of the client's RPC, their parent.
        clock: Converts times.

    Attributes:
        recording: Spans are built.
        sampled: They are exported whatever becomes of the request; otherwise only if it proves slow.
        trace_id: Of the request's trace, in hexadecimal; empty = it is not sampled.
    """

    def __init__(self, tracer: Tracer, server_span: Span, clock: WallClock) -> None:
        self._tracer = tracer
        self._server_span = server_span
        self._parent = trace.set_span_in_context(server_span, Context())
        self._clock = clock
        self._segment: Span | None = None
        self._rest: tuple[float, str] | None = None
        self._segment_name = ""
        self._prefill: dict[str, int] = {}
        self._rounds: dict[str, array[int]] = {}
        self._verify_workers: list[str] = []
        self._draft_workers: list[str] = []
        self._blocked_ns = 0
        self._last_emit_s: float | None = None
        self._longest_gap_s = 0.0
        self.recording = server_span.is_recording()
        span_context = server_span.get_span_context()
        self.sampled = self.recording and span_context.trace_flags.sampled
        self.trace_id = trace.format_trace_id(span_context.trace_id) if self.sampled else ""

    @property
    def link_target(self) -> SpanContext:
        """The span that a step of this request belongs to."""
        return (self._segment or self._server_span).get_span_context()

    @property
    def role(self) -> str:
        """What the request is doing: ``queue``, ``prefill`` or ``decode``."""
        return self._segment_name

    def describe(self, spec: GenerationSpec, model: str, *, caller: str) -> None:
        """Puts the request's parameters and the name of its caller on the RPC's span. Never its text."""
        if not self.recording:
            return
        sampling = spec.sampling
        self._server_span.set_attributes(
            {
                "gen_ai.operation.name": "chat" if spec.chat else "text_completion",
                "gen_ai.provider.name": "spearhead",
                "gen_ai.request.model": model,
                "gen_ai.request.max_tokens": spec.max_tokens,
                "gen_ai.request.temperature": sampling.temperature,
                "gen_ai.request.top_p": sampling.top_p,
                "gen_ai.request.top_k": sampling.top_k,
                "gen_ai.request.seed": str(sampling.seed),  # 64 bits do not fit an attribute's integer.
                "gen_ai.request.stream": True,
                "gen_ai.response.id": spec.request_id,
                "gen_ai.response.model": model,
                "gen_ai.usage.input_tokens": len(spec.prompt_token_ids),
                "spearhead.request.id": spec.request_id,
                "spearhead.caller": caller,
            }
        )

    def queued(self, now_s: float, *, depth: int, position: int, reason: str) -> None:
        """The request waits from now on.

        Args:
            now_s: Now.
            depth: Requests that wait already.
            position: Of these, those before it.
            reason: What it waits for: ``slots`` or ``kv_blocks``.
        """
        if self.recording:
            self._close_for_rest(now_s)
            self._open("queue", now_s)
            self._set(
                {
                    "spearhead.queue.depth": depth,
                    "spearhead.queue.position": position,
                    "spearhead.queue.reason": reason,
                }
            )

    def runs_on(self, worker: str) -> None:
        """A verify worker computes the request from now on."""
        if self.recording and self._verify_workers[-1:] != [worker]:
            self._verify_workers.append(worker)

    def drafted_by(self, worker: str) -> None:
        """A draft worker proposed tokens for it."""
        if self.recording and self._draft_workers[-1:] != [worker]:
            self._draft_workers.append(worker)

    def waits_for(self, reason: str) -> None:
        """Names what a waiting request waits for.

        Args:
            reason: ``slots``, ``kv_blocks``, ``caller_limit`` or ``worker_lost``.
        """
        self._set({"spearhead.queue.reason": reason})

    def rest(self, now_s: float, reason: str) -> None:
        """A running request waits from now on, for ``reason``."""
        if self.recording:
            self._rest = (now_s, reason)

    def resume(self, now_s: float) -> None:
        """It goes on; a long rest becomes a queue span between two segments."""
        name = self._segment_name
        if self._close_for_rest(now_s):
            self._open(name, now_s)

    def prefilling(self, now_s: float) -> None:
        """Known tokens of the request are computed from now on."""
        if self.recording and self._segment_name != "prefill":
            self._open("prefill", now_s)

    def prefill_step(self, step: SpanContext | None, *, tokens: int, cached: int) -> None:
        """A step computed some of them."""
        if self._segment is None:
            return
        if step is not None:
            self._segment.add_link(step)
        for key, value in (("tokens", tokens), ("cached_tokens", cached), ("chunks", 1)):
            self._prefill[key] = self._prefill.get(key, 0) + value

    def round(
        self, *, step_id: int, start_s: float, emit_s: float, drafted: int, accepted: int, emitted: int
    ) -> None:
        """A step committed tokens.

        Args:
            step_id: Which.
            start_s: When the step began.
            emit_s: When its tokens were handed on.
            drafted: Drafts verified.
            accepted: Drafts accepted.
            emitted: Tokens handed on.
        """
        if not self.recording:
            return
        if self._segment_name != "decode":
            self._open("decode", emit_s)
        elif len(self._rounds["step_ids"]) >= ROUNDS_PER_SEGMENT:
            self._open("decode", start_s)
        if self._last_emit_s is not None:
            self._longest_gap_s = max(self._longest_gap_s, emit_s - self._last_emit_s)
        self._last_emit_s = emit_s
        start_ns, emit_ns = self._clock.unix_ns(start_s), self._clock.unix_ns(emit_s)
        for name, value in zip(
            _ROUND_ARRAYS, (step_id, start_ns, emit_ns, drafted, accepted, emitted), strict=True
        ):
            self._rounds[name].append(value)

    def event(self, name: str, now_s: float, **attributes: str | int) -> None:
        """Something rare happened to the request."""
        if self.recording:
            self._server_span.add_event(name, attributes, timestamp=self._clock.unix_ns(now_s))

    def delivered(self, start_s: float, end_s: float) -> None:
        """An output was handed to the client's stream, which took it, or never did, at ``end_s``.

        The request may have ended before: its RPC lasts until the client has everything.
        """
        self._blocked_ns += int((end_s - start_s) * 1e9)
        if self._server_span.is_recording() and end_s - start_s >= LEAST_BLOCK_S:
            self._server_span.add_event(
                "client_slow",
                {"spearhead.client.blocked_ns": int((end_s - start_s) * 1e9)},
                timestamp=self._clock.unix_ns(start_s),
            )

    def delivery_ended(self) -> None:
        """Nothing more goes to the client."""
        self._server_span.set_attribute("spearhead.client.backpressure_ns", self._blocked_ns)

    def end(self, now_s: float, summary: Summary) -> None:
        """Closes the open segment; the summary goes on the RPC's span, also that of a failure."""
        if not self.recording:
            return
        self._close_for_rest(now_s)
        self._close(now_s)
        self.recording = False
        self._server_span.set_attributes(
            {
                **_summary_attributes(summary),
                "spearhead.longest_gap_ns": int(self._longest_gap_s * 1e9),
                "spearhead.worker.verify": self._verify_workers,
                "spearhead.worker.draft": self._draft_workers,
            }
        )

    def _close_for_rest(self, now_s: float) -> bool:
        """Ends the open segment where a rest began, if that was long; a short one stays in it."""
        rest, self._rest = self._rest, None
        if rest is None or now_s - rest[0] < LEAST_REST_S or self._segment is None:
            return False
        since_s, reason = rest
        self._close(since_s)
        record_span(
            self._tracer,
            "queue",
            start_ns=self._clock.unix_ns(since_s),
            end_ns=self._clock.unix_ns(now_s),
            parent=self._parent,
            attributes={"spearhead.queue.reason": reason},
        )
        return True

    def _open(self, name: str, now_s: float) -> None:
        self._close(now_s)
        self._segment_name = name
        self._prefill = {}
        self._rounds = {key: array("q") for key in _ROUND_ARRAYS} if name == "decode" else {}
        self._segment = self._tracer.start_span(
            name, context=self._parent, start_time=self._clock.unix_ns(now_s)
        )

    def _close(self, now_s: float) -> None:
        if self._segment is None:
            return
        self._set({f"spearhead.prefill.{key}": value for key, value in self._prefill.items()})
        self._set({f"spearhead.round.{key}": values.tolist() for key, values in self._rounds.items()})
        self._segment.end(self._clock.unix_ns(now_s))
        self._segment = None

    def _set(self, attributes: dict[str, int | str | list[int]]) -> None:
        if self._segment is not None and attributes:
            self._segment.set_attributes(attributes)


def _summary_attributes(summary: Summary) -> dict[str, str | int | float | list[str]]:
    decode_s = summary.draft_s + summary.verify_s + summary.network_s
    first = summary.time_to_first_token_s
    return {
        "gen_ai.response.finish_reasons": [summary.finish.reason.value],
        "gen_ai.usage.output_tokens": summary.completion_tokens,
        "gen_ai.usage.cache_read.input_tokens": summary.cached_tokens,
        "gen_ai.latency.time_in_queue": summary.queue_s,
        **({} if first is None else {"gen_ai.latency.time_to_first_token": first}),
        "gen_ai.latency.time_in_model_prefill": summary.prefill_s,
        "gen_ai.latency.time_in_model_decode": decode_s,
        "gen_ai.latency.time_in_scheduler": summary.scheduler_s,
        "gen_ai.latency.e2e": summary.e2e_s,
        "spearhead.spec.drafted": summary.drafted_tokens,
        "spearhead.spec.accepted": summary.accepted_tokens,
        "spearhead.spec.rounds": summary.rounds,
        **(
            {"spearhead.spec.inactive_reason": inactive} if (inactive := summary.speculation_inactive) else {}
        ),
        "spearhead.preemptions": summary.preemptions,
    }
