"""Attention beside its bound: ``python -m kernels.paged_attention.bench``.

Gate first, against the law in float32 on a short context and against itself (one program and many give
equal bits), then time by graph replays over caches that rotate past the L2. The bound counts keys and values
once at the measured copy bandwidth. The last line is JSON.
"""

import argparse
import json
from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from kernels.paged_attention.batch import AttentionConfig, PagedBatch, default_config
from kernels.paged_attention.launch import launch
from kernels.paged_attention.reference import paged_attention as reference
from kernels.tuning.timing import copy_bytes_s, facts, rotation, time_calls

SHAPES = {"8b": (32, 8, 128), "70b/2": (32, 4, 128)}
CASES = ((1, 1024, 5), (1, 8192, 5), (8, 8192, 1), (8, 8192, 5), (8, 8192, 17), (64, 2048, 5), (1, 8192, 512))
"""Sequences, tokens of each, rows of each."""
PAGE_SIZE = 16
BOUND = 2e-3  # float16 weights and result


_CUDA = torch.device("cuda")


def inputs(
    sequences: int,
    length: int,
    rows: int,
    shape: tuple[int, int, int],
    *,
    dtype: torch.dtype = torch.float16,
    device: torch.device = _CUDA,
) -> tuple[Tensor, Tensor, PagedBatch]:
    """Random queries, cache and pages.

    Args:
        sequences: B.
        length: Tokens of each, the new ones included.
        rows: New tokens of each.
        shape: Query heads, key heads, size of a head.
        dtype: Of queries and cache.
        device: Where.
    """
    heads, kv_heads, head_dim = shape
    pages = -(-length // PAGE_SIZE)
    table = torch.randperm(sequences * pages, device=device, dtype=torch.int32).view(sequences, pages)
    positions = torch.arange(length - rows, length, device=device).repeat(sequences)
    batch = PagedBatch(
        page_table=table,
        row_starts=torch.arange(sequences + 1, device=device, dtype=torch.int32) * rows,
        lengths=torch.full((sequences,), length, device=device, dtype=torch.int32),
        positions=positions,
        page_size=PAGE_SIZE,
        max_rows=rows,
        max_length=length,
    )
    slots = sequences * pages * PAGE_SIZE
    cache = torch.randn(slots, 2, kv_heads, head_dim, device=device, dtype=dtype)
    query = torch.randn(sequences * rows, heads, head_dim, device=device, dtype=dtype)
    return query, cache, batch


def check(shape: tuple[int, int, int], config: AttentionConfig) -> None:
    """Refuses to time a result that is wrong."""
    query, cache, batch = inputs(2, 700, 9, shape)
    scale = float(shape[2]) ** -0.5
    whole, many = (launch(query, cache, batch, scale, config=config, whole=one).y for one in (True, False))
    expected = reference(query, cache, batch, scale)
    error = float((many.float() - expected).norm() / expected.norm())
    if not error < BOUND or not torch.equal(whole, many):
        raise SystemExit(f"wrong result: error {error:.1e}, equal bits: {torch.equal(whole, many)}, {config}")


def main() -> None:
    """Measures every shape and case under each configuration."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pieces", type=int, nargs="*", default=[256, 512], help="tokens of a context piece")
    parser.add_argument("--stages", type=int, nargs="*", default=[3])
    options = parser.parse_args()
    bandwidth, results = copy_bytes_s(), []
    print(f"copies at {bandwidth / 1e12:.2f} TB/s")
    print("model  sequences x tokens x rows  piece stages       us  roof")
    for name, shape in SHAPES.items():
        base = default_config(shape[0] // shape[1])
        for config in _configs(base, options.pieces, options.stages):
            check(shape, config)
            for sequences, length, rows in CASES:
                size = sequences * length * 2 * shape[1] * shape[2] * 2
                cases = [inputs(sequences, length, rows, shape) for _ in range(rotation(size))]
                run = partial(launch, scale=shape[2] ** -0.5, config=config)
                timing = time_calls([partial(run, *case) for case in cases])
                bound_us = size / bandwidth * 1e6
                cut = (config.piece_tokens, config.num_stages)
                results.append(
                    [name, sequences, length, rows, *cut, timing.median_us, timing.p90_us, bound_us]
                )
                print(
                    f"{name:6}{sequences:5} x {length:5} x {rows:4}{cut[0]:14}{cut[1]:7}"
                    f"{timing.median_us:9.1f}{bound_us / timing.median_us:9.0%}"
                )
    headings = ["model", "sequences", "tokens", "rows", "piece", "stages", "median_us", "p90_us", "bound_us"]
    print(
        json.dumps({"benchmark": "kernels.paged_attention", **facts(), "columns": headings, "rows": results})
    )


def _configs(base: AttentionConfig, pieces: Sequence[int], stages: Sequence[int]) -> list[AttentionConfig]:
    return [
        AttentionConfig(
            tile_rows=base.tile_rows,
            piece_tokens=piece,
            block_keys=base.block_keys,
            num_warps=base.num_warps,
            num_stages=count,
        )
        for piece in pieces
        for count in stages
    ]


if __name__ == "__main__":
    main()
