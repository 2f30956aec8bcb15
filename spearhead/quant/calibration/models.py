"""Teacher and student in a dtype: in memory while they fit, else one layer at a time from the disk."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import torch

from spearhead.model.checkpoint import Checkpoint
from spearhead.quant.calibration.config import CalibrationSettings
from spearhead.quant.calibration.subject import Subject
from spearhead.quant.device import TOKENS_AT_ONCE, compute_device, free_memory_bytes, give_back_memory
from spearhead.quant.layers import (
    LayerSource,
    ResidentLayers,
    StreamedLayers,
    model_bytes,
    streaming_notice,
)

_MEMORY_SHARE = 0.6
_STATES_SHARE = 0.25
"""Of what is left for layers, that hidden states of one kind may take."""

Role = Literal["teacher", "student"]


@dataclass(slots=True, kw_only=True)
class Models:
    """The two models of a calibration; those of a dtype not in use make room where room is short.

    Attributes:
        subject: The checkpoints.
        device: That computes.
        dtype: Of sampling and training.
        memory_bytes: For layers of both, and hidden states that training learns from; 0 = most of what is
            free.
        tokens_at_once: In one batch of statistics and scores.
        tell: Told in a sentence when layers are not kept in memory.
    """

    subject: Subject
    device: torch.device
    dtype: torch.dtype
    memory_bytes: int
    tokens_at_once: int
    tell: Callable[[str], None]
    _kept: dict[tuple[Role, torch.dtype], tuple[LayerSource, int]] = field(default_factory=dict)
    _states_bytes: int = 0

    @classmethod
    def of(cls, subject: Subject, settings: CalibrationSettings, tell: Callable[[str], None]) -> "Models":
        """As the settings say.

        Raises:
            ConfigError: A device or dtype that is not here.
        """
        device = compute_device(settings.device)
        return cls(
            subject=subject,
            device=device,
            dtype=compute_dtype(settings.dtype, device),
            memory_bytes=settings.memory_bytes,
            tokens_at_once=settings.tokens_at_once or TOKENS_AT_ONCE[device.type],
            tell=tell,
        )

    def teacher(self, dtype: torch.dtype = torch.float32) -> LayerSource:
        """Full precision."""
        return self._source("teacher", self.subject.full, dtype)

    def student(self, dtype: torch.dtype = torch.float32) -> LayerSource:
        """The 4-bit weights, dequantised."""
        return self._source("student", self.subject.artefact, dtype)

    def batch_size(self, length: int) -> int:
        """Sequences of so many tokens that go through a layer together."""
        return max(1, self.tokens_at_once // length)

    def place(self, streamed: StreamedLayers, checkpoint: Checkpoint) -> LayerSource:
        """A further model: in memory if there is room now."""
        needed = model_bytes(checkpoint, streamed.dtype)
        return self._placed(streamed, "a baseline", needed)[0]

    def place_states(self, name: str, needed: int, file: Path) -> torch.device | Path:
        """Where hidden states are kept: on the device, on a GPU else in memory, or in a file.

        Args:
            name: Of the sequences that they belong to, for people.
            needed: Bytes of them, which are taken from what is left for layers.
            file: Where they go if nothing else has room.
        """
        left = int(_STATES_SHARE * self._left())
        if needed <= left:
            self._states_bytes += needed
            return self.device
        memory = torch.device("cpu")
        if self.device != memory:
            left = int(_STATES_SHARE * _MEMORY_SHARE * free_memory_bytes(memory))
            if needed <= left:
                return memory
        self.tell(
            f"hidden states of the {name} sequences take {needed / 2**30:.2f} GiB and "
            f"{max(0, left) / 2**30:.2f} GiB of memory are left for them: they are kept in a file in "
            f"{file.parent} and read from there"
        )
        return file

    def room_bytes(self) -> int:
        """Memory for activations: what was allowed for layers, else what is free now."""
        return self.memory_bytes or free_memory_bytes(self.device)

    def _source(self, role: Role, checkpoint: Checkpoint, dtype: torch.dtype) -> LayerSource:
        if (role, dtype) in self._kept:
            return self._kept[role, dtype][0]
        streamed = StreamedLayers(checkpoint, dtype=dtype, device=self.device)
        needed = model_bytes(checkpoint, dtype)
        if needed > self._left():
            self._kept = {key: kept for key, kept in self._kept.items() if key[1] == dtype}
            give_back_memory(self.device)
        source, kept_bytes = self._placed(streamed, checkpoint.path, needed)
        self._kept[role, dtype] = (source, kept_bytes)
        return source

    def _placed(self, streamed: StreamedLayers, name: object, needed: int) -> tuple[LayerSource, int]:
        """The layers, and how much memory they keep."""
        left = self._left()
        if needed <= left:
            return ResidentLayers(streamed), needed
        self.tell(streaming_notice(name, needed, left))
        return streamed, 0

    def _left(self) -> int:
        if not self.memory_bytes:
            return int(free_memory_bytes(self.device) * _MEMORY_SHARE)
        return self.memory_bytes - self._states_bytes - sum(needed for _, needed in self._kept.values())


def compute_dtype(name: str, device: torch.device) -> torch.dtype:
    """``auto`` = bfloat16 where the hardware multiplies it."""
    if name != "auto":
        found: torch.dtype = getattr(torch, name)
        return found
    fast = device.type == "cuda" or torch.cpu._is_avx512_bf16_supported()
    return torch.bfloat16 if fast else torch.float32
