"""Where the tokens and the time of one request went."""

from dataclasses import dataclass

from scheduler_service.output import Finish


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTimes:
    """Where the time of one step went, seconds; the parts do not overlap.

    Attributes:
        draft_s: The draft service's own time while the step waited for it.
        verify_s: The verify service's own time.
        network_s: Round trips minus the workers' own time.
    """

    draft_s: float = 0.0
    verify_s: float = 0.0
    network_s: float = 0.0

    @property
    def total_s(self) -> float:
        """All parts."""
        return self.draft_s + self.verify_s + self.network_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """A finished request, for the client, the metrics and the trace. Times in seconds.

    Attributes:
        finish: Why it ended.
        prompt_tokens: Tokens in the prompt.
        completion_tokens: Tokens generated, a stop token included.
        cached_tokens: Prompt tokens taken from the prefix cache.
        drafted_tokens: Draft tokens verified.
        accepted_tokens: Of these, kept in the output.
        rounds: Steps that committed at least one token.
        speculation_active: At least one round had drafts.
        speculation_inactive: Why no drafter worked for it, or for some rounds of it; empty = one did.
        e2e_s: Arrival to end.
        time_to_first_token_s: Arrival to the first token; ``None`` = there was none.
        queue_s: Waiting to be scheduled, or running while no step could take it along.
        prefill_s: Steps until the prompt was computed.
        draft_s: Draft service's own time in later steps.
        verify_s: Verify service's own time in later steps.
        network_s: Transport in later steps.
        scheduler_s: The rest.
        preemptions: Times that it was preempted.
    """

    finish: Finish
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    drafted_tokens: int
    accepted_tokens: int
    rounds: int
    speculation_active: bool
    speculation_inactive: str
    e2e_s: float
    time_to_first_token_s: float | None
    queue_s: float
    prefill_s: float
    draft_s: float
    verify_s: float
    network_s: float
    scheduler_s: float
    preemptions: int


class Accounting:
    """Tokens and time of one request while it lives.

    Every moment since the arrival is booked once: each method books what passed since the last one.

    Args:
        arrival_s: Monotonic time of arrival, seconds.
    """

    def __init__(self, arrival_s: float) -> None:
        self.arrival_s = arrival_s
        self.first_token_s: float | None = None
        self.last_token_s: float | None = None
        self.cached_tokens = 0
        self.drafted_tokens = 0
        self.accepted_tokens = 0
        self.rounds = 0
        self.queue_s = 0.0
        self.prefill_s = 0.0
        self.preemptions = 0
        self.started = False
        self.resting = False
        self._draft_s = 0.0
        self._verify_s = 0.0
        self._network_s = 0.0
        self._scheduler_s = 0.0
        self._booked_until_s = arrival_s

    def accepted_by_server(self, now_s: float) -> None:
        """Books checking and tokenising; from here on the request waits."""
        self._scheduler_s += self._elapse(now_s)

    def start(self, now_s: float) -> None:
        """As :meth:`scheduled`, and the request ran at least once."""
        self.started = True
        self.scheduled(now_s)

    def scheduled(self, now_s: float) -> None:
        """Books the wait; from here on the request runs."""
        self.resting = False
        self.queue_s += self._elapse(now_s)

    def rest(self, now_s: float) -> None:
        """From here on a running request waits: no step takes it along."""
        if not self.resting:
            self._scheduler_s += self._elapse(now_s)
            self.resting = True

    def resume(self, now_s: float) -> None:
        """Books such a wait."""
        if self.resting:
            self.scheduled(now_s)

    def prefill_step(self, now_s: float) -> None:
        """Books a step that computed tokens known before."""
        self.prefill_s += self._elapse(now_s)

    def decode_step(self, now_s: float, times: StepTimes) -> None:
        """Books a step of a request whose prompt was computed before it."""
        self._draft_s += times.draft_s
        self._verify_s += times.verify_s
        self._network_s += times.network_s
        self._scheduler_s += max(0.0, self._elapse(now_s) - times.total_s)

    def committed(self, now_s: float, *, kept: int, drafted: int, accepted: int) -> int:
        """Counts a verification that committed tokens.

        Args:
            now_s: Now.
            kept: Tokens that became output, at least 1; fewer than committed when the output ends within.
            drafted: Drafts that were verified.
            accepted: Drafts that the target agreed with.

        Returns:
            Of the accepted drafts, those that count.
        """
        self.rounds += 1
        self.drafted_tokens += drafted
        # Of a run that the end of the output cuts, the last kept token counts as the target's own, so
        # that accepted + rounds is the number of tokens of the output.
        counted = min(accepted, kept - 1)
        self.accepted_tokens += counted
        if self.first_token_s is None:
            self.first_token_s = now_s
        self.last_token_s = now_s
        return counted

    def preempted(self) -> None:
        """Counts a preemption; from the last step on the request waits."""
        self.preemptions += 1

    def summary(
        self,
        now_s: float,
        finish: Finish,
        *,
        prompt_tokens: int,
        completion_tokens: int,
        speculation_active: bool,
        speculation_inactive: str,
    ) -> Summary:
        """Closes the books."""
        self.resume(now_s)
        self._scheduler_s += self._elapse(now_s)
        first = self.first_token_s
        return Summary(
            finish=finish,
            prompt_tokens=prompt_tokens,
            completion_tokens=completion_tokens,
            cached_tokens=self.cached_tokens,
            drafted_tokens=self.drafted_tokens,
            accepted_tokens=self.accepted_tokens,
            rounds=self.rounds,
            speculation_active=speculation_active,
            speculation_inactive=speculation_inactive,
            e2e_s=now_s - self.arrival_s,
            time_to_first_token_s=None if first is None else first - self.arrival_s,
            queue_s=self.queue_s,
            prefill_s=self.prefill_s,
            draft_s=self._draft_s,
            verify_s=self._verify_s,
            network_s=self._network_s,
            scheduler_s=self._scheduler_s,
            preemptions=self.preemptions,
        )

    def _elapse(self, now_s: float) -> float:
        elapsed = max(0.0, now_s - self._booked_until_s)
        self._booked_until_s = max(self._booked_until_s, now_s)
        return elapsed
