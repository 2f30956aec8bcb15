import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from spearhead.cli import main
from spearhead.errors import CheckpointError, ConfigError
from spearhead.model.checkpoint import open_checkpoint
from spearhead.model.checkpoint.compensator_files import (
    CompensatorDescription,
    StoredCompensator,
    save_compensators,
)
from spearhead.model.checkpoint.factor_codec import encode_factor
from spearhead.model.quantization import QuantizationScheme
from spearhead.quant import quantize_checkpoint
from spearhead.quant.attach import attach_compensators

MODULE = "model.layers.0.mlp.down_proj"
Factory = Callable[..., Path]


@pytest.fixture
def source(tiny_checkpoint: Factory) -> Path:
    return tiny_checkpoint("llama")


@pytest.fixture
def calibrated(source: Path, tmp_path: Path) -> Path:
    folder = quantized(source, tmp_path / "calibrated")
    checkpoint = open_checkpoint(str(folder))
    generator = torch.Generator().manual_seed(0)
    a, b = torch.randn(2, 96, generator=generator), torch.randn(2, 64, generator=generator)
    save_compensators(
        folder,
        {MODULE: StoredCompensator(a=encode_factor(a, bits=16), b=encode_factor(b, bits=16))},
        CompensatorDescription(
            w4_sha256=checkpoint.weight_digests, quantization=checkpoint.quantization, details={}
        ),
    )
    return folder


def quantized(source: Path, output: Path, scheme: str = "channel") -> Path:
    quantize_checkpoint(str(source), output, QuantizationScheme.parse(scheme))
    return output


def digests(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def test_weights_made_again_take_the_compensators(source: Path, calibrated: Path, tmp_path: Path) -> None:
    fresh = quantized(source, tmp_path / "fresh")
    assert main(["attach", str(fresh), str(calibrated / "spear")]) == 0
    checkpoint, original = open_checkpoint(str(fresh)), open_checkpoint(str(calibrated))
    assert checkpoint.compensators is not None
    assert original.compensators is not None
    assert checkpoint.compensators.digest == original.compensators.digest
    assert "w4+ec" in checkpoint.variants


def test_other_weights_are_refused_and_stay_as_they_are(
    source: Path, calibrated: Path, tmp_path: Path
) -> None:
    other = quantized(source, tmp_path / "other", "group32")
    before = digests(other)
    with pytest.raises(CheckpointError, match="fitted to other 4-bit weights"):
        attach_compensators(other, calibrated / "spear")
    assert digests(other) == before


def test_compensators_that_are_there_are_not_replaced(calibrated: Path) -> None:
    with pytest.raises(ConfigError, match="has compensators already"):
        attach_compensators(calibrated, calibrated / "spear")


def test_full_precision_takes_none(source: Path, calibrated: Path) -> None:
    with pytest.raises(ConfigError, match="in full precision"):
        attach_compensators(source, calibrated / "spear")


def test_a_folder_without_compensators_is_an_error(source: Path, tmp_path: Path) -> None:
    fresh = quantized(source, tmp_path / "fresh")
    with pytest.raises(CheckpointError, match=r"holds no ec\.safetensors"):
        attach_compensators(fresh, tmp_path)


def test_a_damaged_pair_is_refused(source: Path, calibrated: Path, tmp_path: Path) -> None:
    fresh, damaged = quantized(source, tmp_path / "fresh"), tmp_path / "damaged"
    shutil.copytree(calibrated / "spear", damaged)
    description = json.loads((damaged / "ec.json").read_text())
    (damaged / "ec.json").write_text(json.dumps(description | {"ec_sha256": "0" * 64}))
    with pytest.raises(CheckpointError):
        attach_compensators(fresh, damaged)
    assert not (fresh / "spear" / "ec.json").exists()


def test_a_failed_copy_leaves_no_half_pair(source: Path, calibrated: Path, tmp_path: Path) -> None:
    fresh = quantized(source, tmp_path / "fresh")
    (fresh / "spear" / "ec.json.partial").mkdir()  # cannot be written as a file
    with pytest.raises(ConfigError, match=r"cannot be written: .*make room"):
        attach_compensators(fresh, calibrated / "spear")
    assert not list(fresh.glob("spear/ec.safetensors*")) and open_checkpoint(str(fresh)).compensators is None
