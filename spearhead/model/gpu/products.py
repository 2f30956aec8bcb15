"""The products of a decoder on one GPU, each with bits that do not depend on the row count."""

from collections.abc import Iterable, Iterator
from dataclasses import replace

import torch
from torch import Tensor

from kernels.compensator.layout import GpuCompensator, scratch_needed
from kernels.linear import multiply_blocks
from kernels.producer import CodeWorkspace, code_workspace, total_codes
from kernels.w4a16 import GpuProducts, GpuWeight, Plans, Rooms, Workspace, computes_codes, room_words
from kernels.w4a16.workspace import needed
from spearhead.model.weights import LinearWeights, ModelWeights


class GpuLinears:
    """Multiplies by whatever form a weight has; owns plans and scratch memory of one stream. Needs Triton.

    4-bit weights take the fused kernel at every row count: its dense path would be faster for long prompts,
    but a row's bits would depend on how many rows come with it. Dense weights are multiplied in blocks of
    equal size for the same reason.

    Args:
        variants: Every weight that will be used.
        plans: Of this GPU.
        rows: Largest row count.
        device: Where the weights are.
    """

    def __init__(
        self, variants: Iterable[ModelWeights], plans: Plans, *, rows: int, device: torch.device
    ) -> None:
        from kernels.compensator.gpu import gated_codes

        linears = list(_linears(variants))
        self._workspace = _workspace(linears, plans, rows, device)
        self._four_bit = GpuProducts(plans, self._workspace)
        self._gated_codes = gated_codes
        self._rooms = Rooms(device)
        self.codes: CodeWorkspace = _code_workspace(linears, rows, device)

    def start(self, weights: ModelWeights, rows: int) -> None:
        """Prepares one pass: zeros for all products that compute codes themselves, in one launch.

        Args:
            weights: Of the pass.
            rows: M of every product that follows.
        """
        words = sum(
            room_words(linear.gpu_compensator, rows)
            for linear in _linears([weights])
            if self._computes_codes(linear, rows) and linear.gpu_compensator is not None
        )
        if words:
            self._rooms.start(words)

    def multiply(self, x: Tensor, linear: LinearWeights, codes: Tensor | None = None) -> Tensor:
        """``x weightᵀ + bias`` plus the corrections of compensators, in the type of ``x``.

        Args:
            x: ``(M, K)``, contiguous.
            linear: ``(N, K)``, prepared for the GPU.
            codes: float32 ``(P, M, S R)``, partial codes, where the kernel in front has computed them; else
                they are computed here if there are compensators.

        Returns:
            ``(M, N)``.
        """
        compensator = linear.gpu_compensator
        if isinstance(linear.weight, GpuWeight):
            room = None
            if codes is None and compensator is not None and self._computes_codes(linear, len(x)):
                room = self._rooms.take(room_words(compensator, len(x)))
            return self._four_bit.multiply(
                x, linear.weight, phase="decode", compensator=compensator, codes=codes, room=room
            )
        assert isinstance(linear.weight, Tensor), "a weight packed for the processor was given to the GPU"
        y = multiply_blocks(x, linear.weight, linear.bias)
        if compensator is None:
            return y
        if codes is None:
            codes = self._gated_codes(x, compensator, self._workspace)
        total, first, rank = total_codes(codes), 0, compensator.rank
        for place, count in enumerate(compensator.outputs):
            # A copy: with another distance between rows the library may take another kernel.
            own = total[:, place * rank : (place + 1) * rank].to(x.dtype).contiguous()
            y[:, first : first + count] += multiply_blocks(own, compensator.b[first : first + count])
            first += count
        return y

    def front(self, linear: LinearWeights, rows: int) -> GpuCompensator | None:
        """The compensator whose codes the kernel in front of a product of so many rows has to compute."""
        return None if self._computes_codes(linear, rows) else linear.gpu_compensator

    def check_integrity(self) -> None:
        """Fails where a kernel was cut off and left counters behind.

        Raises:
            RuntimeError: A counter is not zero.
        """
        self._workspace.check_integrity()
        left = int(self.codes.arrivals.count_nonzero())
        if left:
            raise RuntimeError(
                f"{left} arrival counters of codes are not zero: a kernel was cut off; restart"
            )

    def _computes_codes(self, linear: LinearWeights, rows: int) -> bool:
        return isinstance(linear.weight, GpuWeight) and computes_codes(linear.gpu_compensator, rows)


def _linears(variants: Iterable[ModelWeights]) -> Iterator[LinearWeights]:
    for weights in variants:
        for layer in weights.layers:
            yield from (layer.qkv, layer.output, layer.gate_up, layer.down)


def _workspace(linears: Iterable[LinearWeights], plans: Plans, rows: int, device: torch.device) -> Workspace:
    partials, counters = 0, 0
    for linear in linears:
        if isinstance(linear.weight, GpuWeight):
            plan = replace(plans.of(linear.weight), dense_from=None)
            compensator = linear.gpu_compensator
            width = 0 if compensator is None else compensator.code_width
            own_partials, own_counters = needed(linear.weight, plan, rows, width)
            partials, counters = max(partials, own_partials), max(counters, own_counters)
        if width := _gated_width(linear):
            own_partials, own_counters = scratch_needed(width, rows)
            partials, counters = max(partials, own_partials), max(counters, own_counters)
    return Workspace(device, partials=partials, counters=counters)


def _code_workspace(linears: Iterable[LinearWeights], rows: int, device: torch.device) -> CodeWorkspace:
    sizes = [(linear.weight.shape[1], _gated_width(linear)) for linear in linears if _gated_width(linear)]
    if not sizes:
        return code_workspace(0, 1, 1, device)
    return code_workspace(
        rows, max(columns for columns, _ in sizes), max(width for _, width in sizes), device
    )


def _gated_width(linear: LinearWeights) -> int:
    """Codes a row whose sum gates wait for; without gates no kernel needs memory for them."""
    compensator = linear.gpu_compensator
    return 0 if compensator is None or compensator.gate is None else compensator.code_width
