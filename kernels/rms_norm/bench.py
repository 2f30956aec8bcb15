"""Norm with residual and codes beside its bound: ``python -m kernels.rms_norm.bench``.

Gate first, then time by graph replays over inputs that rotate past the L2. The bound counts each byte of
input, residual, sum, norm and A once, at the measured copy bandwidth; few rows cost what a launch costs. The
last line is JSON.
"""

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from functools import partial

import torch

from kernels.compensator.layout import Factors, GpuCompensator, pack_compensators
from kernels.producer import code_workspace
from kernels.rms_norm.kernel import launch
from kernels.rms_norm.reference import rms_norm as reference
from kernels.tuning.outcome import Row, collect, last_line
from kernels.tuning.timing import ROTATED_BYTES, copy_bytes_s, time_calls

WIDTHS = {"8b": 4096, "70b": 8192}
ROWS = (1, 4, 16, 64, 512, 2048)
RANK, PROJECTIONS, EPS = 16, 3, 1e-5
MOST_COPIES = 1024  # of inputs and A in one rotation
BOUND = 2e-3  # float16, three roundings


def compensator(columns: int, *, gated: bool) -> GpuCompensator:
    """Of three projections, as q, k and v have them."""
    a = torch.randn(RANK, columns, device="cuda", dtype=torch.float16) * columns**-0.5
    shapes = ((RANK, RANK), (RANK,), (RANK, RANK), (RANK,))
    w1, b1, w2, b2 = (torch.randn(shape, device="cuda") for shape in shapes)
    factors = Factors(a=a, b=a[:, :1].T, gate=(w1, b1, w2, b2) if gated else None)
    return pack_compensators([factors] * PROJECTIONS, torch.float16)


def main() -> None:
    """Measures every width and row count, with and without codes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, nargs="*", default=ROWS)
    parser.add_argument("--gated", action="store_true", help="compensators with gates")
    options, bandwidth = parser.parse_args(), copy_bytes_s()
    print(f"copies at {bandwidth / 1e12:.2f} TB/s\nmodel  rows  plain us  codes us  bound us")
    found, complete = collect(_measured(options.rows, bandwidth, gated=options.gated), _shown)
    print(
        last_line("kernels.rms_norm", found, complete=complete, copy_bytes_s=bandwidth, gated=options.gated)
    )


def _measured(row_counts: Sequence[int], bandwidth: float, *, gated: bool) -> Iterator[Row]:
    for rows in row_counts:
        for name, columns in WIDTHS.items():
            packed, weight = (
                compensator(columns, gated=gated),
                torch.randn(columns, device="cuda", dtype=torch.float16),
            )
            workspace = code_workspace(rows, columns, packed.code_width, weight.device)
            touched = 4 * rows * columns * 2 + packed.down.nbytes
            copies = min(max(-(-ROTATED_BYTES // touched), 2), MOST_COPIES)
            inputs = [
                torch.randn(2, rows, columns, device="cuda", dtype=torch.float16) for _ in range(copies)
            ]
            packs = [replace(packed, down=packed.down.clone()) for _ in range(copies)]
            got = launch(inputs[0][0], weight, EPS, inputs[0][1], packed, workspace)
            expected = reference(inputs[0][0], weight, EPS, inputs[0][1], packed)
            assert got.codes is not None and expected.codes is not None
            for mine, law in ((got.y.float(), expected.y.float()), (got.codes.sum(0), expected.codes[0])):
                if not (mine - law).norm() < BOUND * law.norm():
                    raise SystemExit(f"wrong result at {rows} x {columns}")
            plain = time_calls([partial(launch, x[0], weight, EPS, x[1]) for x in inputs])
            runs = [
                partial(launch, x[0], weight, EPS, x[1], pack, workspace)
                for x, pack in zip(inputs, packs, strict=True)
            ]
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
