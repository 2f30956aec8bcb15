"""Rotary position embeddings: the frequencies of every supported scaling."""

import math
from dataclasses import dataclass
from typing import Literal

import torch

RopeScaling = Literal["none", "linear", "llama3", "yarn"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeConfig:
    """How positions become rotations.

    Attributes:
        theta: Base of the geometric series of wavelengths.
        scaling: Which rule stretches the context; ``none`` ignores everything below.
        factor: How much the context is stretched (all rules).
        original_context_length: Context in tokens before stretching (llama3, yarn).
        low_freq_factor: Wavelengths beyond context / this are divided by ``factor`` (llama3).
        high_freq_factor: Wavelengths below context / this are kept (llama3).
        beta_fast: Rotations over the original context above which a dimension is kept (yarn).
        beta_slow: Rotations below which a dimension is divided by ``factor`` (yarn).
        attention_factor: Factor on cosines and sines; ``None`` = from ``factor`` and the mscales (yarn).
        mscale: Numerator of the inferred attention factor; 0 = not given (yarn).
        mscale_all_dim: Denominator of the inferred attention factor; 0 = not given (yarn).
        truncate: Round the ramp's ends to whole dimensions (yarn).
    """

    theta: float = 10_000.0
    scaling: RopeScaling = "none"
    factor: float = 1.0
    original_context_length: int = 0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float | None = None
    mscale: float = 0.0
    mscale_all_dim: float = 0.0
    truncate: bool = True


def inverse_frequencies(rope: RopeConfig, head_dim: int) -> tuple[torch.Tensor, float]:
    """Angle per position of each pair of dimensions.

    Args:
        rope: The rule.
        head_dim: Size of one attention head; even.

    Returns:
        float32 ``(head_dim / 2,)`` on the CPU, radians a token, and the factor that multiplies cosines
        and sines (1 except for yarn).
    """
    exponents = torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim
    frequencies = 1.0 / (rope.theta**exponents)
    if rope.scaling == "linear":
        return frequencies / rope.factor, 1.0
    if rope.scaling == "llama3":
        return _llama3(rope, frequencies), 1.0
    if rope.scaling == "yarn":
        return _yarn(rope, frequencies, head_dim), _yarn_attention_factor(rope)
    return frequencies, 1.0


def _llama3(rope: RopeConfig, frequencies: torch.Tensor) -> torch.Tensor:
    # Between the two wavelength limits, the divisor goes smoothly from 1 to factor.
    wavelengths = 2 * math.pi / frequencies
    context_length = rope.original_context_length
    smooth = (context_length / wavelengths - rope.low_freq_factor) / (
        rope.high_freq_factor - rope.low_freq_factor
    )
    blended = (1 - smooth) * frequencies / rope.factor + smooth * frequencies
    long_wave = wavelengths > context_length / rope.low_freq_factor
    short_wave = wavelengths < context_length / rope.high_freq_factor
    return torch.where(long_wave, frequencies / rope.factor, torch.where(short_wave, frequencies, blended))


def _yarn(rope: RopeConfig, frequencies: torch.Tensor, head_dim: int) -> torch.Tensor:
    # YaRN (Peng et al., 2023), section 3.2: a linear ramp over the dimensions from beta_fast to beta_slow.
    low, high = (_dimension_of(rotations, rope, head_dim) for rotations in (rope.beta_fast, rope.beta_slow))
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    width = high - low or 0.001  # an empty ramp is a step
    divided = ((torch.arange(head_dim // 2, dtype=torch.float32) - low) / width).clamp(0, 1)
    return frequencies / rope.factor * divided + frequencies * (1 - divided)


def _dimension_of(rotations: float, rope: RopeConfig, head_dim: int) -> float:
    """The (fractional) dimension that turns ``rotations`` times over the original context."""
    wavelength = rope.original_context_length / (rotations * 2 * math.pi)
    return head_dim * math.log(wavelength) / (2 * math.log(rope.theta))


def _yarn_attention_factor(rope: RopeConfig) -> float:
    if rope.attention_factor is not None:
        return rope.attention_factor
    if rope.mscale and rope.mscale_all_dim:
        return _mscale(rope.factor, rope.mscale) / _mscale(rope.factor, rope.mscale_all_dim)
    return _mscale(rope.factor, 1.0)


def _mscale(factor: float, weight: float) -> float:
    return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0
