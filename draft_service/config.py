"""Configuration of the draft service."""

from dataclasses import dataclass, field
from typing import Literal

from spearhead.model.settings import KvCacheSettings, ModelSettings
from spearhead.rpc import EndpointConfig
from spearhead.telemetry import TelemetryConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class DrafterSettings:
    """Section ``[drafter]``.

    Attributes:
        kind: ``model`` = the draft model; ``ngram`` = look the last tokens up in the sequence itself, no
            weights; ``layer_skip`` = the model with some of its layers left out.
        max_draft_tokens: Most drafts that one item may ask for, 1 to 16.
        ngram_longest: Longest run of tokens that is looked up.
        ngram_shortest: Shortest run that is looked up.
        layer_share: Share of the layers that ``layer_skip`` keeps, spread evenly, first and last included.
    """

    kind: Literal["model", "ngram", "layer_skip"] = "model"
    max_draft_tokens: int = 16
    ngram_longest: int = 4
    ngram_shortest: int = 2
    layer_share: float = 0.5

    def __post_init__(self) -> None:
        if not 1 <= self.max_draft_tokens <= 16:
            raise ValueError(f"max_draft_tokens is {self.max_draft_tokens}; it must be 1 to 16")
        if not 1 <= self.ngram_shortest <= self.ngram_longest:
            raise ValueError("ngram_shortest must be at least 1 and at most ngram_longest")
        if not 0 < self.layer_share < 1:
            raise ValueError(f"layer_share is {self.layer_share}; it must be between 0 and 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftConfig:
    """The whole configuration file.

    Attributes:
        model: The draft model. For ``ngram`` only its tokenizer is read.
        drafter: How drafts are made.
        kv_cache: Its cache.
        server: Where to listen.
        telemetry: Traces, metrics, logs.
        stuck_after_s: Liveness fails when a step runs longer than this many seconds.
    """

    model: ModelSettings = field(default_factory=ModelSettings)
    drafter: DrafterSettings = field(default_factory=DrafterSettings)
    kv_cache: KvCacheSettings = field(default_factory=KvCacheSettings)
    server: EndpointConfig = field(default_factory=lambda: EndpointConfig(listen="127.0.0.1:50053"))
    telemetry: TelemetryConfig = field(default_factory=TelemetryConfig)
    stuck_after_s: float = 120.0

    def __post_init__(self) -> None:
        if not self.model.path:
            raise ValueError("model.path is empty; name a folder, a .gguf file or a hub id")
        if self.stuck_after_s <= 0:
            raise ValueError(f"stuck_after_s is {self.stuck_after_s}; it must be positive")
        self.telemetry.refuse_slow_rules()
