"""Which tokens were late, and why: each gap against the same request's typical one.

With ``t`` the typical gap and ``n`` the tokens that it brings, a gap ``g`` with ``m`` tokens is late by
``g - m t/n = (g - t) + t (1 - m/n)``. The first term is divided among the causes, each against its own
typical time; the second is what rejected drafts, or none, cost. The terms add up exactly, up to the
difference between the sum of medians and the median of sums.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from spearhead.trace.records import Request, Round
from spearhead.trace.tiles import Cause, Tile, in_words

LATE_FACTOR = 1.5
"""Without an objective, a gap is late beyond so many typical ones."""
LEAST_EXCESS_NS = 1_000_000
_ENOUGH_GAPS = 8
_ENOUGH_REQUESTS = 4
# What a first token cannot do without; the rest of its time is somebody's fault.
_OWN_WORK = (Cause.OWN_PREFILL, Cause.VERIFY, Cause.DRAFT, Cause.NETWORK, Cause.SCHEDULER)


@dataclass(frozen=True, slots=True, kw_only=True)
class Objectives:
    """What is late, nanoseconds; ``None`` = by comparison with the typical gap.

    Attributes:
        itl_ns: Longest gap between outputs.
        ttft_ns: Longest time to the first token.
    """

    itl_ns: int | None = None
    ttft_ns: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """The time before one output, from the one before it, or from the arrival.

    Attributes:
        index: Number of the round, 0 = the first token.
        token_index: Number of its first token in the output.
        round: What came.
        start_ns: Start.
        end_ns: When the client's stream took the output.
        tiles: What the time was spent on; they add up to the gap.
        last: Nothing came after it.
    """

    index: int
    token_index: int
    round: Round
    start_ns: int
    end_ns: int
    tiles: tuple[Tile, ...]
    last: bool

    @property
    def duration_ns(self) -> int:
        """Its length."""
        return self.end_ns - self.start_ns

    @property
    def parts(self) -> dict[Cause, int]:
        """Nanoseconds by cause."""
        parts: dict[Cause, int] = {}
        for tile in self.tiles:
            parts[tile.cause] = parts.get(tile.cause, 0) + tile.duration_ns
        return parts

    def note(self, cause: Cause) -> str:
        """What the longest tile of a cause says; of others' prompts, what all their tiles say together."""
        tiles = [tile for tile in self.tiles if tile.cause is cause]
        if not tiles:
            return ""
        longest = max(tiles, key=lambda tile: tile.duration_ns)
        if longest.prompts is None:
            return longest.note
        # Something else may divide the time of a step into several tiles.
        return in_words({t.prompts.step_id: t.prompts for t in tiles if t.prompts is not None}.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Typical:
    """A typical gap.

    Attributes:
        gap_ns: Its length.
        parts: Nanoseconds by cause.
        emitted: Tokens that it brings.
        drafted: Drafts that it verifies.
    """

    gap_ns: float
    parts: Mapping[Cause, float]
    emitted: float
    drafted: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LateToken:
    """One late output.

    Attributes:
        request: Whose.
        gap: The time before it.
        typical_ns: What the gap would typically be.
        excess_ns: How much later it came than it should have.
        cause: What it is mostly due to.
        note: More about that; possibly empty.
        excess_parts: The causes' shares of the excess; negative ones were faster than usual.
    """

    request: Request
    gap: Gap
    typical_ns: float
    excess_ns: float
    cause: Cause
    note: str
    excess_parts: Mapping[Cause, float]


def typical_gap(gaps: Sequence[Gap], everybodys: Sequence[Gap]) -> Typical | None:
    """The median gap between outputs of a request, or of all of them where it has too few.

    Args:
        gaps: Of the request.
        everybodys: Of all requests.

    Returns:
        ``None`` where there are no gaps between outputs at all.
    """
    own = [gap for gap in gaps if _is_ordinary(gap)]
    sample = own if len(own) >= _ENOUGH_GAPS else [gap for gap in everybodys if _is_ordinary(gap)]
    if not sample:
        return None
    return Typical(
        gap_ns=median(gap.duration_ns for gap in sample),
        parts=_median_parts(sample),
        emitted=median(gap.round.emitted for gap in sample),
        drafted=median(gap.round.drafted for gap in sample),
    )


def _is_ordinary(gap: Gap) -> bool:
    """Outputs that waited behind one that the client did not take come all at once, which tells nothing."""
    return gap.index > 0 and gap.duration_ns > 0 and Cause.SLOW_READER not in gap.parts


def late_token(
    request: Request, gap: Gap, typical: Typical | None, first_gaps: Sequence[Gap], objectives: Objectives
) -> LateToken | None:
    """Judges one gap.

    Args:
        request: Whose.
        gap: The gap.
        typical: Its typical gap between outputs.
        first_gaps: Of all requests, to know what a first token typically needs.
        objectives: What is late.

    Returns:
        ``None`` when it is not late.
    """
    if gap.index == 0:
        return _late_first(request, gap, first_gaps, objectives)
    return None if typical is None else _late_later(request, gap, typical, objectives)


def _late_later(request: Request, gap: Gap, typical: Typical, objectives: Objectives) -> LateToken | None:
    excess = {cause: ns - typical.parts.get(cause, 0.0) for cause, ns in gap.parts.items()}
    missing_ns = _missing_tokens_ns(gap, typical)
    if missing_ns and gap.round.drafted:
        excess[Cause.REJECTION] = missing_ns
    elif missing_ns:
        excess[Cause.DRAFT] = excess.get(Cause.DRAFT, 0.0) + missing_ns
    excess_ns = gap.duration_ns - typical.gap_ns + missing_ns
    if objectives.itl_ns is not None:
        late = gap.duration_ns > objectives.itl_ns or (
            missing_ns > 0 and gap.duration_ns > objectives.itl_ns * gap.round.emitted
        )
    else:
        slow = gap.duration_ns > LATE_FACTOR * typical.gap_ns
        starved = missing_ns > 0 and gap.round.emitted == 1 and typical.emitted >= 2
        late = (slow or starved) and excess_ns >= LEAST_EXCESS_NS
    return _named(request, gap, typical.gap_ns, excess_ns, excess) if late else None


def _missing_tokens_ns(gap: Gap, typical: Typical) -> float:
    """What it costs that fewer tokens came than usual; the end of an output cuts its last round."""
    if gap.last or gap.round.emitted >= typical.emitted or not typical.drafted:
        return 0.0
    if gap.round.drafted and gap.round.accepted == gap.round.drafted:
        return 0.0  # the plan asked for fewer
    return typical.gap_ns * (1 - gap.round.emitted / typical.emitted)


def _late_first(
    request: Request, gap: Gap, first_gaps: Sequence[Gap], objectives: Objectives
) -> LateToken | None:
    parts = gap.parts
    usual = _median_parts(first_gaps) if len(first_gaps) >= _ENOUGH_REQUESTS else parts
    typical = {cause: min(parts[cause], usual.get(cause, 0.0)) for cause in _OWN_WORK if cause in parts}
    excess = {cause: ns - typical.get(cause, 0.0) for cause, ns in parts.items()}
    typical_ns = float(sum(typical.values()))
    excess_ns = gap.duration_ns - typical_ns
    if objectives.ttft_ns is not None:
        late = gap.duration_ns > objectives.ttft_ns
    else:
        late = gap.duration_ns > LATE_FACTOR * typical_ns and excess_ns >= LEAST_EXCESS_NS
    return _named(request, gap, typical_ns, excess_ns, excess) if late else None


def _named(
    request: Request, gap: Gap, typical_ns: float, excess_ns: float, excess: Mapping[Cause, float]
) -> LateToken:
    cause = max(excess, key=lambda cause: excess[cause])
    if excess[cause] <= 0:  # as slow as ever: the objective is out of reach
        parts = gap.parts
        cause = max(parts, key=lambda cause: parts[cause])
    note = gap.note(cause)
    if cause is Cause.REJECTION:
        note = f"{gap.round.accepted} of {gap.round.drafted} drafts accepted"
    elif cause is Cause.DRAFT and gap.index and not gap.round.drafted:
        note = note if "did not answer" in note else "no drafts came for this step"
    return LateToken(
        request=request,
        gap=gap,
        typical_ns=typical_ns,
        excess_ns=excess_ns,
        cause=cause,
        note=note,
        excess_parts=excess,
    )


def _median_parts(gaps: Sequence[Gap]) -> dict[Cause, float]:
    parts = [gap.parts for gap in gaps]
    return {
        cause: median(part.get(cause, 0) for part in parts) for cause in {c for part in parts for c in part}
    }
