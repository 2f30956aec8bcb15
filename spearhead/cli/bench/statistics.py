"""Numbers from outcomes: percentiles, throughput, acceptance, overhead; pure functions."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise

from spearhead.cli.bench.drive import Outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class Percentiles:
    """Of a sample, in milliseconds; all NaN for an empty sample."""

    p50: float
    p90: float
    p99: float
    maximum: float

    @classmethod
    def of(cls, seconds: Iterable[float]) -> "Percentiles":
        """Percentiles by nearest rank."""
        ordered = sorted(seconds)
        ranks = [percentile(ordered, share) * 1e3 for share in (0.5, 0.9, 0.99, 1.0)]
        return cls(p50=ranks[0], p90=ranks[1], p99=ranks[2], maximum=ranks[3])


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """One run.

    Attributes:
        requests: Sent.
        completed: Ended with their last message.
        cancelled: Hung up as planned.
        failed: Ended with an error.
        errors: Texts of the errors, each once.
        duration_s: From the first request sent to the last one ended.
        output_tokens: That arrived, of all requests.
        tokens_per_s: ``output_tokens`` over ``duration_s``.
        ttft_ms: Sent to first token.
        itl_ms: Between tokens: the gap before a delta, spread over its tokens.
        gap_ms: Between deltas, whatever their length: what a reader sees as a stall.
        e2e_ms: Sent to last message.
        acceptance: Share of drafts that were accepted; ``None`` without drafts.
        tokens_per_round: Tokens that one verification step committed to a request, on average.
        overhead_ms_per_step: Scheduler, transport and serialisation, per verification step.
    """

    requests: int
    completed: int
    cancelled: int
    failed: int
    errors: tuple[str, ...]
    duration_s: float
    output_tokens: int
    tokens_per_s: float
    ttft_ms: Percentiles
    itl_ms: Percentiles
    gap_ms: Percentiles
    e2e_ms: Percentiles
    acceptance: float | None
    tokens_per_round: float | None
    overhead_ms_per_step: Percentiles


def summarise(outcomes: Sequence[Outcome]) -> Summary:
    """The numbers of one run."""
    finished = [outcome.finished for outcome in outcomes if outcome.finished is not None]
    complete = [outcome for outcome in outcomes if outcome.finished is not None]
    duration_s = max((o.done_s for o in outcomes), default=0.0) - min(
        (o.sent_s for o in outcomes), default=0.0
    )
    output_tokens = sum(outcome.token_count for outcome in outcomes)
    drafted = sum(end.speculation.drafted_tokens for end in finished)
    accepted = sum(end.speculation.accepted_tokens for end in finished)
    rounds = sum(end.speculation.rounds for end in finished)
    return Summary(
        requests=len(outcomes),
        completed=len(finished),
        cancelled=sum(outcome.cancelled for outcome in outcomes),
        failed=sum(bool(outcome.error) for outcome in outcomes),
        errors=tuple(sorted({outcome.error for outcome in outcomes if outcome.error})),
        duration_s=duration_s,
        output_tokens=output_tokens,
        tokens_per_s=output_tokens / duration_s if duration_s else 0.0,
        ttft_ms=Percentiles.of(o.token_times_s[0][0] - o.sent_s for o in complete if o.token_times_s),
        itl_ms=Percentiles.of(gap for o in complete for gap in token_gaps_s(o)),
        gap_ms=Percentiles.of(gap for o in complete for gap, _ in delta_gaps_s(o)),
        e2e_ms=Percentiles.of(o.done_s - o.sent_s for o in complete),
        acceptance=accepted / drafted if drafted else None,
        tokens_per_round=(accepted + rounds) / rounds if rounds else None,
        overhead_ms_per_step=Percentiles.of(
            (end.timings.network_s + end.timings.scheduler_s) / end.speculation.rounds
            for end in finished
            if end.speculation.rounds
        ),
    )


def delta_gaps_s(outcome: Outcome) -> list[tuple[float, int]]:
    """The gap before each delta but the first, with the number of its tokens."""
    return [(later - earlier, count) for (earlier, _), (later, count) in pairwise(outcome.token_times_s)]


def token_gaps_s(outcome: Outcome) -> list[float]:
    """The gap before each token but those of the first delta."""
    return [gap / count for gap, count in delta_gaps_s(outcome) for _ in range(count)]


def percentile(ordered: Sequence[float], share: float) -> float:
    """Nearest-rank percentile of a sorted sample; NaN when it is empty."""
    if not ordered:
        return math.nan
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def as_json(value: object) -> object:
    """A summary as JSON values; NaN becomes null."""
    if isinstance(value, Summary | Percentiles):
        return {key: as_json(item) for key, item in asdict(value).items()}
    if isinstance(value, dict):
        return {key: as_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [as_json(item) for item in value]
    if isinstance(value, float):
        return None if math.isnan(value) else round(value, 4)
    return value
