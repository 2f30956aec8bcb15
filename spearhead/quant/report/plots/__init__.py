"""The report's drawings, each a function from records to SVG."""

from spearhead.quant.report.plots.heat import heat_map
from spearhead.quant.report.plots.ladder import ladder_plot
from spearhead.quant.report.plots.loss import loss_domain, loss_plot, seed_styles
from spearhead.quant.report.plots.quality import Measure, quality_plot
from spearhead.quant.report.plots.series_style import SeriesStyle, series_styles
from spearhead.quant.report.plots.spectrum import spectrum_plot

__all__ = [
    "Measure",
    "SeriesStyle",
    "heat_map",
    "ladder_plot",
    "loss_domain",
    "loss_plot",
    "quality_plot",
    "seed_styles",
    "series_styles",
    "spectrum_plot",
]
