"""Weights in the order in which the GPU kernels read them: packed once, when a model is loaded.

A tile of 64 outputs by 128 inputs is 4 KiB in one piece, and the tiles of 64 outputs follow each other along
K, so a program streams one run of bytes. Inside a tile the order is that of the tensor core's register
operand: each thread finds its own eight codes in one word, in pairs, as registers hold them.

======  ===================================================================================================
row     stored as (half, warp, lane) with output = warp * 16 + half * 8 + lane
word    stored as (c, u), holding the inputs 32 u + 16 h + 8 i + 2 c + j
code    at bit 8 h + 4 i + 16 j of its word, stored as code + 8
======  ===================================================================================================

N is padded to a multiple of 64 and K to a multiple of 128 with codes and scales that are zero.
"""

from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels.w4a16.reference import CODE_MIN

TILE_OUTPUTS, TILE_INPUTS = 64, 128
_WORDS = TILE_INPUTS // 8
_SHIFTS = (0, 16, 4, 20, 8, 24, 12, 28)  # of (h, i, j), j fastest


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuWeight:
    """An ``(N, K)`` weight in 4 bits, for the GPU kernels.

    Attributes:
        words: int32 ``(ceil(N / 64), ceil(K / 128), 64, 16)``.
        scales: Float ``(groups, 64 ceil(N / 64))``; one group = per channel.
        bias: Float ``(64 ceil(N / 64),)`` or ``None``.
        out_features: N.
        in_features: K.
        group_size: G: 32, 64 or a multiple of 128; 0 = per channel.
    """

    words: Tensor
    scales: Tensor
    bias: Tensor | None
    out_features: int
    in_features: int
    group_size: int

    @property
    def shape(self) -> torch.Size:
        """``(N, K)``."""
        return torch.Size((self.out_features, self.in_features))

    @property
    def padded_outputs(self) -> int:
        """N rounded up to whole tiles."""
        return self.words.shape[0] * TILE_OUTPUTS

    @property
    def nbytes(self) -> int:
        """Bytes that one product reads of this weight."""
        return self.words.nbytes + self.scales.nbytes + (0 if self.bias is None else self.bias.nbytes)


def kernel_group_size(in_features: int, group_count: int) -> int:
    """The group size that the kernels use for a weight's own groups.

    Args:
        in_features: K.
        group_count: Scales a row.

    Returns:
        0 = per channel, else the largest size that the kernels know and that divides the weight's own.

    Raises:
        ValueError: The groups do not divide K, or are no multiple of 32.
    """
    if group_count == 1:
        return 0
    if in_features % group_count:
        raise ValueError(
            f"{group_count} groups do not divide K = {in_features}; quantise with a divisor of K"
        )
    own = in_features // group_count
    if own % TILE_INPUTS == 0:
        return own
    for size in (64, 32):
        if own % size == 0:
            return size
    raise ValueError(
        f"groups of {own} inputs cannot be multiplied on the GPU; use a multiple of 32, or one scale per row"
    )


def pack_gpu(codes: Tensor, scales: Tensor, bias: Tensor | None = None) -> GpuWeight:
    """Lays a weight out for the GPU kernels, on the device where it is.

    Args:
        codes: int8 ``(N, K)``, each in ``[-8, 7]``.
        scales: Any float ``(N, K / G)``; kept in its type.
        bias: Any float ``(N,)`` or ``None``; kept in its type.

    Raises:
        ValueError: Types or shapes do not fit, or :func:`kernel_group_size` has no answer.
    """
    if codes.dtype != torch.int8 or codes.ndim != 2 or scales.ndim != 2 or len(scales) != len(codes):
        raise ValueError(
            f"codes must be int8 (N, K) with scales (N, groups); got {codes.dtype} {tuple(codes.shape)} "
            f"and {tuple(scales.shape)}"
        )
    outputs, inputs = codes.shape
    if bias is not None and bias.shape != (outputs,):
        raise ValueError(f"bias must be ({outputs},); got {tuple(bias.shape)}")
    group_size = kernel_group_size(inputs, scales.shape[1])
    extra_outputs, extra_inputs = -outputs % TILE_OUTPUTS, -inputs % TILE_INPUTS
    return GpuWeight(
        words=_words(F.pad(codes, (0, extra_inputs, 0, extra_outputs))),
        scales=_scales(scales, inputs, inputs + extra_inputs, group_size, extra_outputs),
        bias=None if bias is None else F.pad(bias, (0, extra_outputs)),
        out_features=outputs,
        in_features=inputs,
        group_size=group_size,
    )


def with_bias(weight: GpuWeight, bias: Tensor) -> GpuWeight:
    """The same weight with a bias that the product adds; codes and scales are shared.

    Args:
        weight: ``(N, K)``.
        bias: Any float ``(N,)`` on the same device; kept in its type.

    Raises:
        ValueError: The bias is of another length.
    """
    if bias.shape != (weight.out_features,):
        raise ValueError(f"bias must be ({weight.out_features},); got {tuple(bias.shape)}")
    return replace(weight, bias=F.pad(bias, (0, weight.padded_outputs - weight.out_features)))


def unpack_gpu(weight: GpuWeight) -> Tensor:
    """The inverse of :func:`pack_gpu`.

    Returns:
        int8 ``(N, K)``.
    """
    nibbles = torch.stack([weight.words >> shift & 0xF for shift in _SHIFTS], dim=-1)
    blocks, chunks = weight.words.shape[:2]
    split = nibbles.view(blocks, chunks, 2, 4, 8, 4, 4, 2, 2, 2)  # half warp lane | c u | h i j
    ordered = split.permute(0, 3, 2, 4, 1, 6, 7, 8, 5, 9)  # warp half lane | chunk u h i c j
    codes = ordered.reshape(blocks * TILE_OUTPUTS, chunks * TILE_INPUTS) + CODE_MIN
    return codes[: weight.out_features, : weight.in_features].to(torch.int8)


def _words(codes: Tensor) -> Tensor:
    blocks, chunks = codes.shape[0] // TILE_OUTPUTS, codes.shape[1] // TILE_INPUTS
    nibbles = codes.to(torch.int32) - CODE_MIN
    split = nibbles.view(blocks, 4, 2, 8, chunks, 4, 2, 2, 4, 2)  # warp half lane | chunk u h i c j
    ordered = split.permute(0, 4, 2, 1, 3, 8, 5, 6, 7, 9)  # chunk half warp lane | c u | h i j
    places = ordered.reshape(blocks, chunks, TILE_OUTPUTS, _WORDS, 8)
    words = torch.zeros(places.shape[:-1], dtype=torch.int32, device=codes.device)
    for place, shift in enumerate(_SHIFTS):
        words |= places[..., place] << shift
    return words


def _scales(scales: Tensor, inputs: int, padded_inputs: int, group_size: int, extra_outputs: int) -> Tensor:
    size = group_size or inputs
    repeated = scales.repeat_interleave(inputs // scales.shape[1] // size, dim=1)
    groups = -(-padded_inputs // size) if group_size else 1
    return F.pad(repeated.T, (0, extra_outputs, 0, groups - repeated.shape[1])).contiguous()
