"""What is evaluated: layers from memory or disk, and how their projections are computed."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.compensator import compensate
from spearhead.model.weights import PlacedCompensator
from spearhead.quant.decoder import Linear, Rotary, layer_forward, plain_linear, rms_norm
from spearhead.quant.layers import LayerSource


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluatedModel:
    """A named model.

    Attributes:
        name: Such as ``fp16``, ``w4`` or ``w4+ec``; unique within an evaluation.
        source: Its layers, embedding and head.
        linear: Computes its projections; compensators live here.
        quantization: Quantiser and convention, for people.
        served_bytes: Bytes of its weights as they are stored and served; 0 = not known.
        baseline: Name of the variant whose gap to the reference this one is to close; empty = none.
        streamed: A layer costs a read from the disk, so it is visited once for many tokens.
    """

    name: str
    source: LayerSource
    linear: Linear = plain_linear
    quantization: str = ""
    served_bytes: int = 0
    baseline: str = ""
    streamed: bool = False

    @property
    def head(self) -> Tensor:
        """``(V, D)``."""
        return self.source.head

    @torch.no_grad()
    def final_hidden(
        self, token_ids: Tensor, *, tokens_at_once: int = 0, on_layer: Callable[[], None] | None = None
    ) -> Tensor:
        """Whole sequences through all layers and the final norm, each layer visited once.

        Args:
            token_ids: int64 ``(B, T)``, padded at the end.
            tokens_at_once: Tokens that pass through a layer together, rounded to whole sequences; 0 = all.
            on_layer: Called after each layer.

        Returns:
            ``(B, T, D)`` in the source's dtype, on its device.
        """
        source = self.source
        tables = Rotary.build(source.config, token_ids.shape[1], source.device)
        hidden = source.embedding[token_ids.to(source.device)]
        part = max(1, tokens_at_once // token_ids.shape[1]) if tokens_at_once else len(token_ids)
        for index in range(source.config.layer_count):
            tensors = source.layer(index)
            for start in range(0, len(hidden), part):
                hidden[start : start + part] = layer_forward(
                    source.config, index, tensors, hidden[start : start + part], tables, self.linear
                )
            if on_layer is not None:
                on_layer()
        return rms_norm(hidden, source.final_norm, source.config.rms_norm_eps)


def compensated_linear(compensators: Mapping[str, PlacedCompensator], inner: Linear = plain_linear) -> Linear:
    """Projections that add a compensator's correction where a module has one, as the served decoder does.

    Args:
        compensators: Full module name to correction, on the device of the activations; row offsets are of
            no account, since modules are not fused here.
        inner: Computes the projection itself.
    """

    def linear(module: str, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        y = inner(module, x, weight, bias)
        found = compensators.get(module)
        if found is None:
            return y
        gate = found.gate
        correction = compensate(
            x.flatten(0, -2), found.a, found.b, None if gate is None else (gate.w1, gate.b1, gate.w2, gate.b2)
        )
        return y + correction.to(y.dtype).view_as(y)

    return linear
