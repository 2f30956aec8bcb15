"""Every way to compute one product, side by side for measurements: gate first, then time. Needs Triton.

=========  ===============================================================================================
plain      the fused kernel without a compensator
fused      with codes that a kernel in front has computed
inside     codes by the first programs of the product's launch: up to 64 rows, no gates
codes      the kernel that computes codes where nothing in front does, and the fused kernel
single     all of it in one launch
forked     the plain kernel, and the correction beside it on another stream
naive      the plain kernel and separate operators
dense      dequantise, then the dense library over x, without a compensator
extended   the same over [x; zg], with codes by the dense library
fp16       the dense library on weights that were never quantised, no compensator
marlin     vLLM's kernels on the same codes, no compensator
machete
front      what the kernel in front takes more because it computes codes; of ``o``, the kernel of its own
=========  ===============================================================================================
"""

from collections.abc import Callable, Collection, Iterator
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels.compensator import gpu as compensator_gpu
from kernels.compensator import naive
from kernels.compensator.layout import scratch_needed
from kernels.tuning.fronts import Front
from kernels.tuning.products import BOUNDS, Product, cold, relative_error
from kernels.tuning.timing import Timing, time_calls
from kernels.w4a16 import dense, gpu, single_launch
from kernels.w4a16.forked import Forked
from kernels.w4a16.peers import Peers
from kernels.w4a16.plan import LayerPlan, computes_codes
from kernels.w4a16.rooms import Rooms
from kernels.w4a16.shapes import Shape
from kernels.w4a16.workspace import Workspace, needed

OURS = ("plain", "fused", "inside", "codes", "single", "forked", "naive", "dense", "extended")
PEERS = ("marlin", "machete")
COLUMNS = (*OURS, "fp16", *PEERS)
Multiply = Callable[[Tensor, int], Tensor]
# Roundings beyond the product's own: of weights, codes, corrections.
_ROUNDINGS = {"plain": 1, "fp16": 1, "marlin": 1, "machete": 1, "naive": 3, "forked": 3}


class Paths:
    """The ways to compute one product; each takes ``x`` and the number of a copy of the weight.

    Args:
        product: With copies of the weight that rotate past the L2.
        shape: Of the product.
        plan: The layer's.
        peers: ``None`` = there are none.
        rows: Most rows.
        wanted: Names of paths.
    """

    def __init__(
        self,
        product: Product,
        shape: Shape,
        plan: LayerPlan,
        peers: Peers | None,
        *,
        rows: int,
        wanted: Collection[str] = COLUMNS,
    ) -> None:
        self._product, self._plan, self._wanted = product, plan, wanted
        weight, width = product.weights[0], product.compensators[0].code_width
        device = weight.words.device
        self._workspace = _workspace(product, plan, rows)
        self._rooms = Rooms(device)
        room = plan.parts * weight.padded_outputs * 128 + 32 * width * 128
        self._single = Workspace(device, partials=room, counters=2 + weight.padded_outputs // 64)
        dtype = product.dtype
        self._forked = Forked(
            out_features=weight.out_features, rows=rows, code_width=width, dtype=dtype, device=device
        )
        self._front = Front(shape, rows=rows, code_width=width, dtype=dtype, device=device)
        self._unpacked: list[Tensor] = []
        if "fp16" in wanted:
            copies = max(2, -(-len(product.weights) // 4))  # four times as large
            self._unpacked = [product.dense] + [torch.randn_like(product.dense) for _ in range(copies - 1)]
        self._peers = dict(_peers(product, peers, wanted))

    def of(self, x: Tensor) -> dict[str, tuple[Multiply, Tensor | None]]:
        """Each wanted path that takes this many rows, with the codes that it is given or computes."""
        codes = compensator_gpu.gated_codes(x, self._product.compensators[0], self._workspace)
        paths: dict[str, tuple[Multiply, Tensor | None]] = {
            "plain": (self._plain, None),
            "fused": (partial(self._fused, codes), codes),
            "inside": (self._inside, codes),
            "codes": (self._codes, codes),
            "single": (self._one_launch, codes),
            "forked": (self._fork, codes),
            "naive": (self._naive, codes),
            "dense": (self._dense, None),
            "extended": (self._extended, codes),
            "fp16": (self._unquantized, None),
            **{name: (copies, None) for name, copies in self._peers.items()},
        }
        if len(x) > self._plan.tile(len(x)).rows:
            del paths["single"]
        if not computes_codes(self._product.compensators[0], len(x)):
            del paths["inside"]
        return {name: path for name, path in paths.items() if name in self._wanted}

    def error(self, path: Multiply, x: Tensor, codes: Tensor | None) -> float:
        """Relative RMSE of a path against float32, on the first copy of the weight."""
        return relative_error(path(x, 0), self._product.expected(x, codes))

    def bound(self, name: str) -> float:
        """The largest error that a path may have."""
        return BOUNDS[self._product.dtype] * _ROUNDINGS.get(name, 2)

    def time(self, path: Multiply, x: Tensor) -> Timing:
        """Over all copies of the weight."""
        return time_calls([partial(path, x, copy) for copy in range(len(self._product.weights))])

    def front_us(self, rows: int) -> float:
        """What computing codes adds to the kernel in front of the product, microseconds."""
        factors = cold(self._product.compensators[0], rows)
        with_codes = [partial(self._front.run, rows, one) for one in factors]
        coded = time_calls(with_codes).median_us
        if self._front.op == "codes":
            return coded
        plain = time_calls([partial(self._front.run, rows, None)] * len(factors)).median_us
        return max(coded - plain, 0.0)

    def _plain(self, x: Tensor, copy: int) -> Tensor:
        return gpu.multiply(x, self._product.weights[copy], self._plan, self._workspace)

    def _fused(self, codes: Tensor, x: Tensor, copy: int) -> Tensor:
        weight, compensator = self._product.weights[copy], self._product.compensators[copy]
        return gpu.multiply(x, weight, self._plan, self._workspace, compensator=compensator, codes=codes)

    def _inside(self, x: Tensor, copy: int) -> Tensor:
        weight, compensator = self._product.weights[copy], self._product.compensators[copy]
        room = self._rooms.of_copy(copy, self._product.compensators, len(x))
        return gpu.multiply(x, weight, self._plan, self._workspace, compensator=compensator, room=room)

    def _codes(self, x: Tensor, copy: int) -> Tensor:
        codes = compensator_gpu.gated_codes(x, self._product.compensators[copy], self._workspace)
        return self._fused(codes, x, copy)

    def _one_launch(self, x: Tensor, copy: int) -> Tensor:
        weight, compensator = self._product.weights[copy], self._product.compensators[copy]
        return single_launch.multiply(x, weight, self._plan, self._single, compensator)

    def _fork(self, x: Tensor, copy: int) -> Tensor:
        weight, compensator = self._product.weights[copy], self._product.compensators[copy]
        return self._forked.multiply(x, weight, self._plan, self._workspace, compensator)

    def _naive(self, x: Tensor, copy: int) -> Tensor:
        y, compensator = self._plain(x, copy), self._product.compensators[copy]
        naive.add_correction(y, naive.gated_codes(x, compensator), compensator)
        return y

    def _dense(self, x: Tensor, copy: int) -> Tensor:
        return dense.multiply(x, self._product.weights[copy], self._workspace)

    def _extended(self, x: Tensor, copy: int) -> Tensor:
        weight, compensator = self._product.weights[copy], self._product.compensators[copy]
        codes = naive.gated_codes(x, compensator)[None]
        return dense.multiply(x, weight, self._workspace, compensator=compensator, codes=codes)

    def _unquantized(self, x: Tensor, copy: int) -> Tensor:
        return F.linear(x, self._unpacked[copy % len(self._unpacked)])


def _workspace(product: Product, plan: LayerPlan, rows: int) -> Workspace:
    """Room for the fused kernel, the codes and the dense path."""
    weight, width = product.weights[0], product.compensators[0].code_width
    sizes = needed(weight, plan, rows, width), scratch_needed(width, rows)
    return Workspace(
        weight.words.device,
        partials=max(partials for partials, _ in sizes),
        counters=max(counters for _, counters in sizes),
        dense_bytes=2 * weight.out_features * (weight.in_features + width),
    )


def _peers(product: Product, peers: Peers | None, wanted: Collection[str]) -> Iterator[tuple[str, Multiply]]:
    if peers is None or product.weights[0].group_size not in (0, 128):
        return
    for name, make in (("marlin", peers.marlin), ("machete", peers.machete)):
        if name not in wanted:
            continue
        try:
            copies = [make(weight, product.dtype) for weight in product.weights]
        except RuntimeError as error:
            print(f"{name} refuses this product: {error}")
            continue
        yield name, lambda x, copy, copies=copies: copies[copy](x)  # type: ignore[misc]
