"""Which prompts make progress in a step, and by how many tokens."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from scheduler_service.step_cost import StepCost
from scheduler_service.step_plan import Limiting, PromptView

_SLO_POINTS = 10.0


class Chunk(NamedTuple):
    """Some tokens of one prompt.

    Attributes:
        sequence_id: Whose.
        token_count: At least 1; a multiple of the granule unless it is the last chunk.
        context_length: Tokens before it.
        last: The prompt ends with it, so a token is sampled.
        page_count: New pages to keep for it. A new sequence may find any part of its prompt in the prefix
            cache, in pages that count from then on, so it is given those of all its prompt.
    """

    sequence_id: int
    token_count: int
    context_length: int
    last: bool
    page_count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """What all chunks of a step may take together.

    Attributes:
        tokens: Rows.
        pages: New KV pages.
        page_size: Tokens in a page.
        granule: Chunks that do not end their prompt are multiples of it.
        sequence_tokens: Rows of one sequence; None = no limit of its own.
    """

    tokens: int
    pages: int
    page_size: int
    granule: int
    sequence_tokens: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Clock:
    """The step without prompt chunks, to which they add their time.

    Attributes:
        cost: The verifier's cost model.
        factor: Measured over predicted time.
        rows: Rows of decoding sequences and drafts.
        fixed_s: Their attention, the draft passes and the round trips, factors included.
        budget_s: What the step may take.
    """

    cost: StepCost
    factor: float
    rows: int
    fixed_s: float
    budget_s: float

    def keeps_budget(self, tokens: int, attention_s: float, sampled: int) -> bool:
        """Whether the step is in time with these chunk rows, their attention and prompts that end."""
        forward_s = self.cost.forward.at(self.rows + tokens) + self.cost.head.at(self.rows + sampled)
        return self.fixed_s + self.factor * (forward_s + attention_s) <= self.budget_s


def by_urgency(prompts: Sequence[PromptView], *, aging_s: float) -> list[PromptView]:
    """Most urgent first: by priority that grows with waiting, first come first served among equals.

    A prompt gains a point every ``aging_s`` without bound, so that none starves, and up to ten more while it
    uses up its TTFT SLO.
    """

    def urgency(prompt: PromptView) -> float:
        slo_s = prompt.ttft_slo_s
        used = 0.0 if slo_s is None else min(prompt.waited_s / max(slo_s, 1e-9), 1.0)
        return -(prompt.priority + prompt.waited_s / aging_s + _SLO_POINTS * used)

    return sorted(prompts, key=urgency)


def choose_chunks(
    prompts: Sequence[PromptView], room: Room, clock: Clock | None
) -> tuple[list[Chunk], Limiting]:
    """The largest chunks, in order of urgency; the first that does not fit as a whole is the last chosen.

    One that is only longer than the worker takes at once does not end the choice: others may go beside it.

    Args:
        prompts: Most urgent first.
        room: Rows and pages.
        clock: Limits the time; None = no limit.

    Returns:
        The chunks and what kept them from being larger.
    """
    chosen: list[Chunk] = []
    tokens, pages, attention_s, ended = 0, room.pages, 0.0, 0
    for prompt in prompts:
        context, pending = prompt.context_length, prompt.pending_token_count
        whole = new_pages(context, pending, room.page_size)
        paged = tokens_in_pages(context, pages, room.page_size) if context or whole <= pages else 0
        wanted = pending
        if room.sequence_tokens is not None and pending > room.sequence_tokens:
            wanted = room.sequence_tokens - room.sequence_tokens % room.granule
        count = min(wanted, room.tokens - tokens, paged)
        limiting: Limiting = "none"
        if count < wanted:
            limiting = "tokens" if room.tokens - tokens <= paged else "pages"
            count -= count % room.granule
        if clock and count and not _in_time(clock, prompt, count, tokens, attention_s, ended):
            limiting = "slo"
            low, high = 0, -(-count // room.granule)  # In granules: low keeps the budget, high does not.
            while high - low > 1:
                middle = (low + high) // 2
                if _in_time(clock, prompt, middle * room.granule, tokens, attention_s, ended):
                    low = middle
                else:
                    high = middle
            count = low * room.granule
        if count:
            last = count == pending
            own_pages = new_pages(context, count, room.page_size) if context else whole
            chosen.append(Chunk(prompt.sequence_id, count, context, last, own_pages))
            tokens += count
            pages -= own_pages
            ended += last
            attention_s += clock.cost.attention(count, context) if clock else 0.0
        if limiting != "none":
            return chosen, limiting
    return chosen, "none"


def _in_time(
    clock: Clock, prompt: PromptView, count: int, tokens: int, attention_s: float, ended: int
) -> bool:
    own_s = clock.cost.attention(count, prompt.context_length)
    last = count == prompt.pending_token_count
    return clock.keeps_budget(tokens + count, attention_s + own_s, ended + last)


def new_pages(context_length: int, count: int, page_size: int) -> int:
    """Pages that ``count`` tokens behind ``context_length`` need beyond those the sequence has."""
    return -(-(context_length + count) // page_size) + -context_length // page_size


def tokens_in_pages(context_length: int, pages: int, page_size: int) -> int:
    """Tokens that fit behind ``context_length`` into its last page and ``pages`` more."""
    return -context_length % page_size + pages * page_size
