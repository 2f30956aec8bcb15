"""Sampling beside its bound: ``python -m kernels.sample.bench``.

Gate first (tokens equal those of the reference, a token at a rounding boundary excepted and counted), then
time by graph replays over logits that rotate past the L2. The bound is one read of the logits at the measured
copy bandwidth. ``--gate`` checks and times nothing. The last line is JSON.
"""

import argparse
import math
from collections.abc import Iterator
from dataclasses import asdict
from functools import partial

import torch

from kernels.sample.batch import SamplingBatch
from kernels.sample.launch import launch
from kernels.sample.reference import sample as reference
from kernels.tuning.outcome import Row, collect, last_line
from kernels.tuning.timing import copy_bytes_s, rotation, time_calls

LAWS: dict[str, dict[str, float]] = {
    "plain": {},
    "top-k 50": {"top_k": 50},
    "top-p 0.95": {"top_p": 0.95},
    "all filters": {"top_k": 50, "top_p": 0.95, "min_p": 0.02},
}
CASES = ((1, 152_064), (8, 152_064), (64, 152_064), (64, 49_152), (64, 256_000))
"""Rows and vocabulary."""


_CUDA = torch.device("cuda")


def batch_of(rows: int, law: dict[str, float], device: torch.device = _CUDA) -> SamplingBatch:
    """Rows under one law, each with a seed of its own."""
    floor = math.log(law["min_p"]) if "min_p" in law else torch.finfo(torch.float32).min
    return SamplingBatch(
        temperature=torch.full((rows,), 0.8, device=device),
        top_k=torch.full((rows,), int(law.get("top_k", 0)), dtype=torch.int32, device=device),
        top_p=torch.full((rows,), law.get("top_p", 1.0), dtype=torch.float64, device=device),
        log_min_p=torch.full((rows,), floor, device=device),
        seeds=torch.arange(rows, device=device),
        positions=torch.full((rows,), 1000, device=device),
        filtered=bool(law),
    )


def check(law: dict[str, float]) -> None:
    """Refuses to time a result that is wrong."""
    logits, batch = 3 * torch.randn(16, 152_064, device="cuda"), batch_of(16, law)
    different = int((launch(logits, batch).token_ids != reference(logits, batch).token_ids).sum())
    if different > 1:
        raise SystemExit(f"{different} of 16 tokens differ from the law {law}")
    if different:
        print(f"one of 16 tokens differs under {law}: a tie within rounding, unless it happens again")


def main() -> None:
    """Measures every law and size."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gate", action="store_true", help="check and time nothing")
    options = parser.parse_args()
    bandwidth = copy_bytes_s()
    print(f"copies at {bandwidth / 1e12:.2f} TB/s\nlaw           rows  vocabulary       us  bound us")
    rows, complete = collect(_measured(bandwidth, timed=not options.gate), _shown)
    print(last_line("kernels.sample", rows, complete=complete, copy_bytes_s=bandwidth))


def _measured(bandwidth: float, *, timed: bool) -> Iterator[Row]:
    # Slowest law first: it is the one that has a limit to keep.
    for name, law in reversed(LAWS.items()):
        check(law)
        for rows, vocabulary in CASES:
            size, batch = rows * vocabulary * 4, batch_of(rows, law)
            logits = [3 * torch.randn(rows, vocabulary, device="cuda") for _ in range(rotation(size))]
            if not timed:
                launch(logits[0], batch)
                continue
            timing = time_calls([partial(launch, one, batch) for one in logits])
            case = {"law": name, "rows": rows, "vocabulary": vocabulary}
            yield {**case, **asdict(timing), "bound_us": size / bandwidth * 1e6}


def _shown(row: Row) -> str:
    size = f"{row['law']:12}{row['rows']:6}{row['vocabulary']:12}"
    return f"{size}{row['median_us']:9.1f}{row['bound_us']:10.1f}"


if __name__ == "__main__":
    main()
