"""Input scales that a quantiser folded into the layer: W' = diag(row) W diag(column), x' = x / column.

An artefact of `spearhead quantize` records them. A published checkpoint, of AWQ or SmoothQuant in whatever
format, does not, but shows them: a scaled norm is the norm divided by the scale, and scaled rows are the
full-precision rows times a factor, which the 4-bit weights give by least squares. Any such factor leaves the
full-precision layer what it computes, so that an estimate costs nothing but a little of the correction's fit.
"""

from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from spearhead.errors import CheckpointError
from spearhead.model.checkpoint import Checkpoint
from spearhead.model.checkpoint.layout import layer_name
from spearhead.quant.artefact import FOLDS_FILE
from spearhead.quant.fold_scales import FoldScales
from spearhead.quant.quantizing.folding import FOLDS

_PROJECTIONS = [producer for producer in FOLDS if producer.endswith("_proj")]
_NORMS = [producer for producer in FOLDS if producer not in _PROJECTIONS]

_SAME = 1e-2
"""Norms that differ by less than this, relatively, were rounded and not folded."""


class Folds(FoldScales):
    """Scales by full module name."""

    __slots__ = ()

    @classmethod
    def of(cls, artefact: Checkpoint, full: Checkpoint) -> "Folds":
        """Those recorded beside an artefact, else those that its norms and rows show.

        Raises:
            CheckpointError: The record cannot be read.
        """
        path = artefact.path / FOLDS_FILE
        if path.exists():
            return _recorded(path)
        return _shown(artefact, full)


def _recorded(path: Path) -> Folds:
    try:
        tensors = load_file(path)
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{path} cannot be read: {error}; quantise again") from error
    kinds: dict[str, dict[str, Tensor]] = {"input_scale": {}, "output_scale": {}}
    for name, tensor in tensors.items():
        module, _, kind = name.rpartition(".")
        kinds[kind][module] = tensor.float()
    return Folds(columns=kinds["input_scale"], rows=kinds["output_scale"])


def _shown(artefact: Checkpoint, full: Checkpoint) -> Folds:
    found = Folds()
    for index in range(full.config.layer_count):
        for producer in _NORMS:
            _add(found, index, producer, _norm_shown(artefact, full, layer_name(index, producer)), full)
    method = artefact.hugging_face_config.get("quantization_config", {}).get("quant_method")
    if not found.columns and method != "awq":
        return found
    # Whoever scaled the norms may have scaled rows as well; where not, the factors come out as about 1.
    for index in range(full.config.layer_count):
        for producer in _PROJECTIONS:
            name = layer_name(index, producer)
            _add(found, index, producer, _rows_shown(artefact, full, name, found.columns.get(name)), full)
    return found


def _add(found: Folds, index: int, producer: str, scales: Tensor | None, full: Checkpoint) -> None:
    consumers = [layer_name(index, part) for part in FOLDS[producer]]
    if scales is None or scales.shape[0] != full.shapes[f"{consumers[0]}.weight"][1]:
        return
    if producer in _PROJECTIONS:
        found.rows[layer_name(index, producer)] = 1 / scales
    found.columns.update(dict.fromkeys(consumers, scales))


def _norm_shown(artefact: Checkpoint, full: Checkpoint, name: str) -> Tensor | None:
    mine, original = (one.tensor(f"{name}.weight").float() for one in (artefact, full))
    if bool(((mine - original).abs() <= _SAME * original.abs() + 1e-8).all()):
        return None
    scales = original / mine
    usable = torch.isfinite(scales) & (scales > 0)
    return torch.where(usable, scales, torch.ones_like(scales))


def _rows_shown(artefact: Checkpoint, full: Checkpoint, name: str, columns: Tensor | None) -> Tensor:
    """Scales ``(N,)`` that the rows of a projection were divided by, by least squares."""
    mine, original = (one.tensor(f"{name}.weight").float() for one in (artefact, full))
    if columns is not None:
        original = original * columns
    factor = (mine * original).sum(1) / original.square().sum(1)
    usable = torch.isfinite(factor) & (factor > 0)
    return torch.where(usable, 1 / factor, torch.ones_like(factor))
