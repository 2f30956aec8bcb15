"""Stage 2: one pass over the calibration tokens that leaves each module's closed form at the largest rank.

Second moments are K x K for each input; all of them together would not fit anywhere, so a layer's are used
while they exist.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

from spearhead.errors import CalibrationError
from spearhead.model.checkpoint.layout import layer_name
from spearhead.model.checkpoint.origin import recorded_revision
from spearhead.quant.calibration.config import CalibrationConfig
from spearhead.quant.calibration.models import Models
from spearhead.quant.calibration.progress import Progress
from spearhead.quant.calibration.sequences import CalibrationTexts
from spearhead.quant.calibration.store import StageResult, StageStore
from spearhead.quant.decoder import LayerTensors
from spearhead.quant.device import free_memory_bytes
from spearhead.quant.layer_pass import LayerVisit, visit_layers
from spearhead.quant.low_rank import LowRank, output_error, qera_exact
from spearhead.quant.moments import Moments
from spearhead.quant.sequences import TokenBatch

STAGE = "statistics"

_LARGEST_ERROR = 0.5
"""‖E‖ / ‖W‖ beyond which nothing was rounded: 4 bits leave 0.05 to 0.3, and unrelated weights 1.4."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClosedForms:
    """The best correction of every candidate.

    Attributes:
        by_module: Module to factors of the largest rank, whose leading components are the best of less.
        moment_tokens: Tokens that statistics are from.
        result: The stage.
    """

    by_module: Mapping[str, LowRank]
    moment_tokens: int
    result: StageResult


Fit = Callable[[str, Tensor, Moments], Mapping[str, Tensor]]
"""Makes named tensors of a module from (its name, error E (N, K) float32, moments of its inputs)."""


def fit_closed_forms(
    store: StageStore,
    models: Models,
    texts: CalibrationTexts,
    config: CalibrationConfig,
    *,
    progress: Progress,
) -> ClosedForms:
    """QERA-exact in the whitened gauge for every candidate.

    Raises:
        CalibrationError: Inputs that are not finite, or a correction that does not correct.
    """
    rank = config.max_rank

    def fit(module: str, error: Tensor, moments: Moments) -> Mapping[str, Tensor]:
        best = qera_exact(error, moments, rank)
        _check_improves(module, error, moments, best)
        return {"a": best.a, "b": best.b, "energies": best.energies}

    depends = {
        "subject": models.subject.identity,
        "sequences": texts.result.key,
        "split": [config.holdout, config.sampling.seed],
        "moments_sequences": config.moments_sequences,
        "skip_first": config.skip_first,
        "max_rank": rank,
        "tokens_at_once": models.tokens_at_once,
        "device": models.device.type,
    }
    result = store.stage(
        STAGE, depends, lambda _: fit_pass(models, texts, config.moments_sequences, fit, STAGE, progress)
    )
    layers = models.subject.full.config.layer_count
    progress(STAGE, layers, layers)
    by_module = {
        module.name: LowRank(
            a=result.tensors[f"{module.name}:a"],
            b=result.tensors[f"{module.name}:b"],
            energies=result.tensors[f"{module.name}:energies"],
        )
        for module in models.subject.modules
    }
    return ClosedForms(by_module=by_module, moment_tokens=int(result.values["moment_tokens"]), result=result)


def fit_pass(
    models: Models, texts: CalibrationTexts, sequence_count: int, fit: Fit, label: str, progress: Progress
) -> StageResult:
    """Visits every layer of the teacher once and fits its candidates while their statistics exist.

    Args:
        models: Teacher and 4-bit weights.
        texts: The training sequences.
        sequence_count: How many of them.
        fit: What is made of a module.
        label: Of the progress.
        progress: Told of layers.

    Returns:
        Tensors as ``<module>:<name>``, and the number of tokens under ``moment_tokens``.
    """
    subject = models.subject
    source = models.teacher()
    batches = texts.batches(sequence_count, models.batch_size(texts.training.token_ids.shape[1]))
    names = {module.name for module in subject.modules}
    found: dict[str, Tensor] = {}

    def advance(visit: LayerVisit) -> LayerTensors:
        for part, moments in visit.moments.items():
            module = layer_name(visit.index, part)
            if module not in names:
                continue
            error = module_error(models, module)
            seen = subject.folds.moments(module, moments)
            fitted = fit(module, error, seen)
            found.update({f"{module}:{name}": tensor.cpu() for name, tensor in fitted.items()})
        progress(label, visit.index + 1, source.config.layer_count)
        return visit.tensors

    store_device = None if models.device.type == "cpu" or _fits(models, batches) else torch.device("cpu")
    visit_layers(source, batches, advance, replaces=False, store=store_device)
    tokens = sum(int(batch.valid.sum()) for batch in batches)
    return StageResult(values={"moment_tokens": tokens}, tensors=found)


def module_error(models: Models, module: str) -> Tensor:
    """E = W - Ŵ in the artefact's scaling of the layer, float32 ``(N, K)`` on the device.

    Raises:
        CalibrationError: NaN or infinity in either, or an error that is none of rounding.
    """
    subject = models.subject
    full = subject.folds.folded(module, subject.full.tensor(f"{module}.weight").to(models.device))
    error = full - subject.artefact.tensor(f"{module}.weight").to(models.device, torch.float32)
    if not bool(torch.isfinite(error).all()):
        raise CalibrationError(
            f"the weights of {module} hold NaN or infinity, in full precision or in 4 bits; the checkpoint "
            "is damaged, make it again"
        )
    if not recorded_revision(subject.artefact):
        _check_rounded(models, module, float(error.norm()), float(full.norm()))
    return error


def _check_rounded(models: Models, module: str, error: float, size: float) -> None:
    """Refuses weights that nobody rounded from these; of an artefact with a record, its digest says so."""
    if error > _LARGEST_ERROR * size:
        subject = models.subject
        ratio = error / size if size else math.inf
        raise CalibrationError(
            f"the quantised weights of {module} differ from those of {subject.full.path} by {ratio:.2f} of "
            f"their size, where rounding leaves at most {_LARGEST_ERROR:g}: name the model that "
            f"{subject.artefact.path} was made from with --full-precision; if it is that one, its weights "
            "were scaled in a way that is not understood here, so quantise it with `spearhead quantize`"
        )


def _fits(models: Models, batches: list[TokenBatch]) -> bool:
    elements = sum(prod(batch.token_ids.shape) for batch in batches) * models.subject.full.config.hidden_size
    return 8 * elements < 0.2 * free_memory_bytes(models.device)


def _check_improves(module: str, error: Tensor, moments: Moments, best: LowRank) -> None:
    """A correction that makes the outputs worse on its own statistics is a bug of arithmetic, not of data."""
    before = output_error(error, moments)
    after = output_error(error - best.b @ best.a, moments)
    if not after <= before * (1 + 1e-6):
        raise CalibrationError(
            f"the correction of {module} leaves more error ({after:.4g}) than there was ({before:.4g}) on "
            "its own calibration tokens; its statistics are damaged: use other sequences"
        )
