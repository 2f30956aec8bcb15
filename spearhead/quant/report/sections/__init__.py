"""The parts of the page, each a function from the report to HTML."""

from spearhead.quant.report.sections.damage import damage_section
from spearhead.quant.report.sections.evaluation import evaluation_section
from spearhead.quant.report.sections.quality import quality_section
from spearhead.quant.report.sections.rungs import rungs_section
from spearhead.quant.report.sections.setup import setup_section
from spearhead.quant.report.sections.summary import summary_section
from spearhead.quant.report.sections.training import training_section

__all__ = [
    "damage_section",
    "evaluation_section",
    "quality_section",
    "rungs_section",
    "setup_section",
    "summary_section",
    "training_section",
]
