"""Calibrates with little memory: ``limited_memory.py ARTEFACT BYTES MEMORY_BYTES``, the latter as a setting.

The limit is on writable memory of this process beyond what it has after a calibration with few sequences.
Files that are mapped are no part of it: their pages come and go as the system likes.
"""

import resource
import sys
from pathlib import Path

import torch

from spearhead.quant.calibration import CalibrationConfig, CalibrationRequest, CalibrationSettings, calibrate
from spearhead.quant.self_sampling import SelfSamplingConfig
from spearhead.quant.training import TrainingConfig

LENGTH = 64


def main(artefact: Path, limit: int, memory_bytes: int, count: int) -> None:
    torch.set_num_threads(1)
    run(artefact, 96, memory_bytes)  # libraries and the first layers take their own memory first
    most = _writable_bytes() + limit
    resource.setrlimit(resource.RLIMIT_DATA, (most, most))
    run(artefact, count, memory_bytes)


def run(artefact: Path, count: int, memory_bytes: int) -> None:
    config = CalibrationConfig(
        sampling=SelfSamplingConfig(sequence_count=count, length=LENGTH, batch_size=32),
        moments_sequences=8,
        damage_tokens=128,
        max_rank=4,
        holdout=0.1,
        training=TrainingConfig(steps=2, sequences_per_step=2, evaluate_every=2, chunk_tokens=128),
        draws=50,
    )
    calibrate(
        CalibrationRequest(
            artefact=artefact,
            config=config,
            settings=CalibrationSettings(dtype="float32", memory_bytes=memory_bytes, tokens_at_once=256),
            force=True,
        ),
        tell=print,
    )


def _writable_bytes() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmData:"):
            return int(line.split()[1]) << 10
    raise AssertionError("no VmData in /proc/self/status")


if __name__ == "__main__":
    main(Path(sys.argv[1]), *map(int, sys.argv[2:5]))
