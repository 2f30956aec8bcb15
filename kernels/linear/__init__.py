"""Dense linear layers: y = x weightᵀ + bias, on the processor, and in blocks of rows on a GPU."""

from kernels.linear.blocks import BLOCK_ROWS, multiply_blocks
from kernels.linear.onednn import linear, pack, packs

__all__ = ["BLOCK_ROWS", "linear", "multiply_blocks", "pack", "packs"]
