"""Gated activation with codes beside its bound: ``python -m kernels.silu_mul.bench``.

Gate first, then time by graph replays over inputs that rotate past the L2. The bound counts each byte of
gate, up, result and A once, at the measured copy bandwidth. The last line is JSON.
"""

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from functools import partial

import torch

from kernels.compensator.layout import Factors, pack_compensators
from kernels.producer import code_workspace
from kernels.silu_mul.kernel import launch
from kernels.silu_mul.reference import silu_mul as reference
from kernels.tuning.outcome import Row, collect, last_line
from kernels.tuning.timing import ROTATED_BYTES, copy_bytes_s, time_calls

WIDTHS = {"8b": 14336, "70b": 28672}
ROWS = (1, 4, 16, 64, 512, 2048)
RANK = 16
MOST_COPIES = 1024  # of inputs and A in one rotation
BOUND = 2e-3  # float16, two roundings


def main() -> None:
    """Measures every width and row count, with and without codes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, nargs="*", default=ROWS)
    parser.add_argument("--gated", action="store_true", help="compensators with gates")
    options, bandwidth = parser.parse_args(), copy_bytes_s()
    print(f"copies at {bandwidth / 1e12:.2f} TB/s\nmodel  rows  plain us  codes us  bound us")
    found, complete = collect(_measured(options.rows, bandwidth, gated=options.gated), _shown)
    print(
        last_line("kernels.silu_mul", found, complete=complete, copy_bytes_s=bandwidth, gated=options.gated)
    )


def _measured(row_counts: Sequence[int], bandwidth: float, *, gated: bool) -> Iterator[Row]:
    for rows in row_counts:
        for name, columns in WIDTHS.items():
            a = torch.randn(RANK, columns, device="cuda", dtype=torch.float16) * columns**-0.5
            shapes = ((RANK, RANK), (RANK,), (RANK, RANK), (RANK,))
            w1, b1, w2, b2 = (torch.randn(shape, device="cuda") for shape in shapes)
            factors = Factors(a=a, b=a[:, :1].T, gate=(w1, b1, w2, b2) if gated else None)
            packed = pack_compensators([factors], torch.float16)
            workspace = code_workspace(rows, columns, packed.code_width, a.device)
            touched = 3 * rows * columns * 2 + packed.down.nbytes
            copies = min(max(-(-ROTATED_BYTES // touched), 2), MOST_COPIES)
            inputs = [
                torch.randn(rows, 2 * columns, device="cuda", dtype=torch.float16) for _ in range(copies)
            ]
            packs = [replace(packed, down=packed.down.clone()) for _ in range(copies)]
            got, expected = launch(inputs[0], packed, workspace), reference(inputs[0], packed)
            assert got.codes is not None and expected.codes is not None
            for mine, law in ((got.y.float(), expected.y.float()), (got.codes.sum(0), expected.codes[0])):
                if not (mine - law).norm() < BOUND * law.norm():
                    raise SystemExit(f"wrong result at {rows} x {columns}")
            plain = time_calls([partial(launch, x) for x in inputs])
            runs = [partial(launch, x, pack, workspace) for x, pack in zip(inputs, packs, strict=True)]
            coded = time_calls(runs)
            bound_us = touched / bandwidth * 1e6
            yield {
                "model": name,
                "rows": rows,
                "plain": asdict(plain),
                "codes": asdict(coded),
                "bound_us": bound_us,
            }


def _shown(row: Row) -> str:
    times = f"{row['plain']['median_us']:10.1f}{row['codes']['median_us']:10.1f}{row['bound_us']:10.1f}"
    return f"{row['model']:5}{row['rows']:6}{times}"


if __name__ == "__main__":
    main()
