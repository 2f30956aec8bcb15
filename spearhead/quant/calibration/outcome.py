"""What follows a calibration: scores on texts, baselines, the report, the adapter."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from spearhead.errors import CalibrationError
from spearhead.quant.calibration.baselines import BaselinePlan, BaselineQuality, baseline_quality
from spearhead.quant.calibration.calibration import Calibration
from spearhead.quant.calibration.encoding import encode
from spearhead.quant.calibration.lora import export_lora
from spearhead.quant.calibration.progress import Progress
from spearhead.quant.calibration.report import Scores, Surroundings, recovery_report
from spearhead.quant.calibration.rungs import RungState
from spearhead.quant.calibration.scoring import Scorer, Variant
from spearhead.quant.calibration.store import StageStore
from spearhead.quant.calibration.subject import Subject
from spearhead.quant.evaluation import EvaluationText, TextProtocol, read_text, text_from_samples
from spearhead.quant.report import Rung, write_report

HELD_OUT = "held-out self-samples"
_REPORT = "spear/report"


@dataclass(frozen=True, slots=True, kw_only=True)
class OutcomeOptions:
    """What is wanted beside the compensators.

    Attributes:
        texts: Files that rungs are scored on; held-out sequences always are.
        protocol: How texts become segments.
        report: Folder of the report; ``None`` = within the artefact.
        baselines: Also score other methods and placements.
        adapter: Folder of a LoRA adapter; ``None`` = none.
        save_sequences: File that sequences are copied to; ``None`` = none.
    """

    texts: tuple[Path, ...] = ()
    protocol: TextProtocol = field(default_factory=TextProtocol)
    report: Path | None = None
    baselines: BaselinePlan | None = None
    adapter: Path | None = None
    save_sequences: Path | None = None


class CalibrationOutcome:
    """Scores a calibration before its artefact is written, and reports it afterwards.

    Args:
        options: What is wanted.
        surroundings: Versions, command, machine.
        progress: Told of layers.

    Attributes:
        scores: Text to variant to score, once they are known.
        report_folder: Where the report was written.
        adapter_rung: The rung in the adapter; ``None`` without one.
    """

    def __init__(self, options: OutcomeOptions, surroundings: Surroundings, progress: Progress) -> None:
        self.scores: Scores = {}
        self.report_folder: Path | None = None
        self.adapter_rung: Rung | None = None
        self._options, self._surroundings, self._progress = options, surroundings, progress
        self._texts: list[EvaluationText] = []
        self._quality = BaselineQuality(series=(), byte_ratios=())

    def read(self, subject: Subject) -> None:
        """Reads the texts, so that one that cannot be scored is refused before any work.

        Raises:
            CalibrationError: A text that is too short, or segments beyond the model's context.
        """
        limit, length = subject.full.config.context_length, self._options.protocol.length
        if self._options.texts and length > limit:
            raise CalibrationError(
                f"segments of {length} tokens exceed the model's context of {limit}; lower --length"
            )
        names = {HELD_OUT}
        for path in self._options.texts:
            text = read_text(path, subject.tokenizer, self._options.protocol)
            name = text.name if text.name not in names else str(path)
            names.add(name)
            self._texts.append(replace(text, name=name))

    def score(self, store: StageStore, found: Calibration) -> Mapping[str, Any]:
        """Scores rungs (and baselines) and returns what ``ec.json`` says about them."""
        self._texts = [text_from_samples(HELD_OUT, found.texts.held_out), *self._texts]
        scorer = Scorer(store, found.models, self._texts, found.config.factor_bits, self._progress)
        self.scores = scorer.score([_variant(state) for state in found.rungs])
        if self._options.baselines is not None:
            self._quality = baseline_quality(
                store, found, scorer, self._options.baselines, self.scores, progress=self._progress
            )
        if self._options.save_sequences is not None:
            found.texts.whole.save(self._options.save_sequences)
        return {"metrics": self.metrics()}

    def metrics(self) -> dict[str, dict[str, dict[str, float]]]:
        """Scores as JSON values."""
        return {
            text: {name: asdict(score) for name, score in by_variant.items()}
            for text, by_variant in self.scores.items()
        }

    def publish(self, found: Calibration) -> None:
        """Writes the report and the adapter."""
        report = recovery_report(
            found,
            self._texts,
            self.scores,
            self._surroundings,
            series=self._quality.series,
            byte_ratios=self._quality.byte_ratios,
        )
        self.report_folder = self._options.report or found.subject.folder / _REPORT
        write_report(report, self.report_folder)
        if self._options.adapter is not None:
            state = ungated(found)
            compensators = encode(state.factors, found.config.factor_bits)
            export_lora(
                {module: stored.decode() for module, stored in compensators.items()},
                self._options.adapter,
                base_model=str(found.subject.artefact.path.absolute()),
                exact=found.config.factor_bits != 16,
            )
            self.adapter_rung = state.rung


def ungated(found: Calibration) -> RungState:
    """The best rung that was kept and has no gates; the closed form where nothing was kept."""
    kept = {decision.rung for decision in found.decisions if decision.kept}
    plain = [s for s in found.rungs if s.rung in kept and s.rung in (Rung.STATIC, Rung.TRAINED)]
    return plain[-1] if plain else found.rungs[1]


def _variant(state: RungState) -> Variant:
    return Variant(name=state.rung.value, key=state.key, factors=state.factors)
