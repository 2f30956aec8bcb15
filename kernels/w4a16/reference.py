"""The law of 4-bit weights: packing, dequantisation and the linear layer, in float32.

On disk, eight codes share one int32: code ``i`` of a word sits at bits ``4 i`` and is stored as code + 8
(compressed-tensors' ``pack-quantized``). The last word of a row may be partly empty.
"""

import torch
from torch import Tensor

CODE_MIN, CODE_MAX = -8, 7
_CODES_PER_WORD = 8
_OFFSET = 8


def pack(codes: Tensor) -> Tensor:
    """Packs codes into words.

    Args:
        codes: int8 ``(N, K)``, each in ``[-8, 7]``.

    Returns:
        int32 ``(N, ceil(K / 8))``; unused places hold zero bits.
    """
    if codes.dtype != torch.int8 or codes.ndim != 2:
        raise ValueError(f"codes must be int8 (N, K); got {codes.dtype} {tuple(codes.shape)}")
    padding = -codes.shape[1] % _CODES_PER_WORD
    nibbles = torch.nn.functional.pad(codes.to(torch.int32) + _OFFSET, (0, padding))
    words = torch.zeros(codes.shape[0], nibbles.shape[1] // _CODES_PER_WORD, dtype=torch.int32)
    for place in range(_CODES_PER_WORD):
        words |= nibbles[:, place::_CODES_PER_WORD] << (4 * place)
    return words


def unpack(packed: Tensor, in_features: int) -> Tensor:
    """The inverse of :func:`pack`.

    Args:
        packed: int32 ``(N, ceil(K / 8))``.
        in_features: K.

    Returns:
        int8 ``(N, K)``.
    """
    width = -(-in_features // _CODES_PER_WORD)
    if packed.dtype != torch.int32 or packed.ndim != 2 or packed.shape[1] != width:
        raise ValueError(
            f"packed must be int32 (N, {width}) for K = {in_features}; "
            f"got {packed.dtype} {tuple(packed.shape)}"
        )
    codes = torch.empty(packed.shape[0], width * _CODES_PER_WORD, dtype=torch.int8)
    for place in range(_CODES_PER_WORD):
        # The shift keeps the sign, the mask drops it.
        codes[:, place::_CODES_PER_WORD] = ((packed >> (4 * place)) & 0xF) - _OFFSET
    return codes[:, :in_features]


def dequantize(codes: Tensor, scales: Tensor) -> Tensor:
    """Weights from codes: ``w[n, k] = codes[n, k] * scales[n, k // G]``.

    The product of a 4-bit code and a 16-bit scale is exact in float32.

    Args:
        codes: int8 ``(N, K)``.
        scales: Any float ``(N, K / G)``.

    Returns:
        float32 ``(N, K)``.
    """
    rows, columns = codes.shape
    groups = codes.reshape(rows, scales.shape[1], _group_size(columns, scales))
    return (groups.float() * scales.float()[:, :, None]).reshape(rows, columns)


def linear(x: Tensor, packed: Tensor, scales: Tensor) -> Tensor:
    """A linear layer on packed weights.

    ``y[m, n] = sum over groups g of scales[n, g] * sum over k in g of x[m, k] * codes[n, k]``

    Args:
        x: Any float ``(M, K)``.
        packed: int32 ``(N, ceil(K / 8))``.
        scales: Any float ``(N, K / G)``.

    Returns:
        float32 ``(M, N)``.
    """
    codes = unpack(packed, x.shape[1])
    group_size = _group_size(x.shape[1], scales)
    y = torch.zeros(x.shape[0], codes.shape[0])
    for group in range(scales.shape[1]):
        columns = slice(group * group_size, (group + 1) * group_size)
        y += (x[:, columns].float() @ codes[:, columns].float().T) * scales[:, group].float()
    return y


def _group_size(in_features: int, scales: Tensor) -> int:
    group_count = scales.shape[1]
    if in_features % group_count:
        raise ValueError(f"{group_count} groups do not divide K = {in_features}")
    return in_features // group_count
