"""Stages 5 to 7: the rungs, each a set of factors with its loss on the held-out sequences."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from spearhead.quant.calibration.config import CalibrationConfig
from spearhead.quant.calibration.encoding import from_tensors, served, stored_bytes, to_tensors
from spearhead.quant.calibration.models import Models
from spearhead.quant.calibration.progress import Progress
from spearhead.quant.calibration.sequences import CalibrationTexts, counted
from spearhead.quant.calibration.store import StageResult, StageStore
from spearhead.quant.decoder import plain_linear
from spearhead.quant.evaluation.model_variant import compensated_linear
from spearhead.quant.lesson import Lesson, prepare_lesson
from spearhead.quant.report import Rung
from spearhead.quant.self_sampling import SampledSequences
from spearhead.quant.student import Factors, Student, identity_gate
from spearhead.quant.training import TrainingConfig, sequence_kl, train
from spearhead.quant.training_journal import CurvePoint

_JOURNAL = "training.safetensors"
_TRAINING_FORMAT = 2
"""1: journals held factors themselves, not in units of their components."""
_ACTIVATION_SHARE = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class RungState:
    """A rung that was made.

    Attributes:
        rung: Which.
        factors: By module, not rounded; empty for the 4-bit weights alone.
        compensator_bytes: As stored.
        kl: float64 ``(S,)`` on the held-out sequences, as served: factors rounded, float32 layers.
        curve: Of its training; empty without one.
        stopped_early: Whether patience ended the training.
        start: What its training started from, for people; empty without one.
        duration_s: Seconds that it took.
        key: Of its stage.
    """

    rung: Rung
    factors: Mapping[str, Factors]
    compensator_bytes: int
    kl: Tensor
    curve: Sequence[CurvePoint] = ()
    stopped_early: bool = False
    start: str = ""
    duration_s: float = 0.0
    key: str = ""

    @property
    def mean_kl(self) -> float:
        """Over the held-out sequences."""
        return float(self.kl.mean())


class RungMaker:
    """Makes rungs of one calibration.

    Args:
        store: Keeps them.
        models: Teacher and student.
        texts: Training and held-out sequences.
        config: How rungs are trained and rounded.
        progress: Told of steps.
    """

    def __init__(
        self,
        store: StageStore,
        models: Models,
        texts: CalibrationTexts,
        config: CalibrationConfig,
        progress: Progress,
    ) -> None:
        self._store, self._models, self._texts = store, models, texts
        self._config, self._progress = config, progress
        self._lessons: dict[str, Lesson] = {}

    def untrained(self, rung: Rung, factors: Mapping[str, Factors], depends_on: str) -> RungState:
        """The 4-bit weights alone, or closed forms.

        Args:
            rung: Which.
            factors: Its factors.
            depends_on: Key of what they come from.
        """
        depends = self._depends(depends_on, factors)

        def compute(_: Path) -> StageResult:
            return StageResult(values={}, tensors={"held_out_kl": self._held_out_kl(factors)})

        return self._state(rung, factors, self._store.stage(rung.value, depends, compute), start="")

    def trained(
        self,
        rung: Rung,
        factors: Mapping[str, Factors],
        depends_on: str,
        *,
        start: str,
        training: TrainingConfig,
    ) -> RungState:
        """Factors (and gates) after training from ``factors``.

        Args:
            rung: Which.
            factors: Where training starts.
            depends_on: Key of what they come from.
            start: The same for people; part of the stage's name.
            training: How.

        Raises:
            CalibrationError: The loss is not finite.
        """
        name = f"{rung.value}-from-{start}"
        fields = {field: value for field, value in asdict(training).items() if field != "recompute_layers"}
        depends = self._depends(depends_on, factors)
        depends |= {"training": fields, "dtype": str(self._models.dtype), "start": start}
        result = self._store.stage(
            name,
            depends,
            lambda journal: self._train(name, factors, training, journal / _JOURNAL),
            format_version=_TRAINING_FORMAT,
        )
        self._progress(name, training.steps, training.steps)
        return self._state(rung, from_tensors(result.tensors, list(factors)), result, start=start)

    def _train(
        self, name: str, factors: Mapping[str, Factors], training: TrainingConfig, journal: Path
    ) -> StageResult:
        dtype = self._models.dtype
        student = Student(factors, self._config.factor_bits, self._models.device)
        recompute = training.recompute_layers or self._needs_recomputing(training)
        result = train(
            self._models.student(dtype),
            student,
            self._models.teacher(dtype).head,
            self._lesson("training", self._texts.training, dtype),
            self._lesson("looks", self._texts.looks, dtype),
            replace(training, recompute_layers=recompute),
            journal=journal,
            progress=lambda step, _: self._progress(name, step, training.steps),
        )
        reached = student.trained()
        return StageResult(
            values={
                "curve": [[point.step, point.train_kl, point.held_out_kl] for point in result.curve],
                "stopped_early": result.stopped_early,
            },
            tensors=to_tensors(reached) | {"held_out_kl": self._held_out_kl(reached)},
        )

    def gated_start(self, factors: Mapping[str, Factors]) -> dict[str, Factors]:
        """The same factors with gates that are exactly 1, where the rank is high enough."""
        return {
            module: replace(one, gate=identity_gate(len(one.a), self._config.seed + place))
            if len(one.a) >= self._config.gate_min_rank
            else one
            for place, (module, one) in enumerate(factors.items())
        }

    def _depends(self, depends_on: str, factors: Mapping[str, Factors]) -> dict[str, Any]:
        return {
            "from": depends_on,
            "ranks": {module: len(one.a) for module, one in factors.items()},
            "gated": sorted(module for module, one in factors.items() if one.gate is not None),
            "gate_seed": self._config.seed,
            "factor_bits": self._config.factor_bits,
            "subject": self._models.subject.identity,
            "sequences": self._texts.result.key,
            "split": [self._config.holdout, self._config.sampling.seed],
            "skip_first": self._config.skip_first,
            "tokens_at_once": self._models.tokens_at_once,
            "device": self._models.device.type,
        }

    def _state(
        self, rung: Rung, factors: Mapping[str, Factors], result: StageResult, *, start: str
    ) -> RungState:
        curve = [
            CurvePoint(step=step, train_kl=train_kl, held_out_kl=kl)
            for step, train_kl, kl in result.values.get("curve", [])
        ]
        return RungState(
            rung=rung,
            factors=factors,
            compensator_bytes=stored_bytes(factors, self._config.factor_bits),
            kl=result.tensors["held_out_kl"],
            curve=curve,
            stopped_early=bool(result.values.get("stopped_early", False)),
            start=start,
            duration_s=result.duration_s,
            key=result.key,
        )

    def _held_out_kl(self, factors: Mapping[str, Factors]) -> Tensor:
        """As it will be served, in float32."""
        compensators = served(factors, self._config.factor_bits, self._models.device)
        return sequence_kl(
            self._models.student(),
            compensated_linear(compensators) if compensators else plain_linear,
            self._models.teacher().head,
            self._lesson("held out", self._texts.held_out, torch.float32),
            batch_size=self._models.batch_size(self._texts.held_out.token_ids.shape[1]),
        )

    def _lesson(self, name: str, sequences: SampledSequences, dtype: torch.dtype) -> Lesson:
        if name not in self._lessons:
            source = self._models.teacher(dtype)
            elements = sequences.token_ids.numel() * source.config.hidden_size
            place = len(self._lessons)
            self._lessons[name] = prepare_lesson(
                source,
                sequences.token_ids.long(),
                counted(sequences, self._texts.skip_first),
                batch_size=self._models.batch_size(sequences.token_ids.shape[1]),
                store=self._models.place_states(
                    name, elements * dtype.itemsize, self._store.path / f"hidden-states-{place}.bin"
                ),
            )
        return self._lessons[name]

    def _needs_recomputing(self, training: TrainingConfig) -> bool:
        """Whether the activations of one update, which all wait for the backward pass, would not fit."""
        config = self._models.subject.full.config
        tokens = training.sequences_per_step * self._texts.training.token_ids.shape[1]
        heads = (config.head_count + 2 * config.kv_head_count) * config.head_dim
        a_layer = 8 * config.hidden_size + 4 * heads + 4 * config.intermediate_size
        needed = tokens * a_layer * config.layer_count * self._models.dtype.itemsize
        return needed > _ACTIVATION_SHARE * self._models.room_bytes()
