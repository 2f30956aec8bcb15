"""Tiny artefacts and a calibration of seconds."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from spearhead.quant import QuantizationRecipe, quantize_checkpoint
from spearhead.quant.calibration import CalibrationConfig, CalibrationRequest, CalibrationSettings
from spearhead.quant.self_sampling import SelfSamplingConfig
from spearhead.quant.training import TrainingConfig

QUICK = CalibrationConfig(
    budget_share=0.08,
    sampling=SelfSamplingConfig(sequence_count=96, length=24, batch_size=16),
    holdout=0.25,
    moments_sequences=24,
    damage_tokens=96,
    max_rank=8,
    training=TrainingConfig(steps=20, sequences_per_step=8, evaluate_every=5),
    gate="off",
    draws=400,
)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Tiny products gain nothing from threads, and sums must not depend on their number."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def artefact(tiny_checkpoint: Callable[..., Path], tmp_path: Path) -> Callable[..., Path]:
    """``artefact(architecture="llama", scheme="channel", method="rtn", **shape) -> folder``."""

    def make(
        architecture: str = "llama", scheme: str = "channel", method: str = "rtn", **shape: object
    ) -> Path:
        source = tiny_checkpoint(architecture, **shape)
        output = tmp_path / f"w4-{source.name}"
        quantize_checkpoint(str(source), output, QuantizationRecipe.parse(scheme, method, []), None)
        return output

    return make


def _request(path: Path, **changes: object) -> CalibrationRequest:
    """A quick calibration of an artefact."""
    config = replace(QUICK, **changes)  # type: ignore[arg-type]
    return CalibrationRequest(artefact=path, config=config, settings=CalibrationSettings(dtype="float32"))


@pytest.fixture
def request_for() -> Callable[..., CalibrationRequest]:
    """``request_for(folder, **changes of the configuration)``: a quick calibration."""
    return _request
