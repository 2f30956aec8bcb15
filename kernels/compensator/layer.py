"""A whole layer's products and the kernels in front of them, with compensators by every path. Needs Triton.

========  ================================================================================================
plain     norm, qkv, o, norm, gate_up, activation, down: no compensators
served    codes by the product itself where it does that (up to 64 rows, no gates), else folded
folded    codes in norms and activation, one launch of their own in front of ``o``
separate  codes of every product in a launch of their own
forked    the correction of every product on a side stream
naive     the correction of every product as separate operators
dense     large products: dequantise, then the dense library; no compensators
extended  the same with codes, by the dense library too, as more columns of K
========  ================================================================================================

Attention is left out: it is the same for all. Products get random input of the right size, so that each can
be checked by itself; launches follow each other on one stream as in a decoder.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from kernels.compensator import naive
from kernels.compensator.gpu import gated_codes
from kernels.compensator.layout import GpuCompensator, scratch_needed
from kernels.producer.reference import gated_codes as codes_law
from kernels.tuning.fronts import Front, Produced
from kernels.tuning.products import BOUNDS, Product, draw, relative_error
from kernels.tuning.timing import rotation
from kernels.w4a16 import dense, gpu
from kernels.w4a16.forked import Forked
from kernels.w4a16.plan import LayerPlan, computes_codes
from kernels.w4a16.rooms import Rooms, room_words
from kernels.w4a16.shapes import ModelShape
from kernels.w4a16.table import Plans
from kernels.w4a16.workspace import Workspace, needed

FEW_ROWS = ("plain", "served", "folded", "separate", "forked", "naive")
MANY_ROWS = ("plain", "served", "folded", "forked", "dense", "extended")
"""Paths from ``MANY`` rows on."""
MANY = 128
_WITHOUT = ("plain", "dense")  # no compensators
_FOLDING = ("served", "folded")  # the kernel in front computes codes
# Roundings of a product, times the bound of one: codes, correction and sum where they are apart.
_ROUNDINGS = {
    "plain": 1,
    "dense": 2,
    "served": 2,
    "folded": 2,
    "separate": 2,
    "extended": 2,
    "forked": 3,
    "naive": 3,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One product of a layer with what it needs."""

    name: str
    product: Product
    plan: LayerPlan
    front: Front
    forked: Forked


class Layers:
    """As many layers as rotate past the L2; owns their scratch memory.

    Args:
        model: Dimensions, on one GPU.
        group: Group size, 0 = per channel.
        rank: Of each projection's compensator.
        gated: Whether they have gates.
        dtype: Compute type.
        plans: Of the GPU.
        rows: Most rows.
        device: Where.
        copies: Layers; ``None`` = as many as rotate past the L2.
    """

    def __init__(
        self,
        model: ModelShape,
        *,
        group: int,
        rank: int,
        gated: bool = False,
        dtype: torch.dtype,
        plans: Plans,
        rows: int,
        device: torch.device,
        copies: int | None = None,
    ) -> None:
        weights = sum(shape.out_features * shape.in_features // 2 for shape in model.products)
        self.copies = rotation(weights) if copies is None else copies
        self.parts: list[Part] = []
        for shape in model.products:
            product = draw(shape, group, rank, dtype, device=device, copies=self.copies, gated=gated)
            width = product.compensators[0].code_width
            plan = replace(plans.of(product.weights[0]), dense_from=None)
            front = Front(shape, code_width=width, rows=rows, dtype=dtype, device=device)
            forked = Forked(
                out_features=shape.out_features, code_width=width, rows=rows, dtype=dtype, device=device
            )
            self.parts.append(Part(name=shape.name, product=product, plan=plan, front=front, forked=forked))
        self._workspace = _workspace(self.parts, rows, device)
        self._rooms = Rooms(device)

    def run(self, path: str, rows: int, copy: int) -> list[Tensor]:
        """One layer by one path: the four products' results."""
        return [y for _, _, y in self._steps(path, rows, copy)]

    def errors(self, path: str, rows: int) -> Iterator[tuple[str, float, float]]:
        """Name, relative RMSE against float32 and bound of each product."""
        for part, produced, y in self._steps(path, rows, 0):
            product = part.product
            law = None if path in _WITHOUT else codes_law(produced.x, product.compensators[0])[None]
            bound = _ROUNDINGS[path] * BOUNDS[product.dtype]
            yield part.name, relative_error(y, product.expected(produced.x, law)), bound

    def _steps(self, path: str, rows: int, copy: int) -> Iterator[tuple[Part, Produced, Tensor]]:
        if path == "served" and copy == 0:  # as a decoder does for all layers of a pass
            factors = [part.product.compensators[0] for part in self.parts]
            once = sum(room_words(one, rows) for one in factors if computes_codes(one, rows))
            if once:
                self._rooms.start(self.copies * once)
        for part in self.parts:
            produced = part.front.run(rows, self._folds(path, part, copy, rows))
            yield part, produced, self._multiply(path, part, copy, produced)

    def _folds(self, path: str, part: Part, copy: int, rows: int) -> GpuCompensator | None:
        """The compensator whose codes the kernel in front computes."""
        compensator = part.product.compensators[copy]
        if path == "served" and computes_codes(compensator, rows):
            return None
        return compensator if path in _FOLDING else None

    def _multiply(self, path: str, part: Part, copy: int, produced: Produced) -> Tensor:
        weight, compensator = part.product.weights[copy], part.product.compensators[copy]
        x, codes = produced.x, produced.codes
        rows = len(x)
        if path == "forked":
            return part.forked.multiply(x, weight, part.plan, self._workspace, compensator)
        if path == "separate":
            codes = gated_codes(x, compensator, self._workspace)
        if path == "extended":
            codes = naive.gated_codes(x, compensator)[None]
        inside = path == "served" and codes is None
        given: dict[str, Any] = {
            "compensator": compensator if inside or codes is not None else None,
            "codes": codes,
        }
        if path in ("dense", "extended"):
            return dense.multiply(x, weight, self._workspace, **given)
        if inside:
            given["room"] = self._rooms.take(room_words(compensator, rows))
        y = gpu.multiply(x, weight, part.plan, self._workspace, **given)
        if path == "naive":
            naive.add_correction(y, naive.gated_codes(x, compensator), compensator)
        return y


def _workspace(parts: list[Part], rows: int, device: torch.device) -> Workspace:
    partials, counters, dense_bytes = 0, 0, 0
    for part in parts:
        weight, width = part.product.weights[0], part.product.compensators[0].code_width
        own_partials, own_counters = needed(weight, part.plan, rows, width)
        code_partials, code_counters = scratch_needed(width, rows)
        partials = max(partials, own_partials, code_partials)
        counters = max(counters, own_counters, code_counters)
        if rows >= MANY:
            dense_bytes = max(dense_bytes, 2 * weight.out_features * (weight.in_features + width))
    return Workspace(device, partials=partials, counters=counters, dense_bytes=dense_bytes)
