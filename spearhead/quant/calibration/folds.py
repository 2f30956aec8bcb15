"""Input scales that a quantiser folded into the layer: W' = diag(row) W diag(column), x' = x / column.

An artefact of `spearhead quantize` records them. A published AWQ checkpoint does not, but shows them: a
scaled norm is the norm divided by the scale, and scaled rows are the full-precision rows times a factor,
which the 4-bit weights give by least squares. Any such factor leaves the full-precision layer what it
computes, so that an estimate costs nothing but a little of the correction's fit.
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
    columns: dict[str, Tensor] = {}
    rows: dict[str, Tensor] = {}
    for index in range(full.config.layer_count):
        for producer, consumers in FOLDS.items():
            name = layer_name(index, producer)
            if producer.endswith("_proj"):
                scales = _rows_shown(artefact, full, name, columns.get(name))
            else:
                scales = _norm_shown(artefact, full, name)
            if (
                scales is None
                or scales.shape[0] != full.shapes[f"{layer_name(index, consumers[0])}.weight"][1]
            ):
                continue
            if producer.endswith("_proj"):
                rows[name] = 1 / scales
            columns |= {layer_name(index, part): scales for part in consumers}
    return Folds(columns=columns, rows=rows)


def _norm_shown(artefact: Checkpoint, full: Checkpoint, name: str) -> Tensor | None:
    mine, original = (one.tensor(f"{name}.weight").float() for one in (artefact, full))
    if bool(((mine - original).abs() <= _SAME * original.abs() + 1e-8).all()):
        return None
    scales = original / mine
    usable = torch.isfinite(scales) & (scales > 0)
    return torch.where(usable, scales, torch.ones_like(scales))


def _rows_shown(artefact: Checkpoint, full: Checkpoint, name: str, columns: Tensor | None) -> Tensor | None:
    """Only asked of checkpoints without a record, whose own description says that they are AWQ's."""
    method = artefact.hugging_face_config.get("quantization_config", {}).get("quant_method")
    if method != "awq":
        return None
    mine, original = (one.tensor(f"{name}.weight").float() for one in (artefact, full))
    if columns is not None:
        original = original * columns
    factor = (mine * original).sum(1) / original.square().sum(1)  # of the rows; 1 where nothing was folded
    usable = torch.isfinite(factor) & (factor > 0)
    return torch.where(usable, 1 / factor, torch.ones_like(factor))
