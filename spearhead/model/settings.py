"""Configuration that both model services share: which model, on what, with how much cache."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

DTYPES = ("auto", "float32", "bfloat16", "float16")
_LEAST_CONTEXT = 64
_LONGEST_S = 86_400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSettings:
    """Section ``[model]``.

    Attributes:
        path: Folder, ``.gguf`` file, or hub id of the checkpoint.
        revision: Hub revision; empty = the default one.
        name: Name to report; empty = the last part of ``path``.
        dtype: Compute type; ``auto`` = bfloat16 on a GPU and where the processor has it in hardware, else
            float32.
        device: ``cpu``, ``cuda`` or ``cuda:<index>``.
        threads: Processor threads for the model; 0 = all.
        context_length: Longest sequence in tokens, at least 64; 0 = the model's own limit.
        max_compute_tokens: Most tokens that one item adds in one step; what is left waits for the next.
        allow_batch_variance: Start although results depend on the batch on this machine. Output may then
            differ between runs; the service reports it.
        cuda_graphs: On a GPU, capture small steps at start-up and replay them. Saves launches; costs some
            seconds and up to some hundred MiB.
    """

    path: str = ""
    revision: str = ""
    name: str = ""
    dtype: str = "auto"
    device: str = "cpu"
    threads: int = 0
    context_length: int = 0
    max_compute_tokens: int = 1024
    allow_batch_variance: bool = False
    cuda_graphs: bool = False

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            raise ValueError(f"dtype is {self.dtype!r}; it must be one of {', '.join(DTYPES)}")
        if self.threads < 0:
            raise ValueError(f"threads is {self.threads}; it must be 0 or more")
        if self.context_length and self.context_length < _LEAST_CONTEXT:
            raise ValueError(
                f"context_length is {self.context_length}; it must be 0 or at least {_LEAST_CONTEXT}"
            )
        if self.max_compute_tokens < 1:
            raise ValueError(f"max_compute_tokens is {self.max_compute_tokens}; it must be at least 1")
        if self.cuda_graphs and self.device == "cpu":
            raise ValueError(
                'cuda_graphs is true and device "cpu"; set device to "cuda", or cuda_graphs to false'
            )

    @property
    def display_name(self) -> str:
        """What to call the model."""
        return self.name or Path(self.path).name


@dataclass(frozen=True, slots=True, kw_only=True)
class ParallelSettings:
    """Section ``[parallel]``: one model over several processes, its ranks.

    Attributes:
        tensor_parallel_size: Ranks that share every layer; 1 = this process alone.
        launch: ``spawn`` = this process starts the others on this machine; ``environment`` = torchrun, or a
            LeaderWorkerSet, started them and its variables say which one this is.
        rendezvous_port: Where ranks meet at the leader's address, under a LeaderWorkerSet; torchrun and
            ``spawn`` choose their own.
        start_timeout_s: Ranks wait so many seconds for each other at start-up, until all are there; reading
            weights is not counted.
        lost_after_s: A rank that is silent for so many seconds is lost: the service turns unhealthy and ends.
        collective_timeout_s: Longest exchange between ranks that are alive, seconds. Where kernels are
            compiled at start-up, one rank may wait for another's compiler.
    """

    tensor_parallel_size: int = 1
    launch: Literal["spawn", "environment"] = "spawn"
    rendezvous_port: int = 29500
    start_timeout_s: float = 600.0
    lost_after_s: float = 4.0
    collective_timeout_s: float = 60.0

    def __post_init__(self) -> None:
        if self.tensor_parallel_size < 1:
            raise ValueError(f"tensor_parallel_size is {self.tensor_parallel_size}; it must be at least 1")
        if not 1 <= self.rendezvous_port <= 65535:
            raise ValueError(f"rendezvous_port is {self.rendezvous_port}; it must be 1 to 65535")
        for name in ("start_timeout_s", "lost_after_s", "collective_timeout_s"):
            if not 0 < getattr(self, name) <= _LONGEST_S:
                raise ValueError(
                    f"{name} is {getattr(self, name)}; it must be more than 0, at most {_LONGEST_S:g}"
                )


@dataclass(frozen=True, slots=True, kw_only=True)
class KvCacheSettings:
    """Section ``[kv_cache]``.

    Attributes:
        page_size: Tokens a page; a power of two from 16 to 256.
        memory_mib: Memory for KV pages, MiB. Used when ``page_count`` is 0.
        page_count: Pages in all; 0 = as many as fit in ``memory_mib``.
    """

    page_size: int = 16
    memory_mib: int = 1024
    page_count: int = 0

    def __post_init__(self) -> None:
        if self.page_size not in (16, 32, 64, 128, 256):
            raise ValueError(f"page_size is {self.page_size}; it must be 16, 32, 64, 128 or 256")
        if self.memory_mib < 1 or self.page_count < 0:
            raise ValueError("memory_mib must be at least 1 and page_count not negative")
