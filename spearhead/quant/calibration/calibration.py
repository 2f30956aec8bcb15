"""What a calibration is asked to do, and what it found."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from spearhead.quant.allocation import Allocation
from spearhead.quant.calibration.config import CalibrationConfig, CalibrationSettings
from spearhead.quant.calibration.decision import Decision, chosen
from spearhead.quant.calibration.fitting import ClosedForms
from spearhead.quant.calibration.models import Models
from spearhead.quant.calibration.rungs import RungState
from spearhead.quant.calibration.sequences import CalibrationTexts
from spearhead.quant.calibration.subject import Subject
from spearhead.quant.damage import DamageReport


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrationRequest:
    """What a calibration is asked to do.

    Attributes:
        artefact: Folder of a quantised artefact, or a ``.gguf`` file.
        full_precision: Folder, ``.gguf`` file or hub id; ``None`` = what the artefact names.
        config: What decides the result.
        settings: How it runs here.
        text: Learn from windows of this text instead of samples.
        sequences: Learn from this file of an earlier run.
        work: Where stages wait; ``None`` = a hidden folder beside the artefact, removed in the end.
        force: Replace compensators that are there.
    """

    artefact: Path
    full_precision: str | None = None
    config: CalibrationConfig = field(default_factory=CalibrationConfig)
    settings: CalibrationSettings = field(default_factory=CalibrationSettings)
    text: Path | None = None
    sequences: Path | None = None
    work: Path | None = None
    force: bool = False

    @property
    def work_folder(self) -> Path:
        """Where stages wait."""
        path = self.artefact.absolute()
        return self.work or path.parent / f".{path.name}.calibration"


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """Everything that a calibration found, while its checkpoints are open.

    Attributes:
        subject: Artefact and source.
        models: Teacher and student.
        config: What was asked for.
        texts: Sequences.
        forms: Closed forms of every candidate.
        damage: Of every candidate.
        allocation: Ranks.
        rungs: In the order in which they were tried; of two gated candidates the better one.
        decisions: One a rung.
        candidates: Every gated candidate that was trained.
        stages: Name to seconds, in order.
        written: The file of the compensators; ``None`` when no rung beats the 4-bit weights.
    """

    subject: Subject
    models: Models
    config: CalibrationConfig
    texts: CalibrationTexts
    forms: ClosedForms
    damage: DamageReport
    allocation: Allocation
    rungs: tuple[RungState, ...]
    decisions: tuple[Decision, ...]
    candidates: tuple[RungState, ...]
    stages: Mapping[str, float]
    written: Path | None = None

    @property
    def chosen(self) -> RungState:
        """The last rung that was kept."""
        rung = chosen(self.decisions)
        return next(state for state in self.rungs if state.rung == rung)
