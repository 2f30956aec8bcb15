"""What every checkpoint format offers to the loader."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from torch import Tensor

from spearhead.model.architecture import ModelConfig
from spearhead.model.checkpoint.compensators import CompensatorSet
from spearhead.model.quantization import InputGroups, QuantizedWeight


@dataclass(frozen=True, slots=True, kw_only=True)
class FullPrecisionSource:
    """Where the weights are that a quantised checkpoint was made from.

    Attributes:
        location: Path or hub id.
        revision: The revision it had then; empty = not recorded.
    """

    location: str
    revision: str


class Checkpoint(Protocol):
    """An open checkpoint. Tensors have Hugging Face's names and layout, whatever the file's format."""

    @property
    def path(self) -> Path:
        """The folder or file; a folder also for a hub id. The tokenizer loads from the same path."""

    @property
    def config(self) -> ModelConfig:
        """The model's shape."""

    @property
    def hugging_face_config(self) -> Mapping[str, Any]:
        """The ``config.json``, or one made from a GGUF file's metadata."""

    @property
    def generation_config(self) -> Mapping[str, Any] | None:
        """The ``generation_config.json``, if there is one."""

    @property
    def revision(self) -> str:
        """Digest of configuration and weights, ``sha256:<hex>``. Reads every byte once, then remembers."""

    @property
    def weight_dtype(self) -> str:
        """``float16``, ``bfloat16`` or ``float32``: of weights and scales, before any quantisation."""

    @property
    def variants(self) -> tuple[str, ...]:
        """What it offers without quantising at load: ``fp16``, or ``w4`` and perhaps ``w4+ec``, ``fp16``."""

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Shape of each tensor, dequantised."""

    @property
    def quantization(self) -> str:
        """Such as ``w4 symmetric, group 32, absmax/7.5``; empty = full precision."""

    @property
    def input_groups(self) -> Mapping[str, InputGroups]:
        """Module name to how its inputs share scales, for every module that is kept as codes."""

    @property
    def weight_digests(self) -> Mapping[str, str]:
        """File name to SHA-256, in hexadecimal, of the files that hold the weights."""

    @property
    def stored_bytes(self) -> int:
        """Size of the weights in 4 bits (quantised) or in ``weight_dtype`` (full precision)."""

    @property
    def compensators(self) -> CompensatorSet | None:
        """Corrections of the 4-bit weights, if there are any."""

    @property
    def full_precision_source(self) -> FullPrecisionSource | None:
        """What a quantised checkpoint was made from, when that is on this machine."""

    def tensor(self, name: str) -> Tensor:
        """One tensor on the CPU, any float dtype; quantised weights come dequantised, in float32.

        Raises:
            CheckpointError: No such tensor, or its data cannot be read.
        """

    def quantized_weight(self, module: str) -> QuantizedWeight | None:
        """The codes and scales of a module such as ``model.layers.0.mlp.up_proj``.

        Returns:
            On the CPU; ``None`` = this module is stored dense, as all are in full precision.

        Raises:
            CheckpointError: Its data cannot be read.
        """

    def close(self) -> None:
        """Releases the files. Tensors that were read stay valid."""
