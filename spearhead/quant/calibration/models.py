"""Teacher and student in a dtype: in memory while they fit, else one layer at a time from the disk."""

from dataclasses import dataclass, field
from math import prod
from typing import Literal

import torch

from spearhead.errors import ConfigError
from spearhead.model.checkpoint import Checkpoint
from spearhead.model.checkpoint.layout import expected_shapes
from spearhead.quant.calibration.config import CalibrationSettings
from spearhead.quant.calibration.subject import Subject
from spearhead.quant.evaluation.opening import free_memory_bytes
from spearhead.quant.layers import LayerSource, ResidentLayers, StreamedLayers

_MEMORY_SHARE = 0.6
_TOKENS_AT_ONCE = {"cpu": 2048, "cuda": 16384}

Role = Literal["teacher", "student"]


@dataclass(slots=True, kw_only=True)
class Models:
    """The two models of a calibration. Each role keeps its last source, and lets go of it for another dtype.

    Attributes:
        subject: The checkpoints.
        device: That computes.
        dtype: Of sampling and training.
        memory_bytes: For layers of both; 0 = most of what is free.
        tokens_at_once: In one batch of statistics and scores.
    """

    subject: Subject
    device: torch.device
    dtype: torch.dtype
    memory_bytes: int
    tokens_at_once: int
    _kept: dict[Role, tuple[torch.dtype, LayerSource, int]] = field(default_factory=dict)

    @classmethod
    def of(cls, subject: Subject, settings: CalibrationSettings) -> "Models":
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
            tokens_at_once=settings.tokens_at_once or _TOKENS_AT_ONCE[device.type],
        )

    def teacher(self, dtype: torch.dtype = torch.float32) -> LayerSource:
        """Full precision."""
        return self._source("teacher", self.subject.full, dtype)

    def student(self, dtype: torch.dtype = torch.float32) -> LayerSource:
        """The 4-bit weights, dequantised."""
        return self._source("student", self.subject.artefact, dtype)

    def streamed(self, role: Role) -> bool:
        """Whether the last source of a role reads its layers from the disk."""
        return role in self._kept and isinstance(self._kept[role][1], StreamedLayers)

    def batch_size(self, length: int) -> int:
        """Sequences of so many tokens that go through a layer together."""
        return max(1, self.tokens_at_once // length)

    def total_bytes(self) -> int:
        """Memory for layers and activations: what was allowed, else what is free now."""
        return self.memory_bytes or free_memory_bytes(self.device)

    def _source(self, role: Role, checkpoint: Checkpoint, dtype: torch.dtype) -> LayerSource:
        kept = self._kept.get(role)
        if kept is not None and kept[0] == dtype:
            return kept[1]
        self._kept.pop(role, None)
        kept = None
        streamed = StreamedLayers(checkpoint, dtype=dtype, device=self.device)
        needed = layer_bytes(checkpoint, dtype)
        source: LayerSource = ResidentLayers(streamed) if needed <= self._left() else streamed
        self._kept[role] = (dtype, source, needed if source is not streamed else 0)
        return source

    def _left(self) -> int:
        if not self.memory_bytes:
            return int(free_memory_bytes(self.device) * _MEMORY_SHARE)
        return self.memory_bytes - sum(needed for _, _, needed in self._kept.values())


def layer_bytes(checkpoint: Checkpoint, dtype: torch.dtype) -> int:
    """Memory of a whole model in a dtype."""
    return sum(map(prod, expected_shapes(checkpoint.config).values())) * dtype.itemsize


def compute_device(name: str) -> torch.device:
    """The device of a name.

    Raises:
        ConfigError: It is not here, or not supported.
    """
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:  # a torch without CUDA asserts
        raise ConfigError(f"device {name} cannot be used: {str(error).splitlines()[0]}") from error
    if device.type not in _TOKENS_AT_ONCE:
        raise ConfigError(f"device {name} is not supported; use {' or '.join(_TOKENS_AT_ONCE)}")
    return device


def compute_dtype(name: str, device: torch.device) -> torch.dtype:
    """``auto`` = bfloat16 where the hardware multiplies it."""
    if name != "auto":
        found: torch.dtype = getattr(torch, name)
        return found
    fast = device.type == "cuda" or torch.cpu._is_avx512_bf16_supported()
    return torch.bfloat16 if fast else torch.float32
