"""What ``ec.json`` says about how compensators came to be."""

from typing import Any

import torch

from spearhead import __version__
from spearhead.quant.calibration.calibration import Calibration
from spearhead.quant.damage import DamageReport


def provenance(found: Calibration) -> dict[str, Any]:
    """What ``ec.json`` says about how the compensators came to be."""
    spread = found.allocation.damage
    return {
        "software": {"spearhead": __version__, "torch": torch.__version__},
        "seed": found.config.seed,
        "full_precision_revision": found.subject.full.revision,
        "rung": found.chosen.rung.value,
        "config": found.config.fields(),
        "dtype": str(found.models.dtype).removeprefix("torch."),
        "device": found.models.device.type,
        "sequences": found.texts.described,
        "moment_tokens": found.forms.moment_tokens,
        "damage_kind": found.damage.kind,
        "damage": {kind: dict(values) for kind, values in found.damage.values.items()},
        "damage_correlations": correlations(found.damage),
        "entropy_nats": None if spread is None else spread.entropy_nats,
        "effective_count": None if spread is None else spread.effective_count,
        "ranks": {module: len(one.a) for module, one in found.chosen.factors.items()},
        "gated_modules": sorted(m for m, one in found.chosen.factors.items() if one.gate is not None),
        "reasons": {**found.allocation.reasons, **found.subject.skipped},
        "budget_bytes": found.allocation.budget_bytes,
        "compensator_bytes": found.chosen.compensator_bytes,
        "w4_bytes": found.subject.artefact.stored_bytes,
        "decisions": [decision.sentence for decision in found.decisions],
        "held_out_kl": {decision.rung.value: decision.held_out_kl for decision in found.decisions},
    }


def correlations(damage: DamageReport) -> dict[str, float | None]:
    """Spearman's coefficients by ``first/second``."""
    return {f"{first}/{second}": value for (first, second), value in damage.correlations().items()}
