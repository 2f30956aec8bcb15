"""Cutting what a checkpoint gives, one tensor at a time, before anything is laid out for a kernel."""

from dataclasses import replace

from torch import Tensor

from spearhead.errors import CheckpointError
from spearhead.model.checkpoint.compensators import Compensator
from spearhead.model.parallel import Cut
from spearhead.model.quantization import QuantizedWeight


def cut_tensor(tensor: Tensor, cut: Cut) -> Tensor:
    """A view of a weight ``(N, K)``, or of a bias ``(N,)`` for a cut of outputs."""
    return tensor.narrow(cut.axis, cut.span.start, len(cut.span))


def cut_codes(weight: QuantizedWeight, cut: Cut, module: str) -> QuantizedWeight:
    """A part of a quantised weight; scales that inputs share are kept by each rank that has some of these.

    Args:
        weight: Whole.
        cut: Of inputs only between groups.
        module: For messages.

    Raises:
        CheckpointError: The cut would go through a group.
    """
    if cut.axis == 0:
        return _cut_all(weight, cut, cut)
    inputs, groups = weight.codes.shape[1], weight.scales.shape[1]
    size = inputs // groups
    if weight.group_index is not None or (groups > 1 and (cut.span.start % size or cut.span.stop % size)):
        raise CheckpointError(
            f"{module} has {inputs} inputs in {groups} groups; inputs {cut.span.start} to {cut.span.stop} "
            "are no whole number of them: set parallel.tensor_parallel_size = 1"
        )
    whole = range(cut.span.start // size, cut.span.stop // size)
    return _cut_all(weight, cut, Cut(axis=1, span=whole if groups > 1 else range(1)))


def _cut_all(weight: QuantizedWeight, codes: Cut, grouped: Cut) -> QuantizedWeight:
    def part(tensor: Tensor | None) -> Tensor | None:
        return None if tensor is None else cut_tensor(tensor, grouped).clone()

    return replace(
        weight,
        codes=cut_tensor(weight.codes, codes).clone(),
        scales=cut_tensor(weight.scales, grouped).clone(),
        zeros=part(weight.zeros),
        minimums=part(weight.minimums),
    )


def cut_compensator(compensator: Compensator, cut: Cut) -> Compensator:
    """A part of a correction: of B for a cut of outputs, of A for a cut of inputs; gates stay whole."""
    if cut.axis == 0:
        return replace(compensator, b=cut_tensor(compensator.b, cut).clone())
    return replace(compensator, a=cut_tensor(compensator.a, cut).clone())
