"""Makes the links of one engine to its workers."""

from collections.abc import Callable

from scheduler_service.config import LimitsSection
from scheduler_service.drafting import DraftLink
from scheduler_service.latency_table import LatencyTable
from scheduler_service.metrics import SchedulerMetrics
from scheduler_service.peers import DraftPeer, VerifyPeer
from scheduler_service.verifying import VerifyLink
from scheduler_service.worker_link import WorkerLink
from spearhead.rpc import TargetConfig
from spearhead.v1 import draft_pb2


class LinkFactory:
    """Makes links; nothing is connected yet.

    Args:
        limits: Timeouts and pauses.
        tokenizer_hash: Of the scheduler's own tokenizer.
        table: Latencies that must belong to the workers; ``None`` = none are used.
        metrics: Where late replies are counted.
        on_change: Called when a worker comes or goes.
    """

    def __init__(
        self,
        limits: LimitsSection,
        tokenizer_hash: str,
        table: LatencyTable | None,
        metrics: SchedulerMetrics,
        *,
        on_change: Callable[[], None],
    ) -> None:
        self._limits = limits
        self._tokenizer_hash = tokenizer_hash
        self._table = table
        self._metrics = metrics
        self._on_change = on_change

    def verify(self, choose: Callable[[], TargetConfig]) -> VerifyLink:
        """The link to a verify service that is where ``choose`` says."""
        return WorkerLink(
            VerifyPeer(choose, self._tokenizer_hash, self._table.target if self._table else None),
            connect_timeout_s=self._limits.connect_timeout_s,
            backoff_s=(self._limits.min_reconnect_s, self._limits.max_reconnect_s),
            on_change=self._on_change,
            on_stale=lambda: self._metrics.stale_reply("verify"),
        )

    def draft(self, choose: Callable[[], TargetConfig]) -> DraftLink:
        """The link to a draft service, likewise."""
        return WorkerLink(
            DraftPeer(choose, self._tokenizer_hash, self._table.draft if self._table else None),
            connect_timeout_s=self._limits.connect_timeout_s,
            backoff_s=(self._limits.min_reconnect_s, self._limits.max_reconnect_s),
            on_change=self._on_change,
            on_stale=lambda: self._metrics.stale_reply("draft"),
            probe=draft_pb2.ProposeRequest,
            hang_backoff_s=(self._limits.min_draft_pause_s, self._limits.max_draft_pause_s),
        )
