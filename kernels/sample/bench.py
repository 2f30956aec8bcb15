"""Sampling beside its bound: ``python -m kernels.sample.bench``.

Gate first (tokens equal those of the reference, a token at a rounding boundary excepted and counted), then
time by graph replays over logits that rotate past the L2. The bound is one read of the logits at the measured
copy bandwidth. The last line is JSON.
"""

import argparse
import json
import math
from functools import partial

import torch

from kernels.sample.batch import SamplingBatch
from kernels.sample.launch import launch
from kernels.sample.reference import sample as reference
from kernels.tuning.timing import copy_bytes_s, facts, rotation, time_calls

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
    parser.parse_args()
    bandwidth, results = copy_bytes_s(), []
    print(f"copies at {bandwidth / 1e12:.2f} TB/s\nlaw           rows  vocabulary       us  bound us")
    for name, law in LAWS.items():
        check(law)
        for rows, vocabulary in CASES:
            size, batch = rows * vocabulary * 4, batch_of(rows, law)
            logits = [3 * torch.randn(rows, vocabulary, device="cuda") for _ in range(rotation(size))]
            timing = time_calls([partial(launch, one, batch) for one in logits])
            bound_us = size / bandwidth * 1e6
            results.append([name, rows, vocabulary, timing.median_us, timing.p10_us, timing.p90_us, bound_us])
            print(f"{name:12}{rows:6}{vocabulary:12}{timing.median_us:9.1f}{bound_us:10.1f}")
    headings = ["law", "rows", "vocabulary", "median_us", "p10_us", "p90_us", "bound_us"]
    print(json.dumps({"benchmark": "kernels.sample", **facts(), "columns": headings, "rows": results}))


if __name__ == "__main__":
    main()
