"""One weight in, codes and scales out, by whichever method a choice names."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from spearhead.errors import CalibrationError
from spearhead.model.quantization import dequantize
from spearhead.quant.methods.clip_search import clip_search
from spearhead.quant.methods.gptq import gptq
from spearhead.quant.methods.grid import Grid
from spearhead.quant.methods.learned_clipping import Clippable, LearnedScales, learn_clipping
from spearhead.quant.methods.options import MethodOptions
from spearhead.quant.methods.weight_error import squared_error
from spearhead.quant.moments import Moments
from spearhead.quant.recipe import ModuleChoice

_DEFAULTS = MethodOptions()


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantizedResult:
    """A quantised weight.

    Attributes:
        codes: int8 ``(N, K)``.
        scales: ``(N, K / G)`` in the storage type; one column for ``channel`` and ``tensor``.
        method_used: The method; another than was asked for when that failed.
        note: What a reader of the report should know; empty = nothing.
    """

    codes: Tensor
    scales: Tensor
    method_used: str
    note: str = ""

    def dequantize(self) -> Tensor:
        """The weights, float32 ``(N, K)``."""
        return dequantize(self.codes, self.scales)


def quantize_weight(
    weight: Tensor,
    choice: ModuleChoice,
    moments: Moments | None = None,
    *,
    scale_dtype: torch.dtype = torch.float16,
    options: MethodOptions = _DEFAULTS,
    scales: Tensor | None = None,
) -> QuantizedResult:
    """Quantises one weight on the device that holds it.

    A single weight has no block and nothing before it: ``omniquant`` trains on the output of this module
    alone, and ``awq`` only rounds (its input scales are found for a whole layer).

    Args:
        weight: Float32 ``(N, K)``, finite; K is a multiple of the group size.
        choice: Method and grid.
        moments: Of the inputs, for every method but ``rtn`` and ``rtn-clip-unweighted``.
        scale_dtype: How scales are stored.
        options: Numbers of the methods.
        scales: ``(N, G)``, given instead of found; for learned clipping of a whole block.

    Raises:
        CalibrationError: Moments that are missing or not finite.
    """
    grid, method = choice.grid, choice.method
    second = _second_moments(choice, moments, weight)
    notes = [_note_on_zeros(weight, grid)]
    used: str = method
    if scales is None and method == "omniquant":
        learned = _learned(weight, choice, second, scale_dtype, options)
        scales, used = learned.scales[""], learned.method
        notes.append(note_on_learning(learned))
    elif scales is None:
        scales = _scales(weight, choice, second, scale_dtype)
    codes = grid.codes(weight, scales)
    if method.startswith("gptq"):
        assert second is not None, "checked by _second_moments"
        better, note = _compensated(weight, choice, scales, codes, second, options)
        notes.append(note)
        if better is None:
            used = "rtn" + method.removeprefix("gptq")
        else:
            codes = better
    notes.append(_note_on_underflow(weight, grid, scales))
    return QuantizedResult(
        codes=codes, scales=scales, method_used=used, note="; ".join(note for note in notes if note)
    )


def note_on_learning(learned: LearnedScales) -> str:
    """Why scales are not the learned ones; empty if they are."""
    if learned.method == "omniquant":
        return ""
    losses = learned.losses
    return (
        f"omniquant fell back to {learned.method}: training ended at an error of {losses['omniquant']:.3g}, "
        f"above {losses[learned.method]:.3g}"
    )


def _second_moments(choice: ModuleChoice, moments: Moments | None, weight: Tensor) -> Tensor | None:
    if moments is None and choice.needs_statistics and not choice.method.startswith("awq"):
        raise CalibrationError(
            f"{choice.method} needs statistics of the inputs; give calibration tokens, or use rtn"
        )
    if moments is None:
        return None
    if not bool(torch.isfinite(moments.second).all()):
        raise CalibrationError(
            "the second moments of the inputs hold NaN or infinity; mend the calibration tokens"
        )
    return moments.second.to(weight.device)


def _scales(weight: Tensor, choice: ModuleChoice, second: Tensor | None, scale_dtype: torch.dtype) -> Tensor:
    grid = choice.grid
    if choice.method == "rtn-clip-unweighted":
        return clip_search(weight, grid, None, scale_dtype)
    if choice.method.endswith("-clip"):
        return clip_search(weight, grid, None if second is None else second.diagonal(), scale_dtype)
    return grid.scales(grid.largest(weight), scale_dtype)


def _learned(
    weight: Tensor,
    choice: ModuleChoice,
    second: Tensor | None,
    scale_dtype: torch.dtype,
    options: MethodOptions,
) -> LearnedScales:
    assert second is not None, "checked by _second_moments"
    wide = second.to(weight)

    def loss(weights: Mapping[str, Tensor], _batch: int) -> Tensor:
        difference = weights[""] - weight
        return ((difference @ wide) * difference).sum()

    return learn_clipping(
        {"": Clippable(weight=weight, grid=choice.grid, mean_square=second.diagonal())},
        loss,
        1,
        steps=options.clipping_steps,
        rate=options.clipping_rate,
        scale_dtype=scale_dtype,
    )


def _compensated(
    weight: Tensor,
    choice: ModuleChoice,
    scales: Tensor,
    nearest: Tensor,
    second: Tensor,
    options: MethodOptions,
) -> tuple[Tensor | None, str]:
    """GPTQ's codes, or none and why."""
    codes = gptq(weight, choice.grid, scales, second, damping=options.damping, act_order=options.act_order)
    if codes is None:
        return None, "gptq fell back to rounding: the second moments cannot be factorised at any damping"
    error = squared_error(weight - dequantize(codes, scales), second)
    plain = squared_error(weight - dequantize(nearest, scales), second)
    if not error <= plain:
        return None, f"gptq fell back to rounding: its squared error {error:.3g} is above {plain:.3g}"
    return codes, ""


def _note_on_zeros(weight: Tensor, grid: Grid) -> str:
    count = int((grid.grouped(weight).abs().amax(dim=2) == 0).sum())
    return f"{count} rows or groups are all zero" if count else ""


def _note_on_underflow(weight: Tensor, grid: Grid, scales: Tensor) -> str:
    least = torch.finfo(scales.dtype).tiny
    count = int(((scales == least) & (grid.largest(weight) > 0)).sum())
    name = str(scales.dtype).removeprefix("torch.")
    return f"{count} scales were raised to the smallest that {name} holds" if count else ""
