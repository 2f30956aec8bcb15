"""Rotary positions and the cache write beside their bound: ``python -m kernels.rope_and_cache.bench``.

Gate first, then time by graph replays over inputs that rotate past the L2. The bound counts each byte of the
heads read once and of queries, keys and values written once, at the measured copy bandwidth. The last line is
JSON.
"""

import argparse
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

import torch
from torch import Tensor

from kernels.rope_and_cache.kernel import launch
from kernels.rope_and_cache.reference import rope_and_cache as reference
from kernels.tuning.outcome import Row, collect, last_line
from kernels.tuning.timing import copy_bytes_s, rotation, time_calls

SHAPES = {"8b": (32, 8, 128), "70b": (64, 8, 128)}
ROWS = (1, 4, 16, 64, 512, 2048)
CONTEXT, EPS = 8192, 1e-6
BOUND = 3e-3  # float16, with norms three roundings


Apply = Callable[..., None]


def check(kernel: Apply, law: Apply, qkv: Tensor, cache: Tensor) -> None:
    """Refuses to time a result that is wrong."""
    pairs = [(qkv.clone(), cache.clone()) for _ in range(2)]
    kernel(*pairs[0])
    law(*pairs[1])
    for got, expected in zip(*pairs, strict=True):
        if not (got.float() - expected.float()).norm() < BOUND * expected.float().norm():
            raise SystemExit(f"wrong result for {tuple(qkv.shape)}")


def main() -> None:
    """Measures every shape and row count, with head norms."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, nargs="*", default=ROWS)
    row_counts, bandwidth = parser.parse_args().rows, copy_bytes_s()
    print(f"copies at {bandwidth / 1e12:.2f} TB/s\nmodel  rows       us  bound us")
    found, complete = collect(_measured(row_counts, bandwidth), _shown)
    print(last_line("kernels.rope_and_cache", found, complete=complete, copy_bytes_s=bandwidth))


def _measured(row_counts: Sequence[int], bandwidth: float) -> Iterator[Row]:
    cosines, sines = torch.randn(2, CONTEXT, 64, device="cuda")
    for rows in row_counts:
        for name, (heads, kv_heads, head_dim) in SHAPES.items():
            total = heads + 2 * kv_heads
            cache = torch.zeros(2 * rows, 2, kv_heads, head_dim, device="cuda", dtype=torch.float16)
            positions = torch.randint(0, CONTEXT, (rows,), device="cuda")
            slots = torch.randperm(2 * rows, device="cuda")[:rows]
            q_norm, k_norm = torch.randn(2, head_dim, device="cuda", dtype=torch.float16)
            fixed: dict[str, Any] = {
                "cosines": cosines,
                "sines": sines,
                "positions": positions,
                "slots": slots,
                "query_heads": heads,
                "q_norm": q_norm,
                "k_norm": k_norm,
                "eps": EPS,
            }
            run = partial(launch, **fixed)
            size = rows * total * head_dim * 2
            inputs = [
                torch.randn(rows, total, head_dim, device="cuda", dtype=torch.float16)
                for _ in range(rotation(2 * size))
            ]
            check(run, partial(reference, **fixed), inputs[0], cache)
            timing = time_calls([partial(run, qkv, cache) for qkv in inputs])
            bound_us = 2 * size / bandwidth * 1e6
            yield {"model": name, "rows": rows, **asdict(timing), "bound_us": bound_us}


def _shown(row: Row) -> str:
    return f"{row['model']:5}{row['rows']:6}{row['median_us']:9.1f}{row['bound_us']:10.1f}"


if __name__ == "__main__":
    main()
