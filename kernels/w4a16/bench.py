"""Every path of the W4 product beside its baselines: ``python -m kernels.w4a16.bench --shapes 8b``.

Gate first, then time: each path's result against float32, then graph replays over weights that rotate past
the L2. Columns are the medians of :mod:`kernels.w4a16.paths`, microseconds, and

========  ================================================================================================
bound     bytes of codes, scales, x and y at the measured copy bandwidth; arithmetic, if that takes longer
front     what the kernel in front takes more because it computes codes
========  ================================================================================================

With its compensators a product costs ``inside``, or where there is none ``fused + front``. ``--gate`` checks
and times nothing, which also fills Triton's cache. An interrupt ends the run early with what it has. The last
line is JSON; it also has p10 and p90.
"""

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from kernels.tuning.outcome import Row, collect, last_line
from kernels.tuning.products import draw
from kernels.tuning.timing import Timing, copy_bytes_s
from kernels.w4a16.layout import GpuWeight
from kernels.w4a16.paths import COLUMNS, OURS, Paths
from kernels.w4a16.peers import Peers
from kernels.w4a16.shapes import MODELS, shapes_of
from kernels.w4a16.table import CONFIGS, Plans

ARITHMETIC = 800e12
"""Dense 16-bit operations a second that an H200 reaches on large products."""
_CELLS = ("bound", *COLUMNS, "front")
_DTYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16}


def bound_us(weight: GpuWeight, rows: int, bytes_s: float) -> float:
    """The least time of a plain product: bytes or arithmetic, whichever is longer."""
    moved = weight.nbytes + 2 * rows * (weight.in_features + weight.out_features)
    return 1e6 * max(moved / bytes_s, 2 * rows * weight.in_features * weight.out_features / ARITHMETIC)


def measure(paths: Paths, x: torch.Tensor, *, timed: bool) -> dict[str, Timing | str]:
    """Gates and times each path; a path that fails the gate is named and not timed."""
    results: dict[str, Timing | str] = {}
    for name, (path, codes) in paths.of(x).items():
        error = paths.error(path, x, codes)
        if not error < paths.bound(name):
            results[name] = f"wrong: relative error {error:.1e}"
        else:
            results[name] = paths.time(path, x) if timed else "right"
    return results


@torch.inference_mode()
def main() -> None:
    """Measures every shape and row count; exits with 1 where a path of ours is wrong."""
    options = _parser().parse_args()
    bytes_s = copy_bytes_s()
    print(f"copies at {bytes_s / 1e12:.2f} TB/s")
    print(_line("shape", "rows", _CELLS))
    rows, complete = collect(_measured(options, bytes_s), _shown)
    setup = {"group": options.group, "rank": options.rank, "gated": options.gated, "dtype": options.dtype}
    print(last_line("kernels.w4a16", rows, complete=complete, copy_bytes_s=bytes_s, **setup))
    wrong = [row for row in rows if any(str(row.get(name)).startswith("wrong") for name in OURS)]
    raise SystemExit(1 if wrong else 0)


def _measured(options: argparse.Namespace, bytes_s: float) -> Iterator[Row]:
    dtype, rows = _DTYPES[options.dtype], [int(count) for count in options.rows.split(",")]
    multiprocessors = torch.cuda.get_device_properties(0).multi_processor_count
    plans = Plans(torch.cuda.get_device_name(), multiprocessors, options.configs)
    peers = None if options.peers is None else Peers(options.peers)
    wanted = options.paths.split(",")
    for model, shape in shapes_of(options.shapes):
        if shape.name not in options.layers.split(","):
            continue
        copies = 2 if options.gate else None
        product = draw(shape, options.group, options.rank, dtype, copies=copies, gated=options.gated)
        weight = product.weights[0]
        paths = Paths(product, shape, plans.of(weight), peers, rows=max(rows), wanted=wanted)
        for count in rows:
            timings = measure(paths, product.inputs(count), timed=not options.gate)
            row: Row = {"shape": f"{model} {shape.name}", "rows": count}
            row["bound"] = bound_us(weight, count, bytes_s)
            row |= {
                name: value if isinstance(value, str) else asdict(value) for name, value in timings.items()
            }
            if not options.gate:
                row["front"] = paths.front_us(count)
            yield row
        del product, paths, weight
        torch.cuda.empty_cache()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="Times the W4 product by every path.")
    parser.add_argument("--shapes", default="8b", help=f"models, of {', '.join(MODELS)}")
    parser.add_argument("--layers", default="qkv,o,gate_up,down")
    parser.add_argument("--rows", default="1,4,8,16,32,64")
    parser.add_argument("--paths", default=",".join(COLUMNS), help="only these columns")
    parser.add_argument("--group", type=int, default=128, help="0 = per channel")
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--dtype", default="bfloat16", choices=_DTYPES)
    parser.add_argument("--configs", type=Path, default=CONFIGS, help="folder of the plans")
    parser.add_argument("--peers", type=Path, help="folder with vllm_c.so and scalar_type.py")
    parser.add_argument("--gated", action="store_true", help="compensators with gates")
    parser.add_argument("--gate", action="store_true", help="check every path and time nothing")
    return parser


def _shown(row: Row) -> str:
    return _line(row["shape"], row["rows"], [_cell(row.get(name)) for name in _CELLS])


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, str):
        return value.split(":")[0]
    return f"{value if isinstance(value, float) else value['median_us']:.2f}"


def _line(shape: str, rows: object, cells: Sequence[str]) -> str:
    return f"{shape:17}{rows!s:>5}" + "".join(f"{cell:>9}" for cell in cells)


if __name__ == "__main__":
    main()
