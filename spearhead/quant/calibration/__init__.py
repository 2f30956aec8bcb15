"""Calibration: from a 4-bit artefact and its full-precision source to compensators that prove themselves."""

from spearhead.quant.calibration.calibration import Calibration, CalibrationRequest
from spearhead.quant.calibration.config import CalibrationConfig, CalibrationSettings
from spearhead.quant.calibration.outcome import CalibrationOutcome, OutcomeOptions
from spearhead.quant.calibration.run import calibrate, calibration_texts

__all__ = [
    "Calibration",
    "CalibrationConfig",
    "CalibrationOutcome",
    "CalibrationRequest",
    "CalibrationSettings",
    "OutcomeOptions",
    "calibrate",
    "calibration_texts",
]
