"""Stage 3: how badly each candidate was hit, measured one module at a time."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from spearhead.quant.calibration.config import CalibrationConfig
from spearhead.quant.calibration.models import Models
from spearhead.quant.calibration.progress import Progress
from spearhead.quant.calibration.sequences import CalibrationTexts
from spearhead.quant.calibration.store import StageResult, StageStore
from spearhead.quant.damage import DAMAGE_KINDS, DamageKind, DamageReport, measure_damage

STAGE = "damage"
_FREE: tuple[DamageKind, ...] = ("cka_final", "cka_block")
"""Come out of the same passes as any other kind."""


def measured_beside(device: torch.device) -> tuple[DamageKind, ...]:
    """What is measured beside the chosen kind, so that their rank correlation can be told.

    The divergence needs the head's product once a module. On a processor that takes as long as the rest of
    the stage where models are small and vocabularies large; there it must be chosen.
    """
    return (*_FREE, "kl") if device.type == "cuda" else _FREE


def measure_modules(
    store: StageStore,
    models: Models,
    texts: CalibrationTexts,
    config: CalibrationConfig,
    *,
    progress: Progress,
) -> tuple[DamageReport, StageResult]:
    """Damage of every candidate by the chosen measure, and by those that cost little more.

    Raises:
        CalibrationError: Outputs that are not finite; names the module.
    """
    subject = models.subject
    length, beside = texts.training.token_ids.shape[1], measured_beside(models.device)
    depends: dict[str, Any] = {
        "subject": subject.identity,
        "sequences": texts.result.key,
        "split": [config.holdout, config.sampling.seed],
        "damage": [config.damage, *beside],
        "tokens": config.damage_tokens,
        "skip_first": config.skip_first,
        "tokens_at_once": models.tokens_at_once,
        "device": models.device.type,
    }

    def replacement(module: str) -> Tensor:
        weight = subject.artefact.tensor(f"{module}.weight")
        return subject.folds.unfolded(module, weight)

    def compute(journal: Path) -> StageResult:
        report = measure_damage(
            models.teacher(),
            replacement,
            texts.batches(-(-config.damage_tokens // length), models.batch_size(length)),
            kind=config.damage,
            also=beside,
            modules=[module.name for module in subject.modules],
            skip_first=0,  # the batches leave out what does not count
            journal=journal / "damage.jsonl",
            identity=store.key(STAGE, depends),
            progress=lambda done, total: progress(STAGE, done, total),
        )
        values = {"values": report.values, "token_count": report.token_count}
        return StageResult(values=values, tensors={})

    result = store.stage(STAGE, depends, compute)
    progress(STAGE, len(subject.modules), len(subject.modules))
    found = result.values["values"]
    return DamageReport(
        kind=config.damage,
        values={kind: found[kind] for kind in DAMAGE_KINDS if kind in found},
        token_count=int(result.values["token_count"]),
    ), result
