"""Packed against plain weights: ``python -m kernels.linear.bench``.

Gate first, then time: 60 weights in turn, so that none is in a cache; medians of 60 calls beside the time
that reading the weights takes at the measured bandwidth. Prints a table, then one JSON line.
"""

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from kernels.linear.onednn import linear, pack, packs
from kernels.linear.reference import linear as reference

SHAPES = {"qkv": (960, 576), "o": (576, 576), "gate_up": (3072, 576), "down": (576, 1536)}  # SmolLM2-135M
ROWS = (1, 2, 4, 8, 16, 64)
WEIGHTS, CALLS, WARM_UP = 60, 60, 60
BOUND = 2e-2  # one rounding to bfloat16 of each result


def median_us(call: Callable[[int], object]) -> float:
    """Median time of ``call(i)`` over ``CALLS`` calls, microseconds."""
    times = []
    for index in range(WARM_UP + CALLS):
        started = time.perf_counter_ns()
        call(index % WEIGHTS)
        if index >= WARM_UP:
            times.append(time.perf_counter_ns() - started)
    return statistics.median(times) / 1e3


def check(x: Tensor, weight: Tensor, packed: Tensor) -> None:
    """Refuses to time a result that is wrong."""
    expected = reference(x, weight)
    for used in (weight, packed):
        error = (linear(x, used).float() - expected).norm() / expected.norm()
        if not error < BOUND:
            raise SystemExit(f"wrong result: relative error {error:.2e} exceeds {BOUND}")


def read_gb_s() -> float:
    """Bandwidth of a plain read of 512 MiB."""
    data = torch.ones(1 << 27)
    return data.numel() * data.itemsize / median_us(lambda _: data.sum()) / 1e3


def _call(x: Tensor, weights: list[Tensor], index: int) -> Tensor:
    return linear(x, weights[index])


@torch.inference_mode()
def main() -> None:
    """Measures every shape, row count and type."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    torch.set_num_threads(parser.parse_args().threads)
    bandwidth, results = read_gb_s(), []
    print(f"reads at {bandwidth:.1f} GB/s\ntype     layer    rows  plain us packed us bound us")
    for dtype in (torch.bfloat16, torch.float32):
        if not packs(dtype):
            raise SystemExit(f"{dtype} cannot be packed on this machine")
        for name, (n, k) in SHAPES.items():
            weights = [torch.randn(n, k).to(dtype) for _ in range(WEIGHTS)]
            packed = [pack(weight) for weight in weights]
            for rows in ROWS:
                x = torch.randn(rows, k).to(dtype)
                check(x, weights[0], packed[0])
                plain_us, packed_us = (median_us(partial(_call, x, used)) for used in (weights, packed))
                bound_us = n * k * dtype.itemsize / bandwidth / 1e3
                results.append([str(dtype), name, rows, plain_us, packed_us, bound_us])
                print(f"{dtype!s:15.15} {name:8}{rows:5}{plain_us:10.0f}{packed_us:10.0f}{bound_us:9.0f}")
    columns = ["dtype", "layer", "rows", "plain_us", "packed_us", "bound_us"]
    machine = {"machine": platform.machine(), "threads": torch.get_num_threads(), "torch": torch.__version__}
    print(json.dumps({"benchmark": "kernels.linear", **machine, "columns": columns, "rows": results}))


if __name__ == "__main__":
    main()
