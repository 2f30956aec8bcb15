"""What a calibration lost and won back, as JSON and as one self-contained page."""

from spearhead.quant.report.document import RecoveryReport
from spearhead.quant.report.html import report_html
from spearhead.quant.report.identity import Identity, Quantizer, SoftwareVersion, StageTime
from spearhead.quant.report.ladder import KlDifference, LossPoint, Rung, RungResult, TextScore, TrainingRun
from spearhead.quant.report.quality import (
    ByteRatio,
    EvaluationTable,
    QualityPoint,
    QualitySeries,
    SeriesKind,
    SidePoint,
    TextReference,
    VariantRow,
)
from spearhead.quant.report.selection import Damage, DamageKind, ModuleRow, RankCorrelation, Spectrum
from spearhead.quant.report.writing import render, write_report

__all__ = [
    "ByteRatio",
    "Damage",
    "DamageKind",
    "EvaluationTable",
    "Identity",
    "KlDifference",
    "LossPoint",
    "ModuleRow",
    "QualityPoint",
    "QualitySeries",
    "Quantizer",
    "RankCorrelation",
    "RecoveryReport",
    "Rung",
    "RungResult",
    "SeriesKind",
    "SidePoint",
    "SoftwareVersion",
    "Spectrum",
    "StageTime",
    "TextReference",
    "TextScore",
    "TrainingRun",
    "VariantRow",
    "render",
    "report_html",
    "write_report",
]
