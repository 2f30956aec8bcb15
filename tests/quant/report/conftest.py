"""A report as a calibration of a small model would give it; numbers follow formulas, not luck."""

import math
from collections.abc import Callable

import pytest

from spearhead.quant.report import (
    ByteRatio,
    Damage,
    DamageKind,
    EvaluationTable,
    Identity,
    KlDifference,
    LossPoint,
    ModuleRow,
    QualityPoint,
    QualitySeries,
    Quantizer,
    RankCorrelation,
    RecoveryReport,
    Rung,
    RungResult,
    SeriesKind,
    SidePoint,
    SoftwareVersion,
    Spectrum,
    StageTime,
    TextReference,
    TextScore,
    TrainingRun,
    VariantRow,
)

MakeReport = Callable[..., RecoveryReport]

SHAPES = {
    "self_attn.q_proj": (576, 576),
    "self_attn.k_proj": (192, 576),
    "self_attn.v_proj": (192, 576),
    "self_attn.o_proj": (576, 576),
    "mlp.gate_proj": (1536, 576),
    "mlp.up_proj": (1536, 576),
    "mlp.down_proj": (576, 1536),
}
TEXTS = (("WikiText-2", 30.09, 65.66, 0.954), ("Jargon file", 26.87, 48.05, 0.704))
W4_BYTES = 97_812_480
# name, kind, where its curve starts at rank 1, how fast it falls
METHODS = (
    ("trained", SeriesKind.OURS, 0.24, 0.42),
    ("static", SeriesKind.OURS, 0.48, 0.33),
    ("gated", SeriesKind.OURS, 0.235, 0.43),
    ("LQER (plain SVD)", SeriesKind.BASELINE, 0.86, 0.22),
    ("L²QER", SeriesKind.BASELINE, 0.62, 0.27),
    ("QERA-approx", SeriesKind.BASELINE, 0.60, 0.27),
    ("QERA-exact", SeriesKind.BASELINE, 0.52, 0.30),
    ("LoftQ", SeriesKind.BASELINE, 0.80, 0.25),
    ("random modules", SeriesKind.CONTROL, 0.66, 0.2),
    ("uniform placement", SeriesKind.CONTROL, 0.55, 0.3),
)


def identity() -> Identity:
    return Identity(
        model="SmolLM2-135M-Instruct.Q4_1.gguf (dequantised)",
        revision="sha256:5a13cf1dd1c2a6a5c4f6d2a1b6a0f4d2c9b6a0e4c5f8b7d0e3f1a2b4c6d8e0f2",
        quantizer=Quantizer(
            description="RTN, symmetric, per channel, codes −8 to 7", convention="absmax/7.5"
        ),
        w4_digest="sha256:90b1c2d3e4f5061728394a5b6c7d8e9fa0b1c2d3e4f5061728394a5b6c7d8e9f",
        w4_bytes=W4_BYTES,
        full_precision_bytes=269_030_016,
        seed=0,
        device="NVIDIA H200, 1 of 1",
        versions=(
            SoftwareVersion(package="spearhead", version="0.1.0"),
            SoftwareVersion(package="torch", version="2.13.0"),
            SoftwareVersion(package="transformers", version="5.24.0"),
        ),
        stages=(
            StageTime(stage="self-sampling", duration_s=53.2),
            StageTime(stage="statistics", duration_s=11.94),
            StageTime(stage="damage", duration_s=17.0),
            StageTime(stage="training", duration_s=64.25),
            StageTime(stage="evaluation", duration_s=22.8),
        ),
        commands=(
            "spearhead quantize SmolLM2-135M-Instruct.Q4_1.gguf w4 --scheme channel",
            "spearhead calibrate SmolLM2-135M-Instruct.Q4_1.gguf w4 --budget 1% --seed 0",
        ),
    )


def modules(layers: int) -> tuple[ModuleRow, ...]:
    raw = {
        (layer, projection): math.exp(-4.6 * ((layer * 7 + index) * 37 % 101) / 101)
        * (6 if projection == "mlp.down_proj" and layer in (0, 2, layers - 1) else 1)
        for layer in range(layers)
        for index, projection in enumerate(SHAPES)
    }
    total = sum(raw.values())
    rows = []
    for (layer, projection), value in raw.items():
        width, inputs = SHAPES[projection]
        share = value / total
        rank = 0 if value < 0.08 else 16 if value > 2 else 4 if value > 0.5 else 2
        rows.append(
            ModuleRow(
                name=f"model.layers.{layer}.{projection}",
                layer=layer,
                projection=projection,
                output_width=width,
                input_width=inputs,
                damage=(
                    Damage(kind=DamageKind.CKA_FINAL, value=0.02 * value),
                    Damage(kind=DamageKind.CKA_BLOCK, value=0.013 * value**0.9),
                    Damage(kind=DamageKind.KL, value=0.04 * value**1.2),
                ),
                share=share,
                rank=rank,
                compensator_bytes=2 * rank * (width + inputs),
                reason="damage ranks it above the effective number" if rank else "below the effective number",
                energy=1 - math.exp(-rank / 9) if rank else None,
            )
        )
    return tuple(rows)


def spectrum(rows: tuple[ModuleRow, ...]) -> Spectrum:
    shares = tuple(sorted((row.share for row in rows), reverse=True))
    entropy = -sum(share * math.log(share) for share in shares if share)
    return Spectrum(
        kind=DamageKind.CKA_FINAL,
        shares=shares,
        entropy_nats=max(entropy, 0.0),
        entropy_normalized=max(entropy, 0.0) / math.log(len(shares)) if len(shares) > 1 else 0.0,
        effective_count=math.exp(max(entropy, 0.0)),
        chosen_count=sum(row.rank > 0 for row in rows),
        correlations=(
            RankCorrelation(first=DamageKind.CKA_FINAL, second=DamageKind.CKA_BLOCK, spearman=0.71),
            RankCorrelation(first=DamageKind.CKA_FINAL, second=DamageKind.KL, spearman=0.88),
        ),
    )


def training_run(rung: Rung, seed: int) -> TrainingRun:
    floor = 0.2003 - 0.002 * (rung is Rung.GATED) + 0.003 * seed

    def held_out(step: int) -> float:
        return floor + 0.2 * math.exp(-step / 70) + 1e-4 * max(0, step - 250 - 30 * seed)

    points = tuple(
        LossPoint(
            step=step,
            train_kl=floor + 0.19 * math.exp(-step / 60) + 0.012 * math.sin(step * (1.3 + seed)),
            held_out_kl=held_out(step) if step % 25 == 0 else None,
        )
        for step in range(0, 401, 5)
    )  # fmt: skip
    best = min((point.held_out_kl, point.step) for point in points if point.held_out_kl is not None)[1]
    return TrainingRun(
        rung=rung, seed=seed, points=points, best_step=best, early_stop_step=400 if seed == 1 else None
    )


def scores(left: float) -> tuple[TextScore, ...]:
    """On all texts, for a variant that leaves this part of the gap open."""
    return tuple(
        TextScore(text=name, perplexity=full + (w4 - full) * left**1.4, kl=kl * left)
        for name, full, w4, kl in TEXTS
    )


def rung_result(
    rung: Rung, size: int, left: float, mean: float | None, kept: bool, reason: str
) -> RungResult:
    return RungResult(
        rung=rung,
        compensator_bytes=size,
        texts=scores(left),
        held_out_kl=0.8 * left,
        difference=None if mean is None else
        KlDifference(mean=mean, low=mean * 1.06 - 0.0012, high=mean * 0.94 + 0.0012, confidence=0.95),
        kept=kept,
        reason=reason,
    )  # fmt: skip


def rungs() -> tuple[RungResult, ...]:
    better, same = "the whole interval is below zero", "the interval contains zero: the gate is not kept"
    return (
        rung_result(Rung.W4, 0, 1.0, None, True, "where the ladder starts"),
        rung_result(Rung.STATIC, 976_512, 0.416, -0.4672, True, better),
        rung_result(Rung.TRAINED, 976_512, 0.25, -0.1328, True, better),
        rung_result(Rung.GATED, 986_300, 0.2495, -0.0004, False, same),
    )  # fmt: skip


def quality_series() -> tuple[QualitySeries, ...]:
    found = []
    for name, kind, start, fall in METHODS:
        seeds: tuple[int | None, ...] = (0, 1, 2) if name == "random modules" else (None,)
        budgets = (
            (0.5, 1.0, 2.0, 4.0) if kind is not SeriesKind.BASELINE else (0.56, 1.1, 2.2, 4.4, 8.9, 17.8)
        )
        found.append(
            QualitySeries(
                name=name,
                kind=kind,
                points=tuple(
                    QualityPoint(
                        budget_percent=budget,
                        compensator_bytes=round(W4_BYTES * budget / 100 * 0.995),
                        mean_rank=1.8 * budget,
                        seed=seed,
                        texts=scores(start * budget**-fall * (1 + 0.05 * (seed or 0))),
                    )
                    for budget in budgets
                    for seed in seeds
                ),
            )
        )  # fmt: skip
    return tuple(found)


def byte_ratios() -> tuple[ByteRatio, ...]:
    ours = SidePoint(series="trained", compensator_bytes=973_234, perplexity=34.31, kl=0.229)
    baselines = (("QERA-exact", 8_661_786, 34.2, 0.237, True), ("L²QER", 17_323_571, 37.0, 0.32, False))
    return tuple(
        ByteRatio(
            text="WikiText-2",
            convention="absmax/7.5",
            ours=ours,
            baseline=SidePoint(series=name, compensator_bytes=size, perplexity=perplexity, kl=kl),
            reached=reached,
        )
        for name, size, perplexity, kl, reached in baselines
    )


def evaluation(name: str, full: float, w4: float, kl: float) -> EvaluationTable:
    variants = (
        ("RTN", "absmax/7.5", 1.0, w4), ("RTN + trained, 1%", "absmax/7.5", 0.25, w4),
        ("GPTQ", "absmax/7.5", 0.6, full + 0.6 * (w4 - full)),
        ("GPTQ + trained, 1%", "absmax/7.5", 0.16, full + 0.6 * (w4 - full)),
        ("AWQ, group 64", "absmax/7", 0.31, full + 0.31 * (w4 - full)),
    )  # fmt: skip
    return EvaluationTable(
        text=name,
        rows=tuple(
            VariantRow(
                variant=variant,
                convention=convention,
                perplexity=full + (w4 - full) * left,
                full_precision_perplexity=full,
                start_perplexity=start,
                start_kl=kl * (start - full) / (w4 - full),
                kl_mean=kl * left,
                kl_median=kl * left / 2.7,
                kl_p99=kl * left * 7.1,
                top1_agreement=0.93 - 0.4 * left,
                served_bytes=W4_BYTES + 976_512 * ("trained" in variant),
            )
            for variant, convention, left, start in variants
        ),
    )


@pytest.fixture
def make_report() -> MakeReport:
    """Builds the sample; keyword arguments replace fields."""
    return sample_report


def sample_report(*, layers: int = 30, **changes: object) -> RecoveryReport:
    rows = modules(layers)
    fields: dict[str, object] = {
        "identity": identity(),
        "texts": tuple(
            TextReference(
                name=name,
                digest=f"sha256:{'ab12' * 16}",
                protocol="windows of 2,048 tokens, no overlap, tail dropped, BOS as the tokenizer does",
                token_count=299_007,
                full_precision_perplexity=full,
                w4_perplexity=w4,
                w4_kl=kl,
            )
            for name, full, w4, kl in TEXTS
        ),
        "modules": rows,
        "spectrum": spectrum(rows),
        "training": (
            *(training_run(Rung.TRAINED, seed) for seed in range(3)),
            *(training_run(Rung.GATED, seed) for seed in range(3)),
        ),
        "rungs": rungs(),
        "series": quality_series(),
        "byte_ratios": byte_ratios(),
        "evaluations": tuple(evaluation(*text) for text in TEXTS),
        "warnings": (
            "3 dead input channels in model.layers.11.mlp.down_proj were left out of the statistics.",
        ),
    }
    return RecoveryReport(**(fields | changes))  # type: ignore[arg-type]
