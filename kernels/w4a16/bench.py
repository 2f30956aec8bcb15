"""Every path of the W4 product beside its baselines: ``python -m kernels.w4a16.bench --shapes 8b``.

Gate first, then time: each path's result against float32, then graph replays over weights that rotate past
the L2. Columns, microseconds, medians:

========  ================================================================================================
bound     bytes of codes, scales, x and y at the measured copy bandwidth; arithmetic, if that takes longer
plain     the fused kernel without a compensator
fused     with codes that a kernel in front has computed
codes     the kernel that computes codes where nothing in front does, and the fused kernel
single    all of it in one launch
naive     the plain kernel and separate operators
dense     dequantise, then the dense library over [x; zg]
fp16      the dense library on weights that were never quantised, no compensator
marlin    vLLM's kernels on the same codes, no compensator (``--peers``)
machete
========  ================================================================================================

The last line is JSON; it also has p10 and p90.
"""

import argparse
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels.compensator import gpu as compensator_gpu
from kernels.compensator import naive
from kernels.tuning.products import BOUNDS, Product, dequantized, draw, relative_error
from kernels.tuning.timing import Timing, copy_bytes_s, facts, time_calls
from kernels.w4a16 import dense, gpu, single_launch
from kernels.w4a16.layout import GpuWeight
from kernels.w4a16.peers import Peers
from kernels.w4a16.plan import LayerPlan
from kernels.w4a16.shapes import MODELS, shapes_of
from kernels.w4a16.table import CONFIGS, Plans
from kernels.w4a16.workspace import Workspace

ARITHMETIC = 800e12
"""Dense 16-bit operations a second that an H200 reaches on large products."""
COLUMNS = ("plain", "fused", "codes", "single", "naive", "dense", "fp16", "marlin", "machete")
_DTYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16}
PathOf = Callable[[Tensor, int], Tensor]


class Paths:
    """The ways to compute one product; each takes ``x`` and the number of a copy of the weight."""

    def __init__(self, product: Product, plan: LayerPlan, peers: Peers | None, rows: int) -> None:
        self._product, self._plan = product, plan
        weight, width = product.weights[0], product.compensators[0].code_width
        self._workspace = Workspace.for_layers([(weight, plan)], rows=rows, code_width=width)
        room = plan.split * weight.padded_outputs * 128 + 32 * width * 128
        self._single = Workspace(weight.words.device, partials=room, counters=2 + weight.padded_outputs // 64)
        self._dense = Workspace(
            weight.words.device,
            partials=0,
            counters=0,
            dense_bytes=2 * weight.out_features * (weight.in_features + width),
        )
        copies = max(2, min(len(product.weights), len(product.weights) // 3))
        self._unpacked = [product.dense] + [torch.randn_like(product.dense) for _ in range(copies - 1)]
        self._peers: dict[str, list[Callable[[Tensor], Tensor]]] = {}
        if peers is not None and weight.group_size in (0, 128):
            for name, make in (("marlin", peers.marlin), ("machete", peers.machete)):
                try:
                    self._peers[name] = [make(copy, product.dtype) for copy in product.weights]
                except RuntimeError as error:
                    print(f"{name} refuses this product: {error}")

    def of(self, x: Tensor) -> dict[str, tuple[PathOf, Tensor | None]]:
        """Each path that takes this many rows, with the codes that it is given."""
        codes = compensator_gpu.gated_codes(x, self._product.compensators[0], self._workspace)
        paths: dict[str, tuple[PathOf, Tensor | None]] = {
            "plain": (self._plain, None),
            "fused": (partial(self._fused, codes), codes),
            "codes": (self._codes, codes),
            "naive": (self._naive, codes),
            "dense": (partial(self._extended, codes), codes),
            "fp16": (lambda x, copy: F.linear(x, self._unpacked[copy % len(self._unpacked)]), None),
        }
        if len(x) <= self._plan.tile(len(x)).rows:
            paths["single"] = (self._one_launch, codes)
        for name, copies in self._peers.items():
            paths[name] = (lambda x, copy, copies=copies: copies[copy](x), None)  # type: ignore[misc]
        return paths

    def expected(self, x: Tensor, codes: Tensor | None) -> Tensor:
        """float32 result on the first copy of the weight."""
        y = x.float() @ dequantized(self._product.weights[0]).T
        if codes is not None:
            # Zero at first, so that what is added is the correction alone, in the compute type.
            added = torch.zeros_like(y, dtype=x.dtype)
            naive.add_correction(added, codes, self._product.compensators[0])
            y += added.float()
        return y

    def time(self, path: PathOf, x: Tensor) -> Timing:
        """Over all copies of the weight."""
        return time_calls([partial(path, x, copy) for copy in range(len(self._product.weights))])

    def _plain(self, x: Tensor, copy: int) -> Tensor:
        return gpu.multiply(x, self._product.weights[copy], self._plan, self._workspace)

    def _fused(self, codes: Tensor, x: Tensor, copy: int) -> Tensor:
        weight, compensator = self._product.weights[copy], self._product.compensators[copy]
        return gpu.multiply(x, weight, self._plan, self._workspace, compensator=compensator, codes=codes)

    def _codes(self, x: Tensor, copy: int) -> Tensor:
        codes = compensator_gpu.gated_codes(x, self._product.compensators[copy], self._workspace)
        return self._fused(codes, x, copy)

    def _one_launch(self, x: Tensor, copy: int) -> Tensor:
        weight, compensator = self._product.weights[copy], self._product.compensators[copy]
        return single_launch.multiply(x, weight, self._plan, self._single, compensator)

    def _naive(self, x: Tensor, copy: int) -> Tensor:
        y, compensator = self._plain(x, copy), self._product.compensators[copy]
        naive.add_correction(y, naive.gated_codes(x, compensator), compensator)
        return y

    def _extended(self, codes: Tensor, x: Tensor, copy: int) -> Tensor:
        weight, compensator = self._product.weights[copy], self._product.compensators[copy]
        return dense.multiply(x, weight, self._dense, compensator=compensator, codes=codes)


def bound_us(weight: GpuWeight, rows: int, bytes_s: float) -> float:
    """The least time of a plain product: bytes or arithmetic, whichever is longer."""
    moved = weight.nbytes + 2 * rows * (weight.in_features + weight.out_features)
    return 1e6 * max(moved / bytes_s, 2 * rows * weight.in_features * weight.out_features / ARITHMETIC)


def measure(paths: Paths, x: Tensor, dtype: torch.dtype) -> dict[str, Timing | str]:
    """Gates and times each path; a path that fails the gate is named and not timed."""
    results: dict[str, Timing | str] = {}
    for name, (path, codes) in paths.of(x).items():
        error = relative_error(path(x, 0), paths.expected(x, codes))
        # Naive insertion rounds three times.
        passed = error < BOUNDS[dtype] * (3 if name == "naive" else 2 if codes is not None else 1)
        results[name] = paths.time(path, x) if passed else f"wrong: relative error {error:.1e}"
    return results


@torch.inference_mode()
def main() -> None:
    """Measures every shape and row count; exits with 1 where a path of ours is wrong."""
    parser = argparse.ArgumentParser(description="Times the W4 product by every path.")
    parser.add_argument("--shapes", default="8b", help=f"models, of {', '.join(MODELS)}")
    parser.add_argument("--layers", default="qkv,o,gate_up,down")
    parser.add_argument("--rows", default="1,4,8,16,32,64")
    parser.add_argument("--group", type=int, default=128, help="0 = per channel")
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--dtype", default="bfloat16", choices=_DTYPES)
    parser.add_argument("--configs", type=Path, default=CONFIGS, help="folder of the plans")
    parser.add_argument("--peers", type=Path, help="folder with vllm_c.so and scalar_type.py")
    options = parser.parse_args()
    dtype, rows = _DTYPES[options.dtype], [int(count) for count in options.rows.split(",")]
    multiprocessors = torch.cuda.get_device_properties(0).multi_processor_count
    plans = Plans(torch.cuda.get_device_name(), multiprocessors, options.configs)
    peers = None if options.peers is None else Peers(options.peers)
    bytes_s, results = copy_bytes_s(), []
    print(f"copies at {bytes_s / 1e12:.2f} TB/s")
    print(_line("shape", "rows", "bound", COLUMNS))
    for model, shape in shapes_of(options.shapes):
        if shape.name not in options.layers.split(","):
            continue
        product = draw(shape, options.group, options.rank, dtype)
        weight = product.weights[0]
        paths = Paths(product, plans.of(weight), peers, max(rows))
        for count in rows:
            x = product.inputs(count)
            timings, bound = measure(paths, x, dtype), bound_us(weight, count, bytes_s)
            results.append(_entry(f"{model} {shape.name}", count, bound, timings))
            _print(results[-1])
        del product, paths
        torch.cuda.empty_cache()
    wrong = [row for row in results if any(isinstance(row.get(name), str) for name in COLUMNS[:7])]
    setup = {"group": options.group, "rank": options.rank, "dtype": options.dtype, "copy_bytes_s": bytes_s}
    print(json.dumps({"benchmark": "kernels.w4a16", **facts(), **setup, "rows": results}))
    raise SystemExit(1 if wrong else 0)


def _entry(shape: str, rows: int, bound: float, timings: dict[str, Timing | str]) -> dict[str, Any]:
    values = {name: value if isinstance(value, str) else asdict(value) for name, value in timings.items()}
    return {"shape": shape, "rows": rows, "bound_us": bound, **values}


def _print(row: dict[str, Any]) -> None:
    cells = [_cell(row.get(name)) for name in COLUMNS]
    print(_line(row["shape"], row["rows"], f"{row['bound_us']:.2f}", cells), flush=True)


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    return "wrong" if isinstance(value, str) else f"{value['median_us']:.2f}"


def _line(shape: str, rows: object, bound: str, cells: Sequence[str]) -> str:
    return f"{shape:17}{rows!s:>5}{bound:>9}" + "".join(f"{cell:>9}" for cell in cells)


if __name__ == "__main__":
    main()
