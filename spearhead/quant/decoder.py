"""The decoder as plain batched attention, one layer at a time: for statistics, training and evaluation.

Serving runs :mod:`spearhead.model.decoder` over paged KV. Offline work wants whole sequences, gradients, and
a say in every projection; so each projection goes through a :data:`Linear` that the caller gives.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from spearhead.model.architecture import ModelConfig, inverse_frequencies
from spearhead.model.checkpoint.layout import layer_name

LayerTensors = Mapping[str, Tensor]
"""Tensors of one layer by their name within it, such as ``self_attn.q_proj.weight``."""

Linear = Callable[[str, Tensor, Tensor, Tensor | None], Tensor]
"""Computes one projection from (full module name, x (B, T, K), weight (N, K), bias (N,) or None)."""


def plain_linear(module: str, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """The projection itself, in the dtype of ``x``."""
    return F.linear(x, weight, bias)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rotary:
    """Cosines and sines of positions 0…T-1.

    Attributes:
        cosines: float32 ``(T, head_dim / 2)``.
        sines: float32 ``(T, head_dim / 2)``.
    """

    cosines: Tensor
    sines: Tensor

    @classmethod
    def build(cls, config: ModelConfig, length: int, device: torch.device) -> "Rotary":
        """The tables for sequences of up to ``length`` tokens."""
        frequencies, factor = inverse_frequencies(config.rope, config.head_dim)
        angles = torch.outer(torch.arange(length, dtype=torch.float32), frequencies)
        return cls(cosines=(angles.cos() * factor).to(device), sines=(angles.sin() * factor).to(device))

    def part(self, start: int, stop: int) -> "Rotary":
        """The positions ``start`` to ``stop``."""
        return Rotary(cosines=self.cosines[start:stop], sines=self.sines[start:stop])


@dataclass(slots=True, kw_only=True)
class KeyValues:
    """Keys and values of the tokens before, for generation; grown by :func:`layer_forward`.

    Attributes:
        keys: ``(B, KV, capacity, head_dim)``.
        values: ``(B, KV, capacity, head_dim)``.
        length: Tokens that are filled.
    """

    keys: Tensor
    values: Tensor
    length: int = 0


def layer_forward(
    config: ModelConfig,
    index: int,
    tensors: LayerTensors,
    hidden: Tensor,
    rotary: Rotary,
    linear: Linear = plain_linear,
    past: KeyValues | None = None,
) -> Tensor:
    """One decoder layer over whole sequences, causal; pad sequences at their end, then nothing sees padding.

    Args:
        config: The model's shape.
        index: Which layer.
        tensors: Its tensors.
        hidden: ``(B, T, D)``, the residual stream.
        rotary: Tables of the T positions.
        linear: Computes the projections.
        past: Earlier tokens, which the new ones see and join.

    Returns:
        ``(B, T, D)``.
    """

    def project(part: str, x: Tensor) -> Tensor:
        return linear(layer_name(index, part), x, tensors[f"{part}.weight"], tensors.get(f"{part}.bias"))

    def norm(part: str, x: Tensor) -> Tensor:
        return rms_norm(x, tensors[f"{part}.weight"], config.rms_norm_eps)

    normed = norm("input_layernorm", hidden)
    query, key, value = (
        project(f"self_attn.{part}", normed).view(*normed.shape[:2], -1, config.head_dim).transpose(1, 2)
        for part in ("q_proj", "k_proj", "v_proj")
    )  # (B, heads, T, head_dim)
    if config.qk_norm:
        query, key = norm("self_attn.q_norm", query), norm("self_attn.k_norm", key)
    query, key = _rotate(query, rotary), _rotate(key, rotary)
    attended = _attend(query, key, value, config.sliding_windows[index], past)
    hidden = hidden + project("self_attn.o_proj", attended.transpose(1, 2).flatten(2))
    normed = norm("post_attention_layernorm", hidden)
    inner = F.silu(project("mlp.gate_proj", normed)) * project("mlp.up_proj", normed)
    return hidden + project("mlp.down_proj", inner)


def rms_norm(hidden: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Root-mean-square norm over the last dimension, computed in float32, in the dtype of ``hidden``."""
    return F.rms_norm(hidden.float(), (hidden.shape[-1],), None, eps).to(hidden.dtype) * weight


def _rotate(heads: Tensor, rotary: Rotary) -> Tensor:
    first, second = heads.float().chunk(2, dim=-1)
    cosines, sines = rotary.cosines, rotary.sines
    turned = torch.cat((first * cosines - second * sines, second * cosines + first * sines), dim=-1)
    return turned.to(heads.dtype)


def _attend(query: Tensor, key: Tensor, value: Tensor, window: int | None, past: KeyValues | None) -> Tensor:
    start, count = 0, query.shape[2]
    if past is not None:
        start, end = past.length, past.length + count
        past.keys[:, :, start:end], past.values[:, :, start:end] = key, value
        past.length = end
        key, value = past.keys[:, :, :end], past.values[:, :, :end]
    if start == 0 and (window is None or count <= window):
        return _dot_product(query, key, value, causal=True)
    if count == 1 and (window is None or start < window):
        # The query heads of a group become rows of one product: nothing is repeated for them.
        rows = query.reshape(*key.shape[:2], -1, query.shape[-1])
        return F.scaled_dot_product_attention(rows, key, value).reshape(query.shape)
    places = torch.arange(start + count, device=query.device)
    distance = places[start:, None] - places[None]
    seen = (distance >= 0) & (distance < (window or start + count))
    return _dot_product(query, key, value, seen=seen)


def _dot_product(
    query: Tensor, key: Tensor, value: Tensor, *, seen: Tensor | None = None, causal: bool = False
) -> Tensor:
    group = query.shape[1] // key.shape[1]
    if group > 1 and query.dtype == torch.float32:
        # No GPU kernel takes groups in float32: the scores of all pairs of tokens would be held.
        key, value = key.repeat_interleave(group, dim=1), value.repeat_interleave(group, dim=1)
    return F.scaled_dot_product_attention(
        query, key, value, seen, is_causal=causal, enable_gqa=query.shape[1] != key.shape[1]
    )
