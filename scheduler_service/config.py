"""The scheduler's configuration, one TOML file."""

import dataclasses
from dataclasses import dataclass, field
from pathlib import Path

from scheduler_service.acceptance import AcceptanceConfig
from scheduler_service.step_plan import PolicyConfig, PolicyKind
from spearhead.rpc import EndpointConfig, TargetConfig
from spearhead.telemetry import TelemetryConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSection:
    """What the scheduler needs of the model.

    Attributes:
        tokenizer: Folder with the target's tokenizer, or its GGUF file.
    """

    tokenizer: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkersConfig(TargetConfig):
    """The workers of one kind, and how to prove to them who we are; other attributes as there.

    Attributes:
        address: That of the only one, or ``dns:///name:port``: every address behind the name is a worker, and
            the name is looked up again and again. Give it or ``addresses``.
        addresses: Likewise, of several.
    """

    address: str = ""
    addresses: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if bool(self.address) == bool(self.addresses):
            raise ValueError("give address, or addresses for several workers, and not both")
        if len(set(self.addresses)) < len(self.addresses):
            raise ValueError(f"addresses names a worker twice: {', '.join(self.addresses)}")
        for address in self.all_addresses:
            if address.startswith("dns:") and not address.rpartition(":")[2].isdigit():
                raise ValueError(f"{address!r} has no port; give dns:///name:port")
            self.target(address)

    @property
    def all_addresses(self) -> tuple[str, ...]:
        """Every configured address."""
        return self.addresses or (self.address,)

    def target(self, address: str, *, found_by: str | None = None) -> TargetConfig:
        """How to connect to one of them.

        Args:
            address: Its address.
            found_by: The DNS name behind which it was found; its certificate must carry it.
        """
        names = {field.name for field in dataclasses.fields(TargetConfig)} - {"address", "tls_name"}
        return TargetConfig(
            address=address,
            tls_name=self.tls_name or (found_by if self.tls_ca else None),
            **{name: getattr(self, name) for name in names},
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSection(EndpointConfig):
    """The public endpoint.

    Attributes:
        max_message_bytes: As in :class:`EndpointConfig`; smaller, since the longest prompt takes a fraction.
        max_connection_age_s: As there; on, so that clients that balance find schedulers that were added.
    """

    max_message_bytes: int = 8 << 20
    max_connection_age_s: float = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicySection(PolicyConfig):
    """How steps are planned.

    Attributes:
        kind: As in :class:`PolicyConfig`; here ``static`` by default, which needs no table.
        table: Latency table that ``spearhead profile`` wrote; needed unless ``kind`` is ``static``.
    """

    kind: PolicyKind = "static"
    table: Path | None = None

    def __post_init__(self) -> None:
        PolicyConfig.__post_init__(self)
        if self.table is None and self.kind != "static":
            raise ValueError(
                f'kind is "{self.kind}", which needs table; run `spearhead profile`, or set kind = "static"'
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitsSection:
    """What the scheduler takes on.

    Attributes:
        max_running_requests: Most requests in the running batch of one verify service.
        max_waiting_requests: Most requests that wait, beside those for which a place is free.
        max_waiting_tokens: Most prompt tokens that wait.
        max_waiting_page_factor: Most KV pages that waiting requests may come to need, as a multiple of
            those of the target.
        max_step_tokens: Most rows of one forward pass of the target.
        max_draft_tokens: Most drafts in a step of one request, 0..16; 0 = no speculation.
        min_catch_up_tokens: Tokens that a lagging drafter computes beside a step, at least.
        output_queue_tokens: Tokens kept for a client that reads slowly; beyond it the request fails.
        default_max_tokens: ``max_tokens`` of a request that names none.
        max_prompt_bytes: Longest prompt that is tokenised.
        verify_timeout_s: For one step of the verify service.
        draft_timeout_s: For one message to the draft service, at most. A step waits about ten times as long
            as drafts usually take.
        max_draft_timeouts: After so many in a row the draft service counts as lost.
        min_draft_pause_s: A draft service that was lost so is left alone for so long; doubles each time.
        max_draft_pause_s: Longest such pause.
        max_failed_steps: A request fails after so many lost steps without progress; a step counts as lost too
            when the request runs alone and finds no KV pages.
        verify_wait_s: A request without a deadline waits so long for a lost verify service.
        connect_timeout_s: For one handshake with a worker.
        min_reconnect_s: Shortest pause between attempts to reach a worker.
        max_reconnect_s: Longest such pause.
        resolve_interval_s: DNS names of workers are looked up so often.
    """

    max_running_requests: int = 64
    max_waiting_requests: int = 256
    max_waiting_tokens: int = 1_000_000
    max_waiting_page_factor: float = 16.0
    max_step_tokens: int = 2048
    max_draft_tokens: int = 8
    min_catch_up_tokens: int = 32
    output_queue_tokens: int = 4096
    default_max_tokens: int = 256
    max_prompt_bytes: int = 2 << 20
    verify_timeout_s: float = 60.0
    draft_timeout_s: float = 5.0
    max_draft_timeouts: int = 3
    min_draft_pause_s: float = 1.0
    max_draft_pause_s: float = 60.0
    max_failed_steps: int = 5
    verify_wait_s: float = 60.0
    connect_timeout_s: float = 5.0
    min_reconnect_s: float = 0.1
    max_reconnect_s: float = 2.0
    resolve_interval_s: float = 5.0

    def __post_init__(self) -> None:
        for name in self.__slots__:
            value, low = getattr(self, name), 0 if name == "max_draft_tokens" else 1
            if name.endswith(("_s", "_factor")):
                if not value > 0:
                    raise ValueError(f"{name} is {value}; it must be more than 0")
            elif value < low:
                raise ValueError(f"{name} is {value}; it must be at least {low}")
        if self.max_draft_tokens > 16:
            raise ValueError(f"max_draft_tokens is {self.max_draft_tokens}; it must be at most 16")


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerConfig:
    """Everything.

    Attributes:
        model: The tokenizer.
        verify: The verify services.
        draft: The draft services; ``None`` = plain decoding.
        server: The public endpoint.
        telemetry: Where spans, metrics and logs go.
        limits: What the scheduler takes on.
        policy: How steps are planned.
        acceptance: How the acceptance of drafts is estimated.
    """

    model: ModelSection
    verify: WorkersConfig
    draft: WorkersConfig | None = None
    server: ServerSection = field(default_factory=ServerSection)
    telemetry: TelemetryConfig = field(default_factory=TelemetryConfig)
    limits: LimitsSection = field(default_factory=LimitsSection)
    policy: PolicySection = field(default_factory=PolicySection)
    acceptance: AcceptanceConfig = field(default_factory=AcceptanceConfig)
