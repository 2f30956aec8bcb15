"""The state of one request, from admission to its end."""

from array import array
from collections.abc import MutableSequence

from scheduler_service.accounting import Accounting, Summary
from scheduler_service.delivery import OutputChannel
from scheduler_service.output import Finish, OutputAssembler
from scheduler_service.peers import Target
from scheduler_service.spec import GenerationSpec
from scheduler_service.speculation import SpeculationLog
from scheduler_service.tracing import RequestTrace
from scheduler_service.validation import MAX_DRAFT_TOKENS
from scheduler_service.wire import worker_precision, worker_sampling
from spearhead.rpc.caller import ANONYMOUS, Caller


class WorkerSequence:
    """How far one worker is with one sequence.

    Attributes:
        session: The connection that holds the sequence; a new connection starts from nothing.
        epoch: Goes up with every restart.
        held: The worker may hold pages of this sequence.
    """

    __slots__ = ("_lengths", "_row", "epoch", "held", "session")

    def __init__(self) -> None:
        self.session = 0
        self.epoch = 0
        self.held = False
        self._lengths: MutableSequence[int] = array("q", [0])
        self._row = 0

    @property
    def computed_length(self) -> int:
        """Leading tokens whose KV the worker holds."""
        return self._lengths[self._row]

    @computed_length.setter
    def computed_length(self, length: int) -> None:
        self._lengths[self._row] = length

    def keep_length_in(self, lengths: MutableSequence[int], row: int) -> None:
        """From here on :attr:`computed_length` is kept at ``lengths[row]``, where others may read it."""
        lengths[row] = self.computed_length
        self._lengths, self._row = lengths, row

    def attach(self, session: int) -> None:
        """Makes sure that the state is about connection ``session``."""
        if session != self.session:
            self.session = session
            self.restart()
            self.held = False

    def restart(self) -> None:
        """The worker is to compute the sequence from the start."""
        self.epoch += 1
        self.computed_length = 0


class Request:
    """One request.

    Owned by the loop: nobody else changes it.

    Args:
        spec: What the client asked for.
        sequence_id: Its name towards the workers.
        output: Assembles its text.
        channel: Leads to its client.
        accounting: Its books.
        trace: Its spans.
        deadline_s: Monotonic time by which it must end; ``None`` = no deadline.
        target: What the verify service served when it began.
        caller: Whose it is.

    Attributes:
        prompt_length: Tokens in the prompt.
        max_length: Longest that prompt and output can become together, tokens.
        draft_cap: Most drafts a step; 0 = none.
        row: Its row in the :class:`scheduler_service.roster.Roster`; -1 = it has none.
    """

    def __init__(
        self,
        spec: GenerationSpec,
        *,
        sequence_id: int,
        output: OutputAssembler,
        channel: OutputChannel,
        accounting: Accounting,
        trace: RequestTrace,
        deadline_s: float | None,
        target: Target,
        caller: Caller = ANONYMOUS,
    ) -> None:
        self.spec = spec
        self.sequence_id = sequence_id
        self.output = output
        self.channel = channel
        self.accounting = accounting
        self.trace = trace
        self.deadline_s = deadline_s
        self.prompt_length = len(spec.prompt_token_ids)
        self.max_length = spec.max_length
        self.draft_cap = MAX_DRAFT_TOKENS if spec.max_draft_tokens is None else spec.max_draft_tokens
        self.target = target
        self.caller = caller
        self.token_ids = list(spec.prompt_token_ids)
        self.verify = WorkerSequence()
        self.draft = WorkerSequence()
        self.sampling = worker_sampling(spec)
        self.precision = worker_precision(spec)
        self.speculation = SpeculationLog(allowed=spec.max_draft_tokens != 0)
        self.ended = False
        self.row = -1
        self.failed_step_count = 0  # Steps lost since the last progress.

    @property
    def request_id(self) -> str:
        """The client's name for it."""
        return self.spec.request_id

    @property
    def pending_token_count(self) -> int:
        """Known tokens that the target has not computed, at least 1."""
        return len(self.token_ids) - self.verify.computed_length

    @property
    def decoding(self) -> bool:
        """Whether only the last sampled token is pending."""
        return self.pending_token_count == 1 and len(self.token_ids) > self.prompt_length

    @property
    def draft_lag(self) -> int:
        """Tokens that the drafter must compute besides the last one before its first draft."""
        return max(0, len(self.token_ids) - self.draft.computed_length - 1)

    @property
    def wants_drafts(self) -> bool:
        """Whether speculation may run for it at all."""
        return self.draft_cap > 0

    def summary(self, now_s: float, finish: Finish) -> Summary:
        """Closes the books."""
        return self.accounting.summary(
            now_s,
            finish,
            prompt_tokens=self.prompt_length,
            completion_tokens=self.output.token_count,
            speculation_active=self.speculation.active,
            speculation_inactive=self.speculation.inactive_reason,
        )
