"""Round-to-nearest: a full-precision checkpoint in, a 4-bit artefact out.

Tensors stream through one at a time into a temporary folder, which is renamed into place at the end:
an interrupted run leaves nothing that looks like an artefact.
"""

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from kernels.w4a16 import pack
from spearhead.errors import CheckpointError, ConfigError
from spearhead.model.checkpoint import Checkpoint, open_checkpoint
from spearhead.model.checkpoint.layout import check_groups, expected_shapes, linear_modules
from spearhead.model.checkpoint.loader import finite
from spearhead.model.quantization import QuantizationScheme, dequantize, rtn
from spearhead.quant.artefact import ShardWriter, artefact_config, write_companions, write_json


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantizationProgress:
    """How far a run is.

    Attributes:
        done_bytes: Source bytes that were processed, in the source's type.
        total_bytes: Source bytes in all.
        tensor: The tensor that was just written.
    """

    done_bytes: int
    total_bytes: int
    tensor: str


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantizationReport:
    """What a run wrote.

    Attributes:
        path: The artefact.
        quantization: The quantiser, for people.
        source_bytes: Weights of the source, in its type.
        artefact_bytes: Weights of the artefact.
        module_count: Modules that were quantised.
        relative_error: Root of the squared error over the squared weights, all modules together.
    """

    path: Path
    quantization: str
    source_bytes: int
    artefact_bytes: int
    module_count: int
    relative_error: float


def quantize_checkpoint(
    source: str,
    output: Path,
    scheme: QuantizationScheme,
    progress: Callable[[QuantizationProgress], None] | None = None,
    *,
    shard_bytes: int = 2 << 30,
) -> QuantizationReport:
    """Writes the 4-bit artefact of a full-precision checkpoint.

    The artefact is a compressed-tensors ``pack-quantized`` folder that transformers and vLLM also read.
    Embedding, norms, biases and head are kept; ``tensor`` granularity is stored as one equal scale a row.

    Args:
        source: Folder, ``.gguf`` file or hub id.
        output: Folder to make; must not exist.
        scheme: Scales and convention.
        progress: Called after each tensor.
        shard_bytes: Largest weight file.

    Raises:
        ConfigError: ``output`` exists.
        CheckpointError: The source cannot be read, is quantised already, or does not fit the scheme.
    """
    if output.exists():
        raise ConfigError(f"{output} exists; remove it or choose another output folder")
    with closing(open_checkpoint(source)) as checkpoint:
        if checkpoint.quantization:
            raise CheckpointError(
                f"{source} is quantised already ({checkpoint.quantization}); give its source"
            )
        check_groups(checkpoint.config, scheme)
        output.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix=f".{output.name}.", dir=output.parent))
        try:
            report = _write(checkpoint, source, temporary, output, scheme, progress, shard_bytes)
            temporary.chmod(0o755)  # mkdtemp keeps it private
            os.rename(temporary, output)
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise
        return report


def _write(
    checkpoint: Checkpoint,
    source: str,
    folder: Path,
    output: Path,
    scheme: QuantizationScheme,
    progress: Callable[[QuantizationProgress], None] | None,
    shard_bytes: int,
) -> QuantizationReport:
    writer = ShardWriter(folder, shard_bytes)
    error = _RelativeError()
    done_bytes = 0
    for name in expected_shapes(checkpoint.config):
        weight = finite(checkpoint.tensor(name), name)
        for stored_name, tensor in _stored(name, weight, checkpoint, scheme, error):
            writer.add(stored_name, tensor)
        done_bytes += weight.numel() * getattr(torch, checkpoint.weight_dtype).itemsize
        if progress is not None:
            progress(
                QuantizationProgress(done_bytes=done_bytes, total_bytes=checkpoint.stored_bytes, tensor=name)
            )
    writer.finish()
    write_companions(checkpoint, folder)
    write_json(folder / "config.json", artefact_config(checkpoint, scheme, source, output))
    return QuantizationReport(
        path=output,
        quantization=scheme.description,
        source_bytes=checkpoint.stored_bytes,
        artefact_bytes=writer.total_bytes,
        module_count=len(linear_modules(checkpoint.config)),
        relative_error=error.value,
    )


class _RelativeError:
    """Root of the squared error over the squared weights, summed over modules."""

    def __init__(self) -> None:
        self._error = 0.0
        self._weight = 0.0

    def add(self, weight: Tensor, quantized: Tensor) -> None:
        self._error += float((quantized - weight).square().sum())
        self._weight += float(weight.square().sum())

    @property
    def value(self) -> float:
        return float((self._error / self._weight) ** 0.5) if self._weight else 0.0


def _stored(
    name: str, weight: Tensor, checkpoint: Checkpoint, scheme: QuantizationScheme, error: _RelativeError
) -> Iterator[tuple[str, Tensor]]:
    """What the artefact holds for one tensor of the source."""
    dtype: torch.dtype = getattr(torch, checkpoint.weight_dtype)
    module = name.removesuffix(".weight")
    if module in linear_modules(checkpoint.config) and name != module:
        codes, scales = rtn(weight, scheme, dtype)
        finite(scales, f"{module}.weight_scale")
        error.add(weight.float(), dequantize(codes, scales))
        yield f"{module}.weight_packed", pack(codes)
        yield f"{module}.weight_scale", scales
        yield f"{module}.weight_shape", torch.tensor(weight.shape)
    else:
        # Norms and biases are small enough to stay exact; a dequantised embedding is not.
        yield name, weight if weight.ndim == 1 else finite(weight.to(dtype), name)
