"""The offline toolchain: making and mending quantised artefacts. No service imports it."""

from spearhead.quant.methods.options import MethodOptions
from spearhead.quant.quantize import quantize_checkpoint
from spearhead.quant.quantizing.progress import QuantizationProgress
from spearhead.quant.quantizing.report import ModuleReport, QuantizationReport
from spearhead.quant.quantizing.settings import RunSettings
from spearhead.quant.recipe import ModuleChoice, QuantizationRecipe

__all__ = [
    "MethodOptions",
    "ModuleChoice",
    "ModuleReport",
    "QuantizationProgress",
    "QuantizationRecipe",
    "QuantizationReport",
    "RunSettings",
    "quantize_checkpoint",
]
