"""Linear layers with 4-bit weights and 16-bit activations."""

from kernels.w4a16.cpu import PackedWeight, fitting_group_size, multiply, pack_codes, packs
from kernels.w4a16.reference import CODE_MAX, CODE_MIN, dequantize, linear, pack, unpack

__all__ = [
    "CODE_MAX",
    "CODE_MIN",
    "PackedWeight",
    "dequantize",
    "fitting_group_size",
    "linear",
    "multiply",
    "pack",
    "pack_codes",
    "packs",
    "unpack",
]
