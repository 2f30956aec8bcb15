"""Folding input scales into what comes before a module, for one layer: the part of AWQ that sees the graph.

input_layernorm          → q_proj, k_proj, v_proj
v_proj                   → o_proj     (where each input of o_proj is one output of v_proj)
post_attention_layernorm → gate_proj, up_proj
up_proj                  → down_proj
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from spearhead.quant.fold_scales import FoldScales
from spearhead.quant.methods.awq import Consumer, search_input_scales
from spearhead.quant.moments import Moments
from spearhead.quant.recipe import ModuleChoice

FOLDS = {
    "input_layernorm": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "self_attn.v_proj": ("self_attn.o_proj",),
    "post_attention_layernorm": ("mlp.gate_proj", "mlp.up_proj"),
    "mlp.up_proj": ("mlp.down_proj",),
}
"""Producer of an input to the modules that read it."""

LayerChoices = Mapping[str, ModuleChoice | None]
"""Projection within the layer to its choice."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FoldedLayer(FoldScales):
    """A layer that computes the same with other weights, and the scales of its projections.

    Attributes:
        tensors: By name within the layer, float32.
    """

    tensors: dict[str, Tensor]


def fold_layer(
    tensors: Mapping[str, Tensor],
    choices: LayerChoices,
    moments: Mapping[str, Moments],
    *,
    points: int,
    dtype: torch.dtype,
) -> FoldedLayer:
    """Searches and folds input scales wherever every module that reads an input chose to.

    Args:
        tensors: Of the layer, by name within it, float32.
        choices: Of its projections.
        moments: Of their inputs.
        points: Exponents that are tried.
        dtype: How norms, biases and scales are stored.
    """
    folded = FoldedLayer(tensors=dict(tensors))
    for producer, consumers in FOLDS.items():
        if not _can_fold(producer, consumers, choices, tensors):
            continue
        scales = search_input_scales(
            [_consumer(folded, choices, part) for part in consumers], moments[consumers[0]], points, dtype
        )
        if scales is not None:
            _fold(folded, producer, consumers, scales, dtype)
    return folded


def _can_fold(
    producer: str, consumers: tuple[str, ...], choices: LayerChoices, tensors: Mapping[str, Tensor]
) -> bool:
    if not all((choice := choices[part]) is not None and choice.folds for part in consumers):
        return False
    maker = choices.get(producer)
    if maker is not None and maker.scheme.granularity == "tensor":
        return False  # scaled rows would not share a scale any more
    return tensors[f"{producer}.weight"].shape[0] == tensors[f"{consumers[0]}.weight"].shape[1]


def _consumer(folded: FoldedLayer, choices: LayerChoices, part: str) -> Consumer:
    choice = choices[part]
    assert choice is not None, "only modules that fold are asked for"
    return Consumer(weight=folded.tensors[f"{part}.weight"], grid=choice.grid)


def _fold(
    folded: FoldedLayer, producer: str, consumers: tuple[str, ...], scales: Tensor, dtype: torch.dtype
) -> None:
    if producer.endswith("_proj"):
        _shrink_rows(folded, producer, scales)
    else:
        scales = _shrink_norm(folded, producer, scales, dtype)
    for part in consumers:
        folded.tensors[f"{part}.weight"] = folded.tensors[f"{part}.weight"] * scales
        folded.columns[part] = scales


def _shrink_rows(folded: FoldedLayer, producer: str, scales: Tensor) -> None:
    for name, shrink in ((f"{producer}.weight", 1 / scales[:, None]), (f"{producer}.bias", 1 / scales)):
        if name in folded.tensors:
            folded.tensors[name] = folded.tensors[name] * shrink
    folded.rows[producer] = 1 / scales


def _shrink_norm(folded: FoldedLayer, norm: str, scales: Tensor, dtype: torch.dtype) -> Tensor:
    """Rounds the smaller norm to its storage type first and returns the scales that it then stands for."""
    name = f"{norm}.weight"
    before = folded.tensors[name]
    after = (before / scales).to(dtype).float()
    usable = (after.abs() >= torch.finfo(dtype).tiny) & torch.isfinite(after)
    folded.tensors[name] = torch.where(usable, after, before)
    return torch.where(usable, before / torch.where(usable, after, 1.0), 1.0)
