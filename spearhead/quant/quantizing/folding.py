"""Folding input scales into what comes before a module, for one layer: the part of AWQ that sees the graph.

input_layernorm          → q_proj, k_proj, v_proj
v_proj                   → o_proj     (where each input of o_proj is one output of v_proj)
post_attention_layernorm → gate_proj, up_proj
up_proj                  → down_proj
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

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


@dataclass(slots=True, kw_only=True)
class FoldedLayer:
    """A layer that computes the same with other weights: ``W' = diag(row) · W · diag(column)``.

    Attributes:
        tensors: By name within the layer, float32.
        columns: Projection to its input scales ``(K,)``, where they are not 1.
        rows: Projection to its output scales ``(N,)``, where they are not 1.
    """

    tensors: dict[str, Tensor]
    columns: dict[str, Tensor] = field(default_factory=dict)
    rows: dict[str, Tensor] = field(default_factory=dict)

    def unfolded(self, part: str, weight: Tensor) -> Tensor:
        """What a weight of the folded layer stands for in the original one."""
        if part in self.columns:
            weight = weight / self.columns[part]
        return weight / self.rows[part][:, None] if part in self.rows else weight

    def moments(self, part: str, original: Moments) -> Moments:
        """Of the inputs that the projection sees in the folded layer."""
        if part not in self.columns:
            return original
        shrink = 1 / self.columns[part].to(original.second)
        return replace(
            original,
            second=original.second * shrink[:, None] * shrink,
            mean_abs=original.mean_abs * shrink,
            peak_mean_abs=original.peak_mean_abs * shrink,
            peak_abs=original.peak_abs * shrink,
        )


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
