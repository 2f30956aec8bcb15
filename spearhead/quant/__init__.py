"""The offline toolchain: making 4-bit artefacts. No service imports it."""

from spearhead.quant.quantize import QuantizationProgress, QuantizationReport, quantize_checkpoint

__all__ = ["QuantizationProgress", "QuantizationReport", "quantize_checkpoint"]
