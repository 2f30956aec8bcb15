"""What compensators cost a whole layer: ``python -m kernels.compensator.bench --shapes 8b``.

Gate first, then time: each product of each path of :mod:`kernels.compensator.layer` against float32, then
graph replays over layers that rotate past the L2. Columns are microseconds a layer, medians; ``cost`` is what
the served path takes more than the plain one. ``--gate`` checks and times nothing. An interrupt ends the run
early with what it has. The last line is JSON.
"""

import argparse
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch

from kernels.compensator.layer import FEW_ROWS, MANY, MANY_ROWS, Layers
from kernels.tuning.outcome import Row, collect, last_line
from kernels.tuning.timing import time_calls
from kernels.w4a16.shapes import MODELS
from kernels.w4a16.table import CONFIGS, Plans

_DTYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16}
_COLUMNS = (*FEW_ROWS, "dense", "extended")


def measure(layers: Layers, rows: int, *, timed: bool) -> dict[str, Any]:
    """Gates and times each path at one row count; a path with a wrong product is named and not timed."""
    found: dict[str, Any] = {}
    for path in MANY_ROWS if rows >= MANY else FEW_ROWS:
        wrong = [
            f"{name} {error:.1e}" for name, error, bound in layers.errors(path, rows) if not error < bound
        ]
        if wrong:
            found[path] = f"wrong: relative error of {', '.join(wrong)}"
        elif timed:
            calls = [partial(layers.run, path, rows, copy) for copy in range(layers.copies)]
            found[path] = time_calls(calls).median_us
        else:
            found[path] = "right"
    return found


@torch.inference_mode()
def main() -> None:
    """Measures every model and row count; exits with 1 where a path is wrong."""
    options = _parser().parse_args()
    print(f"{'model':9}{'rows':>6}" + "".join(f"{name:>10}" for name in (*_COLUMNS, "cost")))
    rows, complete = collect(_measured(options), _shown)
    setup = {"group": options.group, "rank": options.rank, "dtype": options.dtype}
    print(last_line("kernels.compensator", rows, complete=complete, gated=options.gated, **setup))
    wrong = [row for row in rows if any(str(value).startswith("wrong") for value in row.values())]
    raise SystemExit(1 if wrong else 0)


def _measured(options: argparse.Namespace) -> Iterator[Row]:
    rows = [int(count) for count in options.rows.split(",")]
    multiprocessors = torch.cuda.get_device_properties(0).multi_processor_count
    plans = Plans(torch.cuda.get_device_name(), multiprocessors, options.configs)
    for name in options.shapes.split(","):
        layers = Layers(
            MODELS[name],
            group=options.group,
            rank=options.rank,
            gated=options.gated,
            dtype=_DTYPES[options.dtype],
            plans=plans,
            rows=max(rows),
            device=torch.device("cuda"),
            copies=1 if options.gate else None,
        )
        for count in rows:
            yield {"shape": name, "rows": count, **measure(layers, count, timed=not options.gate)}
        del layers
        torch.cuda.empty_cache()


def _shown(row: Row) -> str:
    return f"{row['shape']:9}{row['rows']:6}" + "".join(_cells(row))


def _cells(row: Row) -> Iterator[str]:
    for name in _COLUMNS:
        value = row.get(name, "-")
        yield f"{value:10.2f}" if isinstance(value, float) else f"{value.split(':')[0]:>10}"
    plain, served = row["plain"], row["served"]
    timed = isinstance(plain, float) and isinstance(served, float)
    yield f"{served / plain - 1:10.1%}" if timed else f"{'-':>10}"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="Times a layer with compensators by every path.")
    parser.add_argument("--shapes", default="8b", help=f"models, of {', '.join(MODELS)}")
    parser.add_argument("--rows", default="1,4,8,16,32,64,128,512,2048")
    parser.add_argument("--group", type=int, default=128, help="0 = per channel")
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--dtype", default="bfloat16", choices=_DTYPES)
    parser.add_argument("--configs", type=Path, default=CONFIGS, help="folder of the plans")
    parser.add_argument("--gated", action="store_true", help="compensators with gates")
    parser.add_argument("--gate", action="store_true", help="check every path and time nothing")
    return parser


if __name__ == "__main__":
    main()
