"""Writes the plans of a GPU: ``python -m kernels.tuning --shapes 8b,13b --groups 128,0``.

Takes about a minute a layer, most of it compilation. Layers that the file has already are kept, so a run
that was cut off goes on where it stopped.
"""

import argparse
import json
import time
from pathlib import Path

import torch

from kernels.compensator.layout import MAX_SLICES
from kernels.tuning.products import draw
from kernels.tuning.search import DENSE_ROWS, Search
from kernels.tuning.timing import facts
from kernels.w4a16.plan import MAX_PARTS, OWN_CODE_ROWS, LayerPlan
from kernels.w4a16.shapes import MODELS, shapes_of
from kernels.w4a16.table import CONFIGS, layer_key, read_table, table_path, write_table
from kernels.w4a16.workspace import Workspace

_DTYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16}


def main() -> None:
    """Tunes every layer that the file lacks; exits with 1 where a candidate gave a wrong result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shapes", default="8b", help=f"models, of {', '.join(MODELS)}")
    parser.add_argument("--layers", default="qkv,o,gate_up,down")
    parser.add_argument("--groups", default="128", help="group sizes; 0 = per channel")
    parser.add_argument("--dtype", default="bfloat16", choices=_DTYPES)
    parser.add_argument("--directory", type=Path, default=CONFIGS)
    parser.add_argument("--threads", type=int, default=8, help="compilations at a time")
    parser.add_argument("--again", action="store_true", help="measure layers anew that the file has")
    parser.add_argument(
        "--with-codes",
        action="store_true",
        help="of layers that the file has, measure only tiles of row counts whose products compute codes",
    )
    options = parser.parse_args()
    measured = facts()
    path = table_path(measured["gpu"], options.directory)
    plans = read_table(path) if path.is_file() else {}
    failures: list[str] = []
    seen: set[str] = set()
    for group in map(int, options.groups.split(",")):
        for model, shape in shapes_of(options.shapes):
            key = layer_key(shape.out_features, shape.in_features, group)
            if shape.name not in options.layers.split(","):
                continue
            known = plans.get(key)
            if key in seen or (known is not None and not (options.again or options.with_codes)):
                continue
            seen.add(key)
            print(f"{model} {shape.name} {key}", flush=True)
            started = time.monotonic()
            product = draw(shape, group, 16, _DTYPES[options.dtype])
            weight = product.weights[0]
            workspace = Workspace(
                torch.device("cuda"),
                partials=MAX_PARTS * weight.padded_outputs * 256
                + MAX_SLICES * OWN_CODE_ROWS * product.compensators[0].code_width,
                counters=weight.padded_outputs // 64 * max(DENSE_ROWS) // 16,
                dense_bytes=2 * shape.out_features * shape.in_features,
            )
            search = Search(product, shape, workspace, threads=options.threads, report=_report)
            if known is not None and options.with_codes:
                plans[key] = search.with_codes(known)
            else:
                plans[key] = search.plan()
            failures += search.failures
            workspace.check_integrity()
            write_table(path, measured["gpu"], measured, plans)
            print(f"  {_words(plans[key])} ({time.monotonic() - started:.0f} s)", flush=True)
            del product, workspace, search
            torch.cuda.empty_cache()
    print(json.dumps({"benchmark": "kernels.tuning", **measured, "file": path.name, "tuned": sorted(seen),
                      "failures": failures}))  # fmt: skip
    raise SystemExit(1 if failures else 0)


def _report(line: str) -> None:
    print(f"  {line}", flush=True)


def _words(plan: LayerPlan) -> str:
    cut = ", ".join(
        f"{limit}: {tile.outputs}w{tile.warps}s{tile.stages}/{tile.split}" for limit, tile in plan.tiles
    )
    few = ", ".join(f"{tile.rows}: {tile.outputs}s{tile.stages}{'e' * tile.early}" for tile in plan.few)
    return f"parts {plan.parts}, few {few or '-'}, {cut}, dense from {plan.dense_from}"


if __name__ == "__main__":
    main()
