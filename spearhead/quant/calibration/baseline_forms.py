"""Published closed forms at one rank everywhere; all but LoftQ belong to the artefact's own 4-bit weights."""

import re
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path

import torch
from torch import Tensor

from spearhead.model.quantization import QuantizationScheme, dequantize, rtn
from spearhead.quant.calibration.calibration import Calibration
from spearhead.quant.calibration.fitting import fit_pass
from spearhead.quant.calibration.progress import Progress
from spearhead.quant.calibration.scoring import Variant
from spearhead.quant.calibration.store import StageResult, StageStore
from spearhead.quant.layers import StreamedLayers
from spearhead.quant.low_rank import (
    LowRank,
    l2qer_scale,
    loftq,
    qera_approx_scale,
    qera_exact,
    scaled_svd,
)
from spearhead.quant.moments import Moments
from spearhead.quant.student import Factors

LABEL = "closed forms of other methods"


class Method(StrEnum):
    """Who published it."""

    LQER = "LQER (plain SVD)"
    L2QER = "L²QER"
    QERA_APPROX = "QERA-approx"
    QERA_EXACT = "QERA-exact"
    LOFTQ = "LoftQ"


_FITTED = (Method.LQER, Method.L2QER, Method.QERA_APPROX, Method.QERA_EXACT)


class BaselineForms:
    """Factors of every method at any rank up to a largest one, all from one pass.

    Args:
        store: Keeps them.
        found: The calibration that they are compared with.
        max_rank: Largest rank.
        progress: Told of layers.
    """

    def __init__(self, store: StageStore, found: Calibration, max_rank: int, progress: Progress) -> None:
        self.max_rank = max_rank
        self._store, self._found, self._progress = store, found, progress
        self._fitted: StageResult | None = None

    def variant(self, method: Method, ranks: Mapping[str, int]) -> Variant:
        """A method's correction at some ranks, at most ``max_rank`` each."""
        if method is Method.LOFTQ:
            return self._loftq(ranks)
        fitted = self._fit()
        factors: dict[str, Factors] = {}
        for module, rank in ranks.items():
            a, b = (fitted.tensors[f"{module}:{method.name}:{part}"] for part in ("a", "b"))
            kept = min(rank, len(a))
            if kept:
                factors[module] = Factors(a=a[:kept].contiguous(), b=b[:, :kept].contiguous())
        key = f"{fitted.key}/{method.name}/{sorted(ranks.items())}"
        return Variant(name=method.value, key=key, factors=factors)

    def offers(self, method: Method) -> bool:
        """LoftQ chooses the 4-bit weights itself, which is only known for plain rounding."""
        return method is not Method.LOFTQ or _scheme(self._found) is not None

    def _fit(self) -> StageResult:
        if self._fitted is None:
            found = self._found
            depends = {"statistics": found.forms.result.key, "max_rank": self.max_rank}
            self._fitted = self._store.stage("baseline-forms", depends, self._compute)
        return self._fitted

    def _compute(self, _: Path) -> StageResult:
        found = self._found

        def fit(module: str, error: Tensor, moments: Moments) -> Mapping[str, Tensor]:
            tensors: dict[str, Tensor] = {}
            for method in _FITTED:
                best = _closed_form(method, error, moments, self.max_rank)
                tensors |= {f"{method.name}:a": best.a, f"{method.name}:b": best.b}
            return tensors

        return fit_pass(found.models, found.texts, found.config.moments_sequences, fit, LABEL, self._progress)

    def _loftq(self, ranks: Mapping[str, int]) -> Variant:
        scheme = _scheme(self._found)
        assert scheme is not None, "offers() says so"
        subject, models = self._found.subject, self._found.models
        scale_dtype: torch.dtype = getattr(torch, subject.artefact.weight_dtype)

        def quantize(weight: Tensor) -> Tensor:
            return dequantize(*rtn(weight, scheme, scale_dtype))

        def compute(_: Path) -> StageResult:
            made: dict[str, Tensor] = {}
            for place, (module, rank) in enumerate(ranks.items()):
                weight = subject.full.tensor(f"{module}.weight").to(models.device, torch.float32)
                before = loftq(weight, quantize, rank, iterations=4)[1]
                after = scaled_svd(weight - quantize(weight - before.b @ before.a), None, rank)
                for kind, form in (("before", before), ("after", after)):
                    made |= {f"{module}:{kind}:a": form.a.cpu(), f"{module}:{kind}:b": form.b.cpu()}
                self._progress(Method.LOFTQ, place + 1, len(ranks))
            return StageResult(values={}, tensors=made)

        depends = {"subject": subject.identity, "ranks": dict(ranks), "scheme": str(scheme)}
        stored = self._store.stage("loftq", depends, compute)

        def reround(module: str, weight: Tensor) -> Tensor:
            if module not in ranks:
                return subject.artefact.tensor(f"{module}.weight")
            a, b = (stored.tensors[f"{module}:before:{part}"] for part in ("a", "b"))
            on_device = weight.to(models.device, torch.float32)
            return quantize(on_device - b.to(models.device) @ a.to(models.device))

        streamed = StreamedLayers(subject.full, dtype=torch.float32, device=models.device, replace=reround)
        return Variant(
            name=Method.LOFTQ.value,
            key=stored.key,
            factors={
                module: Factors(a=stored.tensors[f"{module}:after:a"], b=stored.tensors[f"{module}:after:b"])
                for module in ranks
            },
            weights=models.place(streamed, subject.full),
        )


def _closed_form(method: Method, error: Tensor, moments: Moments, rank: int) -> LowRank:
    if method is Method.QERA_EXACT:
        return qera_exact(error, moments, rank)
    if method is Method.QERA_APPROX:
        return scaled_svd(error, qera_approx_scale(moments), rank)
    return scaled_svd(error, l2qer_scale(moments) if method is Method.L2QER else None, rank)


def _scheme(found: Calibration) -> QuantizationScheme | None:
    """That of an artefact that rounds every module the same way; ``None`` for all others."""
    description = found.subject.artefact.quantization
    match = re.fullmatch(r"w4 symmetric, (?:per (\w+)|group (\d+)), absmax/([\d.]+)", description)
    if match is None or found.subject.skipped:
        return None
    sharing = match[1] or f"group{match[2]}"
    return QuantizationScheme.parse(f"{sharing}/{match[3]}")
