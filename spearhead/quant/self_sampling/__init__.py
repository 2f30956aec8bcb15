"""Calibration text that the full-precision model writes itself."""

from spearhead.quant.self_sampling.config import SamplingTokens, SelfSamplingConfig
from spearhead.quant.self_sampling.repetition import repeated_shares
from spearhead.quant.self_sampling.run import self_sample
from spearhead.quant.self_sampling.store import SampledSequences, SamplingOrigin, load_sequences

__all__ = [
    "SampledSequences",
    "SamplingOrigin",
    "SamplingTokens",
    "SelfSamplingConfig",
    "load_sequences",
    "repeated_shares",
    "self_sample",
]
