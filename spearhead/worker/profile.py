"""The wire form of measured latencies."""

import platform
from collections.abc import Sequence

import torch

from spearhead.model.loading import LoadedModel
from spearhead.model.profiler import Latency
from spearhead.v1 import types_pb2


def kernel_profile(model: LoadedModel, variant: str, latencies: Sequence[Latency]) -> types_pb2.KernelProfile:
    """Adds what the numbers are valid for."""
    return types_pb2.KernelProfile(
        device=f"{model.device}: {_processor()}, {torch.get_num_threads()} threads, {model.dtype}",
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


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    except OSError:
        names = []
    return names[0] if names else platform.processor() or platform.machine()
