"""A small SVG writer: scales with nice ticks, axes, marks."""

from spearhead.quant.report.svg.axes import Frame, axes
from spearhead.quant.report.svg.canvas import Canvas, label
from spearhead.quant.report.svg.marks import SHAPES, line_path, marker, swatch
from spearhead.quant.report.svg.scale import LinearScale, LogScale, Scale, linear_ticks, log_ticks

__all__ = [
    "SHAPES",
    "Canvas",
    "Frame",
    "LinearScale",
    "LogScale",
    "Scale",
    "axes",
    "label",
    "line_path",
    "linear_ticks",
    "log_ticks",
    "marker",
    "swatch",
]
