"""Makes the links to the workers that a configuration names."""

from collections.abc import Callable

from scheduler_service.config import SchedulerConfig
from scheduler_service.drafting import DraftLink
from scheduler_service.latency_table import LatencyTable
from scheduler_service.metrics import SchedulerMetrics
from scheduler_service.peers import DraftPeer, VerifyPeer
from scheduler_service.verifying import VerifyLink
from scheduler_service.worker_link import WorkerLink
from spearhead.v1 import draft_pb2


def make_links(
    config: SchedulerConfig,
    tokenizer_hash: str,
    table: LatencyTable | None,
    metrics: SchedulerMetrics,
    *,
    on_change: Callable[[], None],
) -> tuple[VerifyLink, DraftLink | None]:
    """The links to verify and draft service; nothing is connected yet.

    Args:
        config: Names the workers.
        tokenizer_hash: Of the scheduler's own tokenizer.
        table: Latencies that must belong to the workers; ``None`` = none are used.
        metrics: Where late replies are counted.
        on_change: Called when a worker comes or goes.
    """
    limits = config.limits
    backoff_s = (limits.min_reconnect_s, limits.max_reconnect_s)
    verify: VerifyLink = WorkerLink(
        VerifyPeer(config.verify, tokenizer_hash, table.target if table else None),
        connect_timeout_s=limits.connect_timeout_s,
        backoff_s=backoff_s,
        on_change=on_change,
        on_stale=lambda: metrics.stale_reply("verify"),
    )
    if config.draft is None:
        return verify, None
    draft: DraftLink = WorkerLink(
        DraftPeer(config.draft, tokenizer_hash, table.draft if table else None),
        connect_timeout_s=limits.connect_timeout_s,
        backoff_s=backoff_s,
        on_change=on_change,
        on_stale=lambda: metrics.stale_reply("draft"),
        probe=draft_pb2.ProposeRequest,
        hang_backoff_s=(limits.min_draft_pause_s, limits.max_draft_pause_s),
    )
    return verify, draft
