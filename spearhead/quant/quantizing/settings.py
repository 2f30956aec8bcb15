"""How a quantisation run works, whatever it makes."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch

from spearhead.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSettings:
    """How a run works.

    Attributes:
        device: That computes: ``cpu``, ``cuda`` or ``cuda:1``.
        dtype: Of the forward pass over calibration tokens; weights are quantised from their stored values.
        inputs: Whether later layers' statistics come from the ``full`` precision of earlier ones, or from
            those as ``quantized``.
        batch_size: Calibration sequences that are computed together.
        skip_first: Tokens at the start of each sequence that statistics leave out.
        shard_bytes: Largest weight file, unless one layer is larger.
        work: Where finished layers wait; default a hidden folder beside the output.
        restart: Drop what an interrupted run left there.
    """

    device: str = "cpu"
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    inputs: Literal["full", "quantized"] = "full"
    batch_size: int = 8
    skip_first: int = 0
    shard_bytes: int = 2 << 30
    work: Path | None = None
    restart: bool = False

    def __post_init__(self) -> None:
        if re.fullmatch(r"cpu|cuda(:\d+)?", self.device) is None:
            raise ConfigError(f"device is {self.device!r}; it must be cpu, cuda or such as cuda:1")
        if self.device.startswith("cuda") and not torch.cuda.is_available():
            raise ConfigError(f"device is {self.device!r} and no CUDA device is here; use cpu")
        if self.batch_size < 1 or self.skip_first < 0:
            raise ConfigError(
                f"batch size is {self.batch_size} and {self.skip_first} tokens are skipped; give at least 1 "
                "and 0"
            )

    def work_folder(self, output: Path) -> Path:
        """Where finished layers of an artefact wait, an absolute path."""
        return (self.work or output.parent / f".{output.name}.work").absolute()
