"""Dense linear layers on the processor: y = x weightᵀ + bias."""

from kernels.linear.onednn import linear, pack, packs

__all__ = ["linear", "pack", "packs"]
