"""Scratch memory of the GPU kernels: allocated once, so that graphs may be captured over it."""

from collections.abc import Iterable

import torch
from torch import Tensor

from kernels.compensator.layout import MAX_SLICES, scratch_needed
from kernels.w4a16.layout import TILE_OUTPUTS, GpuWeight
from kernels.w4a16.plan import OWN_CODE_ROWS, LayerPlan, launch_rows


class Workspace:
    """Partial sums, arrival counters and the dense copy of a weight; of one stream at a time.

    Two launches that may run at once need two of these.

    Args:
        device: Where the kernels run.
        partials: float32 partial sums of the largest launch.
        counters: Tiles of the largest launch.
        dense_bytes: Largest dequantised weight; 0 = the dense path is not used.
    """

    def __init__(self, device: torch.device, *, partials: int, counters: int, dense_bytes: int = 0) -> None:
        self.device = device
        self._partials = torch.empty(partials, dtype=torch.float32, device=device)
        self._counters = torch.zeros(counters, dtype=torch.int32, device=device)
        self._dense = torch.empty(dense_bytes, dtype=torch.uint8, device=device)

    @classmethod
    def for_layers(
        cls, layers: Iterable[tuple[GpuWeight, LayerPlan]], *, rows: int, code_width: int = 0
    ) -> "Workspace":
        """The smallest workspace for these layers.

        Args:
            layers: At least one weight with its plan.
            rows: Largest row count.
            code_width: Largest S R of a compensator.
        """
        layers = list(layers)
        sizes = [needed(weight, plan, rows, code_width) for weight, plan in layers]
        if code_width:
            sizes.append(scratch_needed(code_width, rows))
        dense = [
            2 * weight.out_features * (weight.in_features + code_width)
            for weight, plan in layers
            if plan.dense_from is not None and plan.dense_from <= rows
        ]
        return cls(
            layers[0][0].words.device,
            partials=max(partials for partials, _ in sizes),
            counters=max(counters for _, counters in sizes),
            dense_bytes=max(dense, default=0),
        )

    def partials(self, count: int) -> Tensor:
        """Room for ``count`` float32 partial sums; what it holds is undefined.

        Raises:
            ValueError: The workspace is too small.
        """
        return self._slice(self._partials, count, "partial sums")

    def counters(self, count: int) -> Tensor:
        """``count`` int32 zeros, which a kernel leaves as zeros.

        Raises:
            ValueError: The workspace is too small.
        """
        return self._slice(self._counters, count, "arrival counters")

    def dense(self, rows: int, columns: int, dtype: torch.dtype) -> Tensor:
        """Room for a ``(rows, columns)`` matrix; what it holds is undefined.

        Raises:
            ValueError: The workspace is too small.
        """
        room = self._slice(self._dense, rows * columns * dtype.itemsize, "bytes of a dense weight")
        return room.view(dtype).view(rows, columns)

    def check_integrity(self) -> None:
        """Fails where a kernel was cut off; its counters would spoil the next product.

        Raises:
            RuntimeError: A counter is not zero.
        """
        left = int(self._counters.count_nonzero())
        if left:
            raise RuntimeError(
                f"{left} arrival counters are not zero: a kernel was cut off; make a new workspace"
            )

    def _slice(self, memory: Tensor, count: int, what: str) -> Tensor:
        if count > len(memory):
            raise ValueError(
                f"the workspace has room for {len(memory)} {what}, not {count}; make a larger one"
            )
        return memory[:count]


def needed(weight: GpuWeight, plan: LayerPlan, rows: int, code_width: int = 0) -> tuple[int, int]:
    """Partial sums and counters that a product with up to ``rows`` rows and so many codes a row takes."""
    counts = [max((tile.rows for tile in plan.few), default=0)]
    for limit, tile in (*plan.tiles, (rows, plan.tiles[-1][1])):
        once = launch_rows(min(rows, limit), plan.parts, weight.padded_outputs, tile)
        counts.append(-(-once // tile.rows) * tile.rows)
    widest, tiles = max(counts), weight.padded_outputs // TILE_OUTPUTS
    partials = plan.parts * weight.padded_outputs * widest if plan.parts > 1 else 0
    counters = tiles * max(widest // 16, 1)
    return partials + MAX_SLICES * min(rows, OWN_CODE_ROWS) * code_width, counters
