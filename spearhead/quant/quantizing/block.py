"""A layer as a function of some of its weights, for learned clipping."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from spearhead.model.architecture import ModelConfig
from spearhead.quant.decoder import layer_forward
from spearhead.quant.layer_pass import LayerVisit


class Block:
    """Compares a layer with other weights to the true one, on the inputs of a visit.

    Args:
        config: The model's shape.
        true: The layer's tensors, float32; their outputs are the targets.
        other: Tensors of a layer that computes the same, whose weights will be replaced.
        visit: Gives the inputs; batches in which no token counts are left out.
    """

    def __init__(
        self, config: ModelConfig, true: Mapping[str, Tensor], other: Mapping[str, Tensor], visit: LayerVisit
    ) -> None:
        self._config = config
        self._other = other
        self._visit = visit
        self._counted = [place for place, batch in enumerate(visit.batches) if bool(batch.valid.any())]
        self._device = next(iter(true.values())).device
        self._targets: Sequence[Tensor] = [
            self._forward(true, place).to(visit.inputs[place].device) for place in self._counted
        ]

    @property
    def batch_count(self) -> int:
        """Batches that :meth:`loss` knows."""
        return len(self._counted)

    def loss(self, weights: Mapping[str, Tensor], batch: int) -> Tensor:
        """Mean squared error of the layer's output over the tokens of a batch that count."""
        place = self._counted[batch]
        tensors = {**self._other, **{f"{part}.weight": weight for part, weight in weights.items()}}
        valid = self._visit.batches[place].valid.to(self._device)
        target = self._targets[batch].to(self._device)
        return (self._forward(tensors, place) - target)[valid].square().mean()

    def _forward(self, tensors: Mapping[str, Tensor], place: int) -> Tensor:
        hidden = self._visit.inputs[place].to(self._device, torch.float32)
        rotary = self._visit.rotary.part(0, hidden.shape[1])
        return layer_forward(self._config, self._visit.index, tensors, hidden, rotary)
