"""One pass over the calibration tokens, layer after layer: only one layer's tensors are in memory."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from spearhead.model.checkpoint.layout import layer_name
from spearhead.quant.decoder import LayerTensors, Linear, Rotary, layer_forward, plain_linear
from spearhead.quant.layers import LayerSource
from spearhead.quant.moments import Moments, MomentsAccumulator
from spearhead.quant.sequences import TokenBatch

INPUT_OF = {
    "self_attn.q_proj": "self_attn.q_proj",
    "self_attn.k_proj": "self_attn.q_proj",
    "self_attn.v_proj": "self_attn.q_proj",
    "self_attn.o_proj": "self_attn.o_proj",
    "mlp.gate_proj": "mlp.gate_proj",
    "mlp.up_proj": "mlp.gate_proj",
    "mlp.down_proj": "mlp.down_proj",
}
"""Projection to the first projection of the layer that reads the same input."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerVisit:
    """One layer during a pass.

    Attributes:
        index: Which layer.
        tensors: Its tensors.
        moments: Projection within the layer to the moments of its inputs; shared where inputs are.
        inputs: The residual stream before the layer, one ``(B, T, D)`` a batch, on the pass's store device.
        batches: The batches; their masks say which tokens count.
        rotary: Tables of all positions.
    """

    index: int
    tensors: LayerTensors
    moments: dict[str, Moments]
    inputs: Sequence[Tensor]
    batches: Sequence[TokenBatch]
    rotary: Rotary


Advance = Callable[[LayerVisit], LayerTensors]
"""Looks at a layer and returns the tensors that compute the next layer's inputs."""


Keep = Callable[[int, int, Tensor], Tensor]
"""Puts the residual stream before a layer where it waits, from (layer, number of the batch, (B, T, D)), and
returns it from there."""


def visit_layers(
    source: LayerSource,
    batches: Sequence[TokenBatch],
    advance: Advance,
    *,
    replaces: bool = True,
    store: torch.device | None = None,
    keep: Keep | None = None,
    first_layer: int = 0,
    inputs: Sequence[Tensor] | None = None,
) -> list[Tensor]:
    """Runs the batches through the layers, gathering moments of every projection's inputs.

    Args:
        source: The model.
        batches: Calibration tokens; moments are of those that are valid.
        advance: Called for each layer once its moments are known. Returning ``visit.tensors`` keeps the
            inputs of later layers those of ``source``; returning quantised tensors makes later layers see
            what quantised ones see.
        replaces: Whether ``advance`` may return other tensors than those of the visit. If not, a layer is
            computed once instead of twice, and what ``advance`` returns is not looked at.
        store: Where the residual stream waits between layers; default the source's device.
        keep: Puts it there instead, such as into files.
        first_layer: Where to go on after an interruption, with ``inputs``.
        inputs: Residual stream before ``first_layer``, one tensor a batch.

    Returns:
        The residual stream after the last layer, one tensor a batch.

    Raises:
        CalibrationError: An input that is not finite.
    """
    place = store or source.device
    put = keep or (lambda _layer, _batch, stream: stream.to(place))
    with torch.no_grad():
        stream = (
            [
                put(0, number, source.embedding[b.token_ids.to(source.device)])
                for number, b in enumerate(batches)
            ]
            if inputs is None
            else list(inputs)
        )
        width = max(batch.token_ids.shape[1] for batch in batches)
        rotary = Rotary.build(source.config, width, source.device)
        for index in range(first_layer, source.config.layer_count):
            tensors = source.layer(index)
            sums = _sums(source, index, tensors)
            results = _gather(source, index, tensors, stream, batches, rotary, sums)
            ahead: list[Tensor] = []
            for number, hidden in enumerate(results):
                if not replaces:
                    ahead.append(put(index + 1, number, hidden))
            visit = LayerVisit(
                index=index,
                tensors=tensors,
                moments=_moments(index, sums),
                inputs=stream,
                batches=batches,
                rotary=rotary,
            )
            after = advance(visit)
            if replaces:
                results = _forward(source, index, after, stream, rotary, plain_linear)
                ahead = [put(index + 1, number, hidden) for number, hidden in enumerate(results)]
            stream = ahead
    return stream


def _sums(source: LayerSource, index: int, tensors: LayerTensors) -> dict[str, MomentsAccumulator]:
    """Module name to its empty sums, one for each input that projections share."""
    return {
        layer_name(index, part): MomentsAccumulator(
            layer_name(index, part), tensors[f"{part}.weight"].shape[1], source.device
        )
        for part in dict.fromkeys(INPUT_OF.values())
    }


def _moments(index: int, sums: Mapping[str, MomentsAccumulator]) -> dict[str, Moments]:
    finished = {module: accumulator.finish() for module, accumulator in sums.items()}
    return {part: finished[layer_name(index, first)] for part, first in INPUT_OF.items()}


def _gather(
    source: LayerSource,
    index: int,
    tensors: LayerTensors,
    stream: Sequence[Tensor],
    batches: Sequence[TokenBatch],
    rotary: Rotary,
    sums: Mapping[str, MomentsAccumulator],
) -> Iterator[Tensor]:
    """The layer's outputs, whose inputs go into the sums on the way."""
    valid = torch.empty(0, dtype=torch.bool)

    def watching(module: str, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        if module in sums:
            sums[module].add(x, valid)
        return plain_linear(module, x, weight, bias)

    for batch, hidden in zip(batches, stream, strict=True):
        valid = batch.valid.to(source.device)
        yield from _forward(source, index, tensors, [hidden], rotary, watching)


def _forward(
    source: LayerSource,
    index: int,
    tensors: LayerTensors,
    stream: Sequence[Tensor],
    rotary: Rotary,
    linear: Linear,
) -> Iterator[Tensor]:
    for hidden in stream:
        after = layer_forward(
            source.config,
            index,
            tensors,
            hidden.to(source.device),
            rotary.part(0, hidden.shape[1]),
            linear,
        )
        yield after
