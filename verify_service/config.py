"""Configuration of the verify service."""

from dataclasses import dataclass, field

from spearhead.model.settings import KvCacheSettings, ModelSettings, ParallelSettings
from spearhead.rpc import EndpointConfig
from spearhead.telemetry import TelemetryConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class VariantSettings:
    """Section ``[variants]``: which weights are held, and which one serves first.

    Attributes:
        hold: ``fp16``, ``w4``, ``w4+ec``; ``auto`` = all that the checkpoint offers.
        serve: The variant that serves first; ``auto`` = the best of ``w4+ec``, ``w4``, ``fp16`` that is held.
        quantization: Scheme for 4-bit weights made at load from a full-precision checkpoint, such as
            ``group32``; empty = none.
        full_precision: Checkpoint of the full-precision weights beside a quantised one; empty = the source
            that the quantised checkpoint names, if it can be opened.
        keep_four_bits: Hold 4-bit weights in 4 bits: a quarter of the memory, and faster up to about eight
            rows a step; beyond, and for long prompts, dequantised weights are up to twice as fast.
    """

    hold: tuple[str, ...] = ("auto",)
    serve: str = "auto"
    quantization: str = ""
    full_precision: str = ""
    keep_four_bits: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyConfig:
    """The whole configuration file.

    Attributes:
        model: The target model.
        variants: Its weights.
        kv_cache: Its cache, on every rank.
        parallel: Several processes that share it.
        server: Where to listen.
        telemetry: Traces, metrics, logs.
        stuck_after_s: Liveness fails when a step runs longer than this many seconds.
    """

    model: ModelSettings = field(default_factory=ModelSettings)
    variants: VariantSettings = field(default_factory=VariantSettings)
    kv_cache: KvCacheSettings = field(default_factory=KvCacheSettings)
    parallel: ParallelSettings = field(default_factory=ParallelSettings)
    server: EndpointConfig = field(default_factory=lambda: EndpointConfig(listen="127.0.0.1:50052"))
    telemetry: TelemetryConfig = field(default_factory=TelemetryConfig)
    stuck_after_s: float = 120.0

    def __post_init__(self) -> None:
        if not self.model.path:
            raise ValueError("model.path is empty; name a folder, a .gguf file or a hub id")
        if self.stuck_after_s <= 0:
            raise ValueError(f"stuck_after_s is {self.stuck_after_s}; it must be positive")
        self.telemetry.refuse_slow_rules()
        if self.parallel.tensor_parallel_size > 1:
            self._check_ranks()

    def _check_ranks(self) -> None:
        size = self.parallel.tensor_parallel_size
        if self.model.cuda_graphs:
            raise ValueError(
                f"model.cuda_graphs is true and parallel.tensor_parallel_size {size}; steps of several ranks "
                "are not captured: set model.cuda_graphs to false"
            )
