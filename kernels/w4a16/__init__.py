"""Linear layers with 4-bit weights and 16-bit activations."""

from kernels.w4a16.reference import CODE_MAX, CODE_MIN, dequantize, linear, pack, unpack

__all__ = ["CODE_MAX", "CODE_MIN", "dequantize", "linear", "pack", "unpack"]
