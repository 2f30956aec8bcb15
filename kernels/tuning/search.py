"""Finds the plan of one layer: gate first, then time. Needs a GPU."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from kernels.producer import gated_codes
from kernels.tuning.candidates import FEW_ROWS, ROW_LIMITS, few_tiles, parts_of, tiles
from kernels.tuning.fronts import FRONTS, Front
from kernels.tuning.products import BOUNDS, Product, relative_error
from kernels.tuning.timing import time_calls
from kernels.w4a16 import dense, gpu
from kernels.w4a16.plan import OWN_CODE_ROWS, LayerPlan, Tile
from kernels.w4a16.rooms import Rooms
from kernels.w4a16.shapes import Shape
from kernels.w4a16.workspace import Workspace

DENSE_ROWS = (128, 256, 512, 1024)
_CONTINUED = 2
"""Counts of parts that are tuned for more rows: those that are best with few."""
_ROUNDINGS = 2  # of the result and of the codes
_GAIN = 0.99  # a start under the kernel in front must win one percent, else it is noise


@dataclass(frozen=True, slots=True, kw_only=True)
class _Start:
    """Parts of K with the tile of the fewest rows and its score, the less the better."""

    parts: int
    score: float
    tile: Tile


class Search:
    """Measures one layer's candidates; remembers each tile's time.

    Args:
        product: The layer, drawn on the current GPU.
        shape: Of it.
        workspace: Large enough for every candidate.
        threads: Compilations at a time.
        report: Called with each line of the log.
    """

    def __init__(
        self,
        product: Product,
        shape: Shape,
        workspace: Workspace,
        *,
        threads: int,
        report: Callable[[str], None],
    ) -> None:
        self._product, self._workspace = product, workspace
        self._threads, self._report = threads, report
        self._rooms = Rooms(product.dense.device)
        # The attention's merge, in front of its output, is as small as a norm.
        self._front = Front(
            shape,
            code_width=product.compensators[0].code_width,
            rows=OWN_CODE_ROWS,
            dtype=product.dtype,
            device=product.dense.device,
            op="rms_norm" if FRONTS[shape.name] == "codes" else None,
        )
        self.failures: list[str] = []

    def plan(self) -> LayerPlan:
        """The fastest plan among the candidates: parts by all row counts of a decode step together.

        Raises:
            RuntimeError: No candidate passes the gate.
        """
        weight = self._product.weights[0]
        multiprocessors = torch.cuda.get_device_properties(0).multi_processor_count
        candidates = parts_of(weight.padded_outputs, weight.in_features, multiprocessors)
        started = sorted((self._few(parts) for parts in candidates), key=lambda start: start.score)
        found = [self._with(start) for start in started[:_CONTINUED]]
        _, plan = min(found, key=lambda entry: entry[0])
        most = ROW_LIMITS[-1]
        plan = replace(plan, tiles=(*plan.tiles, (most, self._fastest(plan.parts, most, most)[1])))
        return self.with_codes(replace(plan, dense_from=self._dense_from(plan)))

    def with_codes(self, plan: LayerPlan) -> LayerPlan:
        """The plan with the tiles by which products that compute codes are fastest; the bits are the same.

        Row counts of tiles for few rows rise, and none is left out: a tile of 16 rows stands only behind one
        of 8.
        """
        plan, weight = replace(plan, few=()), self._product.weights[0]
        few = weight.group_size % 128 == 0
        for place, (limit, tile) in enumerate(plan.tiles):
            if limit <= OWN_CODE_ROWS:
                best = self._fastest_with_codes(plan, limit, tile, rows=limit if few or limit > 16 else 1)
                plan = replace(plan, tiles=(*plan.tiles[:place], (limit, best), *plan.tiles[place + 1 :]))
        for rows in FEW_ROWS if few else ():
            tried = [replace(plan, few=(tile,)) for tile in few_tiles(rows, weight.padded_outputs)]
            found = self._with_codes_us([plan, *tried], rows)
            fastest = min(found, key=found.__getitem__, default=plan)
            if fastest == plan:
                break
            plan = replace(plan, few=(*plan.few, *fastest.few))
        return plan

    def _fastest_with_codes(self, plan: LayerPlan, limit: int, tile: Tile, *, rows: int) -> Tile:
        padded = self._product.weights[0].padded_outputs
        candidates = (tile, *tiles(limit, padded, plan.parts))
        tried = dict.fromkeys(replace(one, overlap=True) for one in candidates)
        found = self._with_codes_us([replace(plan, tiles=((limit, one),)) for one in tried], rows)
        if not found:
            return tile
        best = min(found, key=found.__getitem__)
        alone = replace(best, tiles=((limit, replace(best.tiles[0][1], overlap=False)),))
        found |= self._with_codes_us([best, alone], rows)
        return min(found, key=found.__getitem__).tiles[0][1]

    def _with_codes(self, x: Tensor, copy: int, plan: LayerPlan, room: Tensor | None) -> Tensor:
        """A product that computes the codes of its compensators."""
        weight, compensator = self._product.weights[copy], self._product.compensators[copy]
        return gpu.multiply(x, weight, plan, self._workspace, compensator=compensator, room=room)

    def _behind_front(self, rows: int, copy: int, plan: LayerPlan) -> Tensor:
        room = self._rooms.of_copy(copy, self._product.compensators, rows)
        return self._with_codes(self._front.run(rows, None).x, copy, plan, room)

    def _with_codes_us(self, plans: Sequence[LayerPlan], rows: int) -> dict[LayerPlan, float]:
        """Times of those plans that follow the law, repeat, and have the bits of the first one, with the
        kernel in front: a tile that is fastest behind itself may keep other kernels waiting."""
        one, x, times = self._product.inputs(1), self._product.inputs(rows), {}
        with ThreadPoolExecutor(self._threads) as pool:
            list(pool.map(lambda plan: self._with_codes(one, 1, plan, None), plans))
        torch.cuda.synchronize()
        codes = gated_codes(x, self._product.compensators[0])[None]
        expected = self._with_codes(x, 0, plans[0], None)
        error = relative_error(expected, self._product.expected(x, codes))
        copies = range(len(self._product.weights))
        for plan in plans:
            name = f"parts {plan.parts}, few {plan.few[-1:]}, {plan.tile(rows)}"
            same = [torch.equal(self._with_codes(x, 0, plan, None), expected) for _ in range(2)]
            if not (all(same) and error < _ROUNDINGS * BOUNDS[self._product.dtype]):
                self.failures.append(f"{name}: same bits {same} as {plans[0].tile(rows)}, error {error:.1e}")
                self._report(f"FAILED {self.failures[-1]}")
                continue
            calls = [partial(self._behind_front, rows, copy, plan) for copy in copies]
            times[plan] = time_calls(calls).median_us
            self._report(f"rows {rows:4} with codes, {name}: {times[plan]:8.2f} us")
        return times

    def _few(self, parts: int) -> "_Start":
        """The tile of the fewest rows, by a single row; the product of its times with one row and all."""
        single_us, tile = self._fastest(parts, ROW_LIMITS[0], 1)
        return _Start(parts=parts, score=single_us * self._time(tile, parts, ROW_LIMITS[0]), tile=tile)

    def _with(self, start: "_Start") -> tuple[float, LayerPlan]:
        """The product of the times of all row counts, and the plan."""
        score, chosen = start.score, [(ROW_LIMITS[0], start.tile)]
        for rows in ROW_LIMITS[1:-1]:
            time_us, tile = self._fastest(start.parts, rows, rows)
            score *= time_us
            chosen.append((rows, tile))
        return score, LayerPlan(parts=start.parts, tiles=tuple(chosen), dense_from=None)

    def _fastest(self, parts: int, tile_rows: int, rows: int) -> tuple[float, Tile]:
        weight = self._product.weights[0]
        candidates = tiles(tile_rows, weight.padded_outputs, parts)
        self._compile(candidates, parts)
        passed = [tile for tile in candidates if self._right(tile, parts, rows)]
        if not passed:
            raise RuntimeError(f"no tile of {tile_rows} rows passes the gate: {self.failures}")
        times = [(self._time(tile, parts, rows), tile) for tile in passed]
        time_us, best = min(times, key=lambda pair: pair[0])
        overlapping = replace(best, overlap=True)
        if self._right(overlapping, parts, rows):
            overlapped_us = self._time(overlapping, parts, rows)
            if overlapped_us < _GAIN * time_us:
                return overlapped_us, overlapping
        return time_us, best

    def _compile(self, candidates: list[Tile], parts: int) -> None:
        x = self._product.inputs(1)
        with ThreadPoolExecutor(self._threads) as pool:
            list(pool.map(lambda tile: self._run(x, 0, tile, parts), candidates))
        torch.cuda.synchronize()

    def _right(self, tile: Tile, parts: int, rows: int) -> bool:
        """Whether a tile's result follows the law and repeats bit for bit."""
        x, weight = self._product.inputs(rows), self._product.weights[0]
        first, second = (
            torch.full((rows, weight.out_features), torch.nan, dtype=x.dtype, device=x.device)
            for _ in range(2)
        )
        for y in (first, second):
            gpu.launch(x, weight, tile, parts, self._workspace, y, None, None)
        error = relative_error(first, x.float() @ self._product.dense.float().T)
        if error < BOUNDS[self._product.dtype] and torch.equal(first, second):
            return True
        self.failures.append(f"{tile} parts {parts}: error {error:.1e}, repeats {torch.equal(first, second)}")
        self._report(f"FAILED {self.failures[-1]}")
        return False

    def _time(self, tile: Tile, parts: int, rows: int) -> float:
        x = self._product.inputs(rows)
        copies = range(len(self._product.weights))
        time_us = time_calls([partial(self._run, x, copy, tile, parts) for copy in copies]).median_us
        self._report(
            f"rows {rows:4} parts {parts:2} split {tile.split:2} tile {tile.rows:3}x{tile.outputs:3} "
            f"warps {tile.warps} stages {tile.stages} registers {tile.registers:3} overlap {tile.overlap:d}: "
            f"{time_us:8.2f} us"
        )
        return time_us

    def _run(self, x: Tensor, copy: int, tile: Tile, parts: int) -> Tensor:
        weight = self._product.weights[copy]
        y = torch.empty(len(x), weight.out_features, dtype=x.dtype, device=x.device)
        gpu.launch(x, weight, tile, parts, self._workspace, y, None, None)
        return y

    def _dense_from(self, plan: LayerPlan) -> int | None:
        """The first row count from which on the dense path wins."""
        wins: dict[int, bool] = {}
        for rows in DENSE_ROWS:
            x, weights = self._product.inputs(rows), self._product.weights[:4]
            fused = [partial(gpu.multiply, x, weight, plan, self._workspace) for weight in weights]
            unpacked = [partial(dense.multiply, x, weight, self._workspace) for weight in weights]
            fused_us, dense_us = time_calls(fused).median_us, time_calls(unpacked).median_us
            self._report(f"rows {rows:4} fused {fused_us:8.2f} us, dense {dense_us:8.2f} us")
            wins[rows] = dense_us < fused_us
        lost = [rows for rows, won in wins.items() if not won]
        following = [rows for rows in DENSE_ROWS if not lost or rows > lost[-1]]
        return following[0] if following else None
