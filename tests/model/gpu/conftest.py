"""The GPU's decoder without a GPU: the references of its kernels, and its weights, on the processor."""

import os
from collections.abc import Mapping
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from kernels.compensator import GpuCompensator
from kernels.linear import multiply_blocks
from kernels.producer import CodeWorkspace, gated_codes, total_codes
from kernels.w4a16 import GpuWeight, dequantize, pack_gpu, unpack_gpu
from spearhead.model.checkpoint import Checkpoint, load_variants
from spearhead.model.gpu.decoder import GpuDecoder
from spearhead.model.gpu.weights import prepared
from spearhead.model.kv_cache import KvStorage
from spearhead.model.weights import LinearWeights, ModelWeights

CPU = torch.device("cpu")
FUSED = {
    "qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "output": ("self_attn.o_proj",),
    "gate_up": ("mlp.gate_proj", "mlp.up_proj"),
    "down": ("mlp.down_proj",),
}


if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # decided when a kernel is defined, so before any is imported


class ReferenceLinears:
    """The law of the products, in float32 where the kernels have it."""

    def __init__(self) -> None:
        self.codes = CodeWorkspace(partials=torch.empty(0), arrivals=torch.empty(0))
        self.codes_received = 0
        self.passes: list[int] = []
        self.own_code_rows = 0

    def start(self, weights: ModelWeights, rows: int) -> None:
        self.passes.append(rows)

    def front(self, linear: LinearWeights, rows: int) -> GpuCompensator | None:
        assert rows == self.passes[-1]
        return None if rows <= self.own_code_rows else linear.gpu_compensator

    def multiply(self, x: Tensor, linear: LinearWeights, codes: Tensor | None = None) -> Tensor:
        weight, compensator = linear.weight, linear.gpu_compensator
        if isinstance(weight, GpuWeight):
            scales = weight.scales[:, : weight.out_features].T
            groups = weight.in_features // (weight.group_size or weight.in_features)
            dense = dequantize(unpack_gpu(weight), scales[:, :groups])
            y = multiply_blocks(x.float(), dense)
            if weight.bias is not None:
                y = y + weight.bias[: weight.out_features].float()
        else:
            y = multiply_blocks(x, weight, linear.bias).float()
        self.codes_received += codes is not None
        if compensator is not None:
            codes = gated_codes(x, compensator) if codes is None else total_codes(codes)
            first = 0
            for place, count in enumerate(compensator.outputs):
                own = codes[:, place * compensator.rank : (place + 1) * compensator.rank]
                y[:, first : first + count] += own @ compensator.b[first : first + count].float().T
                first += count
        return y.to(x.dtype)


@pytest.fixture
def reference_linears() -> ReferenceLinears:
    """The law of the products."""
    return ReferenceLinears()


@pytest.fixture
def make_decoder():
    """``make_decoder(config, pages=64, dtype=float32) -> GpuDecoder`` on the processor."""

    def make(config, *, pages: int = 64, dtype: torch.dtype = torch.float32) -> GpuDecoder:
        storage = KvStorage(config, pages, 16, dtype, CPU)
        return GpuDecoder(config, storage, ReferenceLinears(), context_length=256)

    return make


@pytest.fixture
def load_for_gpu():
    """``load_for_gpu(checkpoint, variants, dtype, four_bits=True) -> weights`` as a GPU would hold them."""

    def load(
        checkpoint: Checkpoint,
        variants: tuple[str, ...],
        dtype: torch.dtype = torch.float32,
        *,
        four_bits: bool = True,
    ) -> Mapping[str, ModelWeights]:
        loaded = load_variants(checkpoint, variants=variants, dtype=dtype, device=CPU)
        if four_bits:
            loaded = {name: in_four_bits(checkpoint, weights) for name, weights in loaded.items()}
        return prepared(loaded, dtype)

    return load


def in_four_bits(checkpoint: Checkpoint, weights: ModelWeights) -> ModelWeights:
    """The same weights with every projection that has codes in the GPU's layout."""
    if weights.variant == "fp16":
        return weights
    layers = []
    for index, layer in enumerate(weights.layers):
        linears = {}
        for field, parts in FUSED.items():
            found = [checkpoint.quantized_weight(f"model.layers.{index}.{part}") for part in parts]
            packed = pack_gpu(
                torch.cat([one.codes for one in found]), torch.cat([one.scales for one in found])
            )
            linears[field] = replace(getattr(layer, field), weight=packed)
        layers.append(replace(layer, **linears))
    return replace(weights, layers=tuple(layers))
