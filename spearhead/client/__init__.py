"""The client library: typed, synchronous and asynchronous, raising the errors that the server raised."""

from spearhead.client.aio import AsyncClient
from spearhead.client.events import (
    Delta,
    Event,
    Finished,
    FinishReason,
    GenerationResult,
    SpeculationStats,
    Started,
    Timings,
    TokenLogprobs,
    Usage,
)
from spearhead.client.request import (
    Message,
    Precision,
    RequestOptions,
    SamplingParams,
    Slo,
    Speculation,
)
from spearhead.client.retry import RetryPolicy
from spearhead.client.server import Load, Model, ServerInfo
from spearhead.client.sync import Client
from spearhead.client.target import DEFAULT_ADDRESS
from spearhead.rpc import TargetConfig

__all__ = [
    "DEFAULT_ADDRESS",
    "AsyncClient",
    "Client",
    "Delta",
    "Event",
    "FinishReason",
    "Finished",
    "GenerationResult",
    "Load",
    "Message",
    "Model",
    "Precision",
    "RequestOptions",
    "RetryPolicy",
    "SamplingParams",
    "ServerInfo",
    "Slo",
    "Speculation",
    "SpeculationStats",
    "Started",
    "TargetConfig",
    "Timings",
    "TokenLogprobs",
    "Usage",
]
