# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call,no-any-return"
# Triton's language has no types that a checker knows.
"""Depth and mass: the integers in which filters compare tokens and add up their probability.

Scaled logits are 0 for the best token and negative for others. The *depth* of a token is the bit pattern of
its negated scaled logit, an integer that rises as the logit falls. Probability mass is counted in integers,
units of 2**-40 of the best token, so that sums do not depend on their order.
"""

import triton
import triton.language as tl

DEEPEST = tl.constexpr(0x7F7FFFFF)
"""Depth of the lowest finite number."""
MASS_UNITS = tl.constexpr(float(1 << 40))


@triton.jit
def scaled(values, best, temperature):
    """Scaled logits; greedy rows are left at temperature 1."""
    divisor = tl.where(temperature == 0, 1.0, temperature) + tl.zeros_like(values)
    return tl.div_rn(values - best, divisor)


@triton.jit
def depth_of(value):
    """An integer that rises as the scaled logit falls; minus zero counts as zero."""
    return tl.where(value == 0, 0.0, -value).to(tl.int32, bitcast=True)


@triton.jit
def mass_of(value):
    """Weight of a scaled logit in integer units."""
    return (tl.exp(value) * MASS_UNITS).to(tl.int64)


@triton.jit
def share_of(mass, top_p):
    """The mass that top-p asks of a set of tokens that has ``mass``."""
    return tl.ceil(mass.to(tl.float64) * top_p).to(tl.int64)


@triton.jit
def exponent_of(number):
    """The rounded-down logarithm to base 2 of a positive float32; -127 of zero."""
    return (number.to(tl.int32, bitcast=True) >> 23) - 127


@triton.jit
def two_to(exponent):
    """Two to the power of an integer from -126 to 127, float32."""
    return ((exponent + 127) << 23).to(tl.float32, bitcast=True)
