"""A calibration as a recovery report."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from spearhead.quant.calibration.calibration import Calibration
from spearhead.quant.calibration.decision import Decision
from spearhead.quant.calibration.encoding import module_bytes
from spearhead.quant.calibration.rungs import RungState
from spearhead.quant.calibration.scoring import REFERENCE, Score
from spearhead.quant.evaluation import EvaluationText
from spearhead.quant.report import (
    ByteRatio,
    Damage,
    DamageKind,
    EvaluationTable,
    Identity,
    KlDifference,
    LossPoint,
    ModuleRow,
    QualitySeries,
    Quantizer,
    RankCorrelation,
    RecoveryReport,
    Rung,
    RungResult,
    SoftwareVersion,
    Spectrum,
    StageTime,
    TextReference,
    TextScore,
    TrainingRun,
    VariantRow,
)

_CONFIDENCE = 0.95
_OTHER_CONVENTION = "the checkpoint's own scales"

Scores = Mapping[str, Mapping[str, Score]]
"""Text to variant to score."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What the calibration itself does not know.

    Attributes:
        versions: Package to version.
        commands: What to type to get the report again.
        device: The machine, for people.
    """

    versions: Mapping[str, str]
    commands: tuple[str, ...]
    device: str


def recovery_report(
    found: Calibration,
    texts: Sequence[EvaluationText],
    scores: Scores,
    surroundings: Surroundings,
    *,
    series: Sequence[QualitySeries] = (),
    byte_ratios: Sequence[ByteRatio] = (),
) -> RecoveryReport:
    """Everything that a calibration found.

    Args:
        found: The calibration.
        texts: What was scored.
        scores: Of full precision and of every rung by its name.
        surroundings: Versions, command, machine.
        series: Quality against bytes.
        byte_ratios: Comparisons at equal perplexity.
    """
    return RecoveryReport(
        identity=_identity(found, surroundings),
        texts=tuple(_reference(text, scores[text.name]) for text in texts),
        modules=_modules(found),
        spectrum=_spectrum(found),
        training=_training(found),
        rungs=tuple(
            _rung(state, decision, scores)
            for state, decision in zip(found.rungs, found.decisions, strict=True)
        ),
        series=tuple(series),
        byte_ratios=tuple(byte_ratios),
        evaluations=tuple(_table(found, text, scores[text.name]) for text in texts),
        warnings=_warnings(found),
    )


def convention(quantization: str) -> str:
    """How scales follow from weights, out of an artefact's description of itself."""
    found = list(dict.fromkeys(re.findall(r"absmax/[\d.]+", quantization)))
    return " and ".join(found) if found else _OTHER_CONVENTION


def text_scores(scores: Scores, variant: str) -> tuple[TextScore, ...]:
    """One variant on every text."""
    return tuple(
        TextScore(text=text, perplexity=found[variant].perplexity, kl=found[variant].kl_mean)
        for text, found in scores.items()
    )


def _identity(found: Calibration, surroundings: Surroundings) -> Identity:
    artefact, full = found.subject.artefact, found.subject.full
    return Identity(
        model=full.path.name,
        revision=full.revision,
        quantizer=Quantizer(description=artefact.quantization, convention=convention(artefact.quantization)),
        w4_digest=", ".join(f"{name} {digest}" for name, digest in artefact.weight_digests.items()),
        w4_bytes=artefact.stored_bytes,
        full_precision_bytes=full.stored_bytes,
        seed=found.config.seed,
        device=surroundings.device,
        versions=tuple(
            SoftwareVersion(package=package, version=version)
            for package, version in surroundings.versions.items()
        ),
        stages=tuple(StageTime(stage=stage, duration_s=s) for stage, s in found.stages.items()),
        commands=surroundings.commands,
    )


def _reference(text: EvaluationText, scores: Mapping[str, Score]) -> TextReference:
    return TextReference(
        name=text.name,
        digest=text.sha256,
        protocol=(
            f"{len(text.segments)} segments of {text.length} tokens, stride {text.stride}, beginning token: "
            f"{text.bos}"
        ),
        token_count=text.scored_token_count,
        full_precision_perplexity=scores[REFERENCE].perplexity,
        w4_perplexity=scores[Rung.W4].perplexity,
        w4_kl=scores[Rung.W4].kl_mean,
    )


def _modules(found: Calibration) -> tuple[ModuleRow, ...]:
    allocation, spread = found.allocation, found.allocation.damage
    ranks = {module: len(one.a) for module, one in found.rungs[1].factors.items()}
    sizes = module_bytes(found.chosen.factors or found.rungs[1].factors, found.config.factor_bits)
    rows = []
    for module in found.subject.modules:
        name = module.name
        _, _, layer, projection = name.split(".", 3)
        rank = ranks.get(name, 0)
        rows.append(
            ModuleRow(
                name=name,
                layer=int(layer),
                projection=projection,
                output_width=module.outputs,
                input_width=module.inputs,
                damage=tuple(
                    Damage(kind=DamageKind(kind), value=values[name])
                    for kind, values in found.damage.values.items()
                ),
                share=0.0 if spread is None else spread.shares[name],
                rank=rank,
                compensator_bytes=sizes.get(name, 0),
                reason=allocation.reasons[name],
                energy=1.0 - found.forms.by_module[name].residual(rank),
            )
        )
    return tuple(rows)


def _spectrum(found: Calibration) -> Spectrum | None:
    spread = found.allocation.damage
    if spread is None:
        return None
    return Spectrum(
        kind=DamageKind(found.damage.kind),
        shares=tuple(sorted(spread.shares.values(), reverse=True)),
        entropy_nats=spread.entropy_nats,
        entropy_normalized=spread.normalised_entropy,
        effective_count=spread.effective_count,
        chosen_count=len(found.allocation.ranks),
        correlations=tuple(
            RankCorrelation(first=DamageKind(first), second=DamageKind(second), spearman=value)
            for (first, second), value in found.damage.correlations().items()
            if value is not None
        ),
    )


def _training(found: Calibration) -> tuple[TrainingRun, ...]:
    return tuple(
        TrainingRun(
            rung=state.rung,
            seed=found.config.seed,
            points=tuple(
                LossPoint(step=point.step, train_kl=point.train_kl, held_out_kl=point.held_out_kl)
                for point in state.curve
            ),
            best_step=min(state.curve, key=lambda point: point.held_out_kl).step,
            early_stop_step=state.curve[-1].step if state.stopped_early else None,
        )
        for state in found.rungs
        if state.curve
    )


def _rung(state: RungState, decision: Decision, scores: Scores) -> RungResult:
    difference = decision.difference
    interval = None
    if difference is not None and difference.low is not None and difference.high is not None:
        interval = KlDifference(
            mean=difference.value, low=difference.low, high=difference.high, confidence=_CONFIDENCE
        )
    return RungResult(
        rung=state.rung,
        compensator_bytes=state.compensator_bytes,
        texts=text_scores(scores, state.rung.value),
        held_out_kl=decision.held_out_kl,
        difference=interval,
        kept=decision.kept,
        reason=decision.sentence,
    )


def _table(found: Calibration, text: EvaluationText, scores: Mapping[str, Score]) -> EvaluationTable:
    quantizer = convention(found.subject.artefact.quantization)
    w4_bytes = found.subject.artefact.stored_bytes
    sizes = {state.rung.value: w4_bytes + state.compensator_bytes for state in found.rungs}
    sizes[REFERENCE] = found.subject.full.stored_bytes
    start = scores[Rung.W4]
    return EvaluationTable(
        text=text.name,
        rows=tuple(
            VariantRow(
                variant=name,
                convention="none" if name == REFERENCE else quantizer,
                perplexity=score.perplexity,
                full_precision_perplexity=scores[REFERENCE].perplexity,
                start_perplexity=start.perplexity,
                start_kl=start.kl_mean,
                kl_mean=score.kl_mean,
                kl_median=score.kl_median,
                kl_p99=score.kl_p99,
                top1_agreement=score.agreement,
                served_bytes=sizes[name],
            )
            for name, score in scores.items()
        ),
    )


def _warnings(found: Calibration) -> tuple[str, ...]:
    warnings = []
    widest = max(module.inputs for module in found.subject.modules)
    if found.forms.moment_tokens < widest:
        warnings.append(
            f"{found.forms.moment_tokens} calibration tokens are fewer than the {widest} inputs of the "
            "widest module: its second moments have not full rank; use more sequences"
        )
    if not found.chosen.factors:
        warnings.append("no rung beats the 4-bit weights on held-out sequences; the artefact stays as it was")
    if found.chosen.compensator_bytes > found.allocation.budget_bytes:
        warnings.append(
            f"the compensators take {found.chosen.compensator_bytes} bytes, the budget is "
            f"{found.allocation.budget_bytes}"
        )
    return tuple(warnings)
