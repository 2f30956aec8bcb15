"""Runs one case: makes the artefact, calibrates it, scores every rung."""

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.recovery.cases import BASES, GRID_RANKS, Case, Size
from spearhead.quant import QuantizationRecipe, RunSettings, quantize_checkpoint
from spearhead.quant.allocation import grid, grid_points
from spearhead.quant.calibration import (
    Calibration,
    CalibrationOutcome,
    CalibrationRequest,
    CalibrationSettings,
    OutcomeOptions,
    calibrate,
    calibration_texts,
)
from spearhead.quant.calibration.baselines import BaselinePlan
from spearhead.quant.calibration.encoding import served
from spearhead.quant.calibration.outcome import HELD_OUT
from spearhead.quant.calibration.placing import allocation_config, start_factors
from spearhead.quant.calibration.report import Surroundings
from spearhead.quant.calibration.rungs import RungMaker, RungState
from spearhead.quant.calibration.scoring import REFERENCE
from spearhead.quant.calibration.store import StageStore
from spearhead.quant.evaluation import (
    Comparison,
    EvaluatedModel,
    TextProtocol,
    compare,
    compensated_linear,
    measure_text,
    read_text,
)
from spearhead.quant.report import Rung

Progress = Callable[[str, int, int], None]
_STATISTICS_SEQUENCES = 512
_TRAINED_POINTS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Lab:
    """Where and with what everything is measured.

    Attributes:
        model: The full-precision checkpoint.
        texts: Held-out texts; nothing is fitted to them.
        length: Tokens of a segment.
        size: How much work.
        settings: How calibrations run here.
        folder: Artefacts, stages and reports of one size; a killed run goes on from here.
        commit: Of this code, whose artefacts and stages no other commit takes.
        surroundings: Versions, command, machine.
        progress: Told of all stages.
        tell: Told sentences.
    """

    model: str
    texts: tuple[Path, ...]
    length: int
    size: Size
    settings: CalibrationSettings
    folder: Path
    commit: str
    surroundings: Surroundings
    progress: Progress
    tell: Callable[[str], None]

    def row(self, case: Case) -> dict[str, Any]:
        """Everything that a case showed, as JSON values."""
        report = self.folder / "reports" / f"{case.section}-{case.name.replace(', ', '-')}"
        plan = BaselinePlan(
            max_rank=64, budgets=tuple(self.size.baseline_budgets), random_seeds=self.size.random_seeds
        )
        options = OutcomeOptions(
            texts=self.texts,
            protocol=self._protocol(whole=case.whole_texts),
            report=report,
            baselines=plan if case.section == "baselines" else None,
        )
        outcome = CalibrationOutcome(options, self.surroundings, self.progress)
        extra: dict[str, Any] = {}

        def finish(store: StageStore, found: Calibration) -> Mapping[str, Any]:
            if case.section == "budgets":
                extra["grid"] = self._grid(store, found)
            if case.section == "gates":
                extra["gate_against_static"] = self._gate(found)
            return outcome.score(store, found)

        found = calibrate(
            self._request(case),
            begin=outcome.read,
            finish=finish,
            after=outcome.publish,
            progress=self.progress,
            tell=self.tell,
        )
        if case.section == "baselines":
            document = json.loads((report / "report.json").read_text(encoding="utf-8"))
            extra |= {"series": document["series"], "byte_ratios": document["byte_ratios"]}
        return {
            **asdict(case),
            "name": case.name,
            "quantization": found.subject.artefact.quantization,
            "chosen": found.chosen.rung.value,
            "w4_bytes": found.subject.artefact.stored_bytes,
            "rungs": {
                state.rung.value: {
                    "compensator_bytes": state.compensator_bytes,
                    "modules": len(state.factors),
                    "held_out_kl": state.mean_kl,
                    "duration_s": state.duration_s,
                }
                for state in found.rungs
            },
            "decisions": [decision.sentence for decision in found.decisions],
            "stages_s": dict(found.stages),
            "scores": outcome.metrics(),
            **extra,
        }

    def artefact(self, base: str) -> Path:
        """The 4-bit artefact of a quantiser; made once."""
        scheme, method = BASES[base]
        folder = self.folder / self.commit / "artefacts" / base.replace(", ", "-").replace(" ", "")
        if not folder.exists():
            self.tell(f"quantising: {base}")
            folder.parent.mkdir(parents=True, exist_ok=True)
            quantize_checkpoint(
                self.model,
                folder,
                QuantizationRecipe.parse(scheme, method),
                self._sequences() if method != "rtn" else None,
                settings=RunSettings(device=self.settings.device, batch_size=64),
            )
        return folder

    def _request(self, case: Case) -> CalibrationRequest:
        return CalibrationRequest(
            artefact=self.artefact(case.base),
            full_precision=self.model,
            config=case.config(self.size),
            settings=self.settings,
            work=self.folder / self.commit / "stages",
            force=True,
        )

    def _sequences(self) -> list[list[int]]:
        """Self-samples for quantisers that need statistics: those that calibration learns from."""
        request = self._request(Case(section="samples"))
        training = calibration_texts(request, progress=self.progress, tell=self.tell).training
        count = min(_STATISTICS_SEQUENCES, len(training.token_ids))
        return [[int(token) for token in row] for row in training.token_ids[:count]]

    def _protocol(self, *, whole: bool) -> TextProtocol:
        return TextProtocol(length=self.length, max_segments=0 if whole else self.size.segments)

    def _grid(self, store: StageStore, found: Calibration) -> list[dict[str, Any]]:
        """Held-out KL of one common rank in the k most damaged modules, for every rank that fits.

        All are measured untrained; those that then lead are trained.
        """
        limits = allocation_config(found.config, found.subject.artefact.stored_bytes)
        maker = RungMaker(store, found.models, found.texts, found.config, self.progress)
        modules, damage = found.subject.modules, found.damage.by_module
        rows: list[dict[str, Any]] = []
        starts = []
        for count, rank in grid_points(modules, damage, limits, GRID_RANKS):
            placed = grid(modules, damage, limits, selected_count=count, rank=rank)
            start = start_factors(found.forms, placed.ranks)
            untrained = maker.untrained(Rung.STATIC, start, found.forms.result.key)
            starts.append(start)
            rows.append({"modules": count, "rank": rank, "untrained_kl": untrained.mean_kl})
        leading = sorted(range(len(rows)), key=lambda place: float(rows[place]["untrained_kl"]))
        for place in leading[:_TRAINED_POINTS]:
            trained = maker.trained(
                Rung.TRAINED,
                starts[place],
                found.forms.result.key,
                start=Rung.STATIC.value,
                training=found.config.training,
            )
            rows[place]["held_out_kl"] = trained.mean_kl
        return rows

    def _gate(self, found: Calibration) -> dict[str, dict[str, Any]]:
        """Trained static against gated factors of the same ranks, paired by segment, on real texts."""
        states = {state.rung: state for state in found.rungs}
        pair = [states[Rung.TRAINED], states[Rung.GATED]]
        models = [self._model(found, state) for state in pair]
        reference = EvaluatedModel(name=REFERENCE, source=found.models.teacher())
        results = {}
        for path in self.texts:
            text = read_text(path, found.subject.tokenizer, self._protocol(whole=False))
            measured = measure_text(reference, models, text, tokens_at_once=found.models.tokens_at_once)
            found_kl = (measured.variants[rung.value].kl for rung in (Rung.GATED, Rung.TRAINED))
            gated, trained = (np.nanmean(kl, axis=1) for kl in found_kl)
            results[text.name] = {
                **_differences(compare(measured, Rung.GATED.value, Rung.TRAINED.value)),
                "delta_kl_by_segment": [float(one) for one in gated - trained],
            }
        return results

    def _model(self, found: Calibration, state: RungState) -> EvaluatedModel:
        placed = served(state.factors, found.config.factor_bits, found.models.device)
        return EvaluatedModel(
            name=state.rung.value, source=found.models.student(), linear=compensated_linear(placed)
        )


def _differences(found: Comparison) -> dict[str, Any]:
    return {"delta_kl": asdict(found.delta_kl), "perplexity_ratio": asdict(found.perplexity_ratio)}


def texts_of(row: Mapping[str, Any]) -> list[str]:
    """Names of the real texts of a row."""
    return [text for text in row["scores"] if text != HELD_OUT]
