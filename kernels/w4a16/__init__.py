"""Linear layers with 4-bit weights and 16-bit activations."""

from kernels.w4a16.cpu import PackedWeight, fitting_group_size, multiply, pack_codes, packs
from kernels.w4a16.dispatch import GpuProducts, Phase
from kernels.w4a16.layout import GpuWeight, kernel_group_size, pack_gpu, unpack_gpu, with_bias
from kernels.w4a16.plan import LayerPlan, Tile, computes_codes
from kernels.w4a16.reference import CODE_MAX, CODE_MIN, dequantize, linear, pack, unpack
from kernels.w4a16.rooms import Rooms, room_words
from kernels.w4a16.table import Plans
from kernels.w4a16.workspace import Workspace

__all__ = [
    "CODE_MAX",
    "CODE_MIN",
    "GpuProducts",
    "GpuWeight",
    "LayerPlan",
    "PackedWeight",
    "Phase",
    "Plans",
    "Rooms",
    "Tile",
    "Workspace",
    "computes_codes",
    "dequantize",
    "fitting_group_size",
    "kernel_group_size",
    "linear",
    "multiply",
    "pack",
    "pack_codes",
    "pack_gpu",
    "packs",
    "room_words",
    "unpack",
    "unpack_gpu",
    "with_bias",
]
