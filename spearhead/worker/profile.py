"""The wire form of measured latencies."""

import platform
from collections.abc import Sequence

import torch

from spearhead.errors import InvalidRequest
from spearhead.model.engine import SequenceEngine
from spearhead.model.loading import LoadedModel
from spearhead.model.profiler import Latency
from spearhead.v1 import types_pb2
from spearhead.worker.info import device_name


def kernel_profile(model: LoadedModel, variant: str, latencies: Sequence[Latency]) -> types_pb2.KernelProfile:
    """Adds what the numbers are valid for."""
    return types_pb2.KernelProfile(
        device=f"{device_name(model)}: {_hardware(model.device)}, {model.dtype}",
        versions=[f"torch {torch.__version__}"],
        revision=model.revision,
        variant=variant,
        latencies=[
            types_pb2.KernelLatency(
                op=entry.op,
                n=entry.n,
                k=entry.k,
                rank=entry.rank,
                rows=entry.rows,
                context=entry.context,
                calls_per_forward=entry.calls_per_forward,
                median_us=entry.median_us,
            )
            for entry in latencies
        ],
    )


def check_profile_size(engine: SequenceEngine, rows: Sequence[int], contexts: Sequence[int]) -> None:
    """Refuses measurements that could not be steps of this worker.

    Raises:
        InvalidRequest: Rows or a context beyond its limits.
    """
    for name, values, limit in (
        ("rows", rows, engine.max_rows),
        ("contexts", contexts, engine.context_length),
    ):
        bad = [value for value in values if not 1 <= value <= limit]
        if bad:
            raise InvalidRequest(f"{name} has {bad[0]}; it must be from 1 to {limit}", field=name)


def _hardware(device: str) -> str:
    if device.startswith("cuda"):
        return torch.cuda.get_device_name(device)
    return f"{_processor()}, {torch.get_num_threads()} threads"


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    except OSError:
        names = []
    return names[0] if names else platform.processor() or platform.machine()
