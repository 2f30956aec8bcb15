from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from spearhead.model.checkpoint import open_checkpoint
from spearhead.quant.calibration import calibrate

Artefact = Callable[..., Path]


@pytest.mark.parametrize("architecture", ["llama", "qwen2"])
def test_every_rung_beats_the_one_before(artefact: Artefact, request_for: Any, architecture: str) -> None:
    said: list[str] = []
    path = artefact(architecture)
    found = calibrate(request_for(path), tell=said.append)
    assert found.written == path / "spear" / "ec.safetensors"
    w4, static, trained = found.rungs
    # Twenty updates at the default rate win 3%; at a twentieth of it 0.3%.
    assert static.mean_kl < 0.8 * w4.mean_kl and trained.mean_kl < 0.98 * static.mean_kl
    assert all(later.held_out_kl < sooner.held_out_kl for sooner, later in pairwise(trained.curve))
    assert all(decision.kept for decision in found.decisions)
    assert any(sentence.startswith("trained: held-out KL") for sentence in said)
    assert open_checkpoint(str(path)).variants == ("w4", "w4+ec", "fp16")
