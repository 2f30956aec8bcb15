"""Attention beside its bound: ``python -m kernels.paged_attention.bench``.

Gate first, against the law in float32 on a short context and against itself (one program and many give
equal bits), then time by graph replays over caches that rotate past the L2. The bound counts keys and values
once at the measured copy bandwidth. For verification steps two more columns say what codes of the output's
compensator cost: computed where pieces are merged, and by a launch of their own, as served. ``--gate`` checks
and times nothing. The last line is JSON.
"""

import argparse
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import torch
from torch import Tensor

from kernels.compensator import GpuCompensator
from kernels.compensator.gpu import gated_codes
from kernels.paged_attention.batch import AttentionConfig, PagedBatch, default_config
from kernels.paged_attention.launch import launch
from kernels.paged_attention.reference import paged_attention as reference
from kernels.producer import code_workspace
from kernels.producer.reference import gated_codes as codes_law
from kernels.tuning.outcome import Row, collect, last_line
from kernels.tuning.products import draw_compensator
from kernels.tuning.timing import copy_bytes_s, rotation, time_calls
from kernels.w4a16.workspace import Workspace

SHAPES = {"8b": (32, 8, 128), "70b/2": (32, 4, 128)}
CASES = ((1, 1024, 5), (1, 8192, 5), (8, 8192, 1), (8, 8192, 5), (8, 8192, 17), (64, 2048, 5), (1, 8192, 512))
"""Sequences, tokens of each, rows of each."""
PAGE_SIZE = 16
VERIFIED_ROWS = 17
"""A token and the most drafts."""
BOUND = 2e-3  # float16 weights and result


Coded = Callable[[Tensor, Tensor, PagedBatch], Tensor]
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
    compensator, merged, apart = _with_codes(shape, len(query), config)
    law = codes_law(expected.to(query.dtype), compensator)
    for codes in (merged(query, cache, batch), apart(query, cache, batch)):
        error = float((codes.sum(0) - law).norm() / law.norm())
        if not error < BOUND:
            raise SystemExit(f"wrong codes: error {error:.1e}, {config}")


def main() -> None:
    """Measures every shape and case under each configuration."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pieces", type=int, nargs="*", default=[256, 512], help="tokens of a context piece")
    parser.add_argument("--stages", type=int, nargs="*", default=[3])
    parser.add_argument("--gate", action="store_true", help="check and time nothing")
    options = parser.parse_args()
    bandwidth = copy_bytes_s()
    print(f"copies at {bandwidth / 1e12:.2f} TB/s")
    print("model  sequences x tokens x rows  piece stages       us  roof  codes: merged  apart")
    rows, complete = collect(_measured(options, bandwidth), _shown)
    print(last_line("kernels.paged_attention", rows, complete=complete, copy_bytes_s=bandwidth))


def _measured(options: argparse.Namespace, bandwidth: float) -> Iterator[Row]:
    for name, shape in SHAPES.items():
        base = default_config(shape[0] // shape[1])
        for config in _configs(base, options.pieces, options.stages):
            check(shape, config)
            for sequences, length, rows in CASES:
                case = {"model": name, "sequences": sequences, "tokens": length, "rows": rows}
                cut = {"piece": config.piece_tokens, "stages": config.num_stages}
                if not options.gate:
                    yield {**case, **cut, **_times(shape, config, case, bandwidth)}
                else:
                    launch(*inputs(sequences, length, rows, shape), shape[2] ** -0.5, config=config)


def _times(
    shape: tuple[int, int, int], config: AttentionConfig, case: Row, bandwidth: float
) -> dict[str, float]:
    sequences, length, rows = case["sequences"], case["tokens"], case["rows"]
    size = sequences * length * 2 * shape[1] * shape[2] * 2
    cases = [inputs(sequences, length, rows, shape) for _ in range(rotation(size))]
    run = partial(launch, scale=shape[2] ** -0.5, config=config)
    plain = time_calls([partial(run, *case) for case in cases])
    found = {"median_us": plain.median_us, "p10_us": plain.p10_us, "p90_us": plain.p90_us}
    found["bound_us"] = size / bandwidth * 1e6
    if rows <= VERIFIED_ROWS:
        _, merged, apart = _with_codes(shape, sequences * rows, config)
        found["merged_codes_us"] = time_calls([partial(merged, *case) for case in cases]).median_us
        found["apart_codes_us"] = time_calls([partial(apart, *case) for case in cases]).median_us
    return found


def _with_codes(
    shape: tuple[int, int, int], rows: int, config: AttentionConfig
) -> tuple[GpuCompensator, Coded, Coded]:
    """Attention with codes of its result: where pieces are merged, and by a launch of its own."""
    columns = shape[0] * shape[2]
    compensator = draw_compensator((columns,), columns, 16, torch.float16, _CUDA)
    merging = code_workspace(rows, columns, compensator.code_width, _CUDA)
    row_tiles = -(-rows // 16)
    scratch = Workspace(_CUDA, partials=16 * 32 * row_tiles * 16, counters=row_tiles)
    scale = shape[2] ** -0.5

    def merged(query: Tensor, cache: Tensor, batch: PagedBatch) -> Tensor:
        codes = launch(query, cache, batch, scale, None, compensator, merging, config=config).codes
        assert codes is not None, "a compensator was given"
        return codes

    def apart(query: Tensor, cache: Tensor, batch: PagedBatch) -> Tensor:
        return gated_codes(launch(query, cache, batch, scale, config=config).y, compensator, scratch)

    return compensator, merged, apart


def _shown(row: Row) -> str:
    size = f"{row['model']:6}{row['sequences']:5} x {row['tokens']:5} x {row['rows']:4}"
    codes = "".join(f"{row[name]:9.1f}" for name in ("merged_codes_us", "apart_codes_us") if name in row)
    share = row["bound_us"] / row["median_us"]
    return f"{size}{row['piece']:14}{row['stages']:7}{row['median_us']:9.1f}{share:9.0%}{codes}"


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
