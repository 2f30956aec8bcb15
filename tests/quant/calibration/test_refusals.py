import json
import re
import resource
import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from spearhead.errors import CalibrationError, CheckpointError, ConfigError
from spearhead.model.checkpoint import open_checkpoint
from spearhead.quant.calibration import CalibrationRequest, calibrate

Artefact = Callable[..., Path]
Request = Callable[..., CalibrationRequest]


def _never(stage: str, _done: int, _total: int) -> None:
    raise AssertionError(f"work began: {stage}")


def _change(file: Path, name: str, change: Callable[[torch.Tensor], Any]) -> None:
    tensors = load_file(file)
    change(tensors[name])
    save_file(tensors, file, metadata={"format": "pt"})


def test_other_4_bit_weights_are_refused(artefact: Artefact, request_for: Request) -> None:
    path = artefact()
    calibrate(request_for(path))
    module = "model.layers.0.mlp.up_proj.weight_packed"
    _change(path / "model.safetensors", module, lambda t: t[0].zero_())
    with pytest.raises(CheckpointError, match="fitted to other 4-bit weights"):
        calibrate(replace(request_for(path), force=True), progress=_never)


def test_another_full_precision_model_is_refused(
    artefact: Artefact, request_for: Request, tiny_checkpoint: Callable[..., Path]
) -> None:
    other = tiny_checkpoint("llama", seed=9)
    with pytest.raises(CheckpointError, match=r"is not what .* was made from: revision"):
        calibrate(replace(request_for(artefact()), full_precision=str(other)), progress=_never)


def test_another_shape_is_refused_where_no_revision_is_recorded(
    artefact: Artefact, request_for: Request, tiny_checkpoint: Callable[..., Path]
) -> None:
    path = artefact()
    _as_published(path)
    other = tiny_checkpoint("llama", intermediate_size=128)
    with pytest.raises(CheckpointError, match=r"was not made from .*: intermediate_size is"):
        calibrate(replace(request_for(path), full_precision=str(other)), progress=_never)
    other = tiny_checkpoint("llama", rms_norm_eps=1e-3)
    with pytest.raises(CheckpointError, match=r"was not made from .*: rms_norm_eps is"):
        calibrate(replace(request_for(path), full_precision=str(other)), progress=_never)
    with pytest.raises(ConfigError, match="--full-precision"):
        calibrate(request_for(path), progress=_never)


@pytest.mark.parametrize("repeats", [1, 4])
def test_a_text_that_is_too_short_to_decide_is_refused_with_its_windows(
    artefact: Artefact, request_for: Request, tmp_path: Path, repeats: int
) -> None:
    text = tmp_path / "fox.txt"
    text.write_text("The quick brown fox jumps over the lazy dog while the rain falls. " * repeats)
    said: list[str] = []
    with pytest.raises(
        CalibrationError,
        match=r"\d+ sequences .* hold out \d, .* at least 7 are needed, of 28 .* longer text",
    ):
        calibrate(replace(request_for(artefact()), text=text), tell=said.append)
    assert any(re.fullmatch(r"fox.txt gives \d+ windows, not the 96 that were asked for", s) for s in said)


def _as_published(path: Path) -> None:
    config = json.loads((path / "config.json").read_text())
    del config["spear"]
    (path / "config.json").write_text(json.dumps(config))


def test_a_published_checkpoint_gets_compensators_and_keeps_its_config(
    artefact: Artefact, request_for: Request
) -> None:
    path = artefact()
    source = open_checkpoint(str(path)).full_precision_source
    assert source is not None
    _as_published(path)
    before = (path / "config.json").read_bytes()
    calibrate(replace(request_for(path), full_precision=source.location))
    assert (path / "config.json").read_bytes() == before
    assert open_checkpoint(str(path)).variants == ("w4", "w4+ec")


def test_nothing_is_replaced_without_force(artefact: Artefact, request_for: Request) -> None:
    path = artefact()
    calibrate(request_for(path))
    before = (path / "spear/ec.safetensors").read_bytes()
    with pytest.raises(ConfigError, match="--force"):
        calibrate(request_for(path, seed=1), progress=_never)
    assert (path / "spear/ec.safetensors").read_bytes() == before
    calibrate(replace(request_for(path, gate_min_rank=2, max_rank=4), force=True))
    assert (path / "spear/ec.safetensors").read_bytes() != before


def test_a_budget_below_one_module_is_refused_before_any_work(
    artefact: Artefact, request_for: Request
) -> None:
    path = artefact()
    with pytest.raises(CalibrationError, match="100 bytes holds no compensator: the smallest takes"):
        calibrate(request_for(path, budget_bytes=100), progress=_never)
    assert not (path / "spear/ec.safetensors").exists()


@pytest.mark.parametrize("name", ["model.layers.1.mlp.up_proj.weight", "model.embed_tokens.weight"])
def test_a_bad_full_precision_weight_is_named_and_nothing_written(
    artefact: Artefact, request_for: Request, name: str
) -> None:
    path = artefact()
    source = open_checkpoint(str(path)).full_precision_source
    assert source is not None
    _as_published(path)
    _change(Path(source.location) / "model.safetensors", name, lambda t: t[3].fill_(float("nan")))
    with pytest.raises(CheckpointError, match=name):
        calibrate(replace(request_for(path), full_precision=source.location))
    assert not (path / "spear/ec.safetensors").exists()


@pytest.mark.parametrize("with_text", [False, True])
def test_an_overflow_is_named_and_nothing_written(
    artefact: Artefact, request_for: Request, tmp_path: Path, with_text: bool
) -> None:
    path = artefact()
    source = open_checkpoint(str(path)).full_precision_source
    assert source is not None
    _as_published(path)
    name = "model.layers.1.input_layernorm.weight"
    _change(Path(source.location) / "model.safetensors", name, lambda t: t.fill_(1e38))
    request = replace(request_for(path), full_precision=source.location)
    match = "holds NaN or infinity in float32 while sampling"
    if with_text:
        request = replace(request, text=tmp_path / "fox.txt")
        (tmp_path / "fox.txt").write_text("The quick brown fox jumps over the lazy dog. " * 60)
        match = r"the input of model.layers.1.\S+ holds NaN or infinity at sequence 0, token \d+"
    with pytest.raises(CalibrationError, match=match):
        calibrate(request)
    assert not (path / "spear/ec.safetensors").exists()


def test_a_model_that_is_not_quantised_is_refused_and_leaves_no_trace(
    request_for: Request, tiny_checkpoint: Callable[..., Path], tmp_path: Path
) -> None:
    model = tiny_checkpoint("llama")
    with pytest.raises(CheckpointError, match="is not quantised"):
        calibrate(request_for(model), progress=_never)
    with pytest.raises(ConfigError, match="does not exist"):
        calibrate(request_for(tmp_path / "no" / "where"), progress=_never)
    assert list(tmp_path.iterdir()) == [model]


@contextmanager
def small_disk(size: int) -> Iterator[None]:
    """No file of this process grows beyond so many bytes; not for longer than needed, the log is one too."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)


def test_a_full_disk_leaves_the_artefact_as_it_was_and_the_stages(
    artefact: Artefact, request_for: Request, tmp_path: Path
) -> None:
    path = artefact()
    request = replace(request_for(path), work=tmp_path / "work")
    files = sorted(path.rglob("*"))

    with ExitStack() as full:

        def fill(*_: object) -> dict[str, object]:
            full.enter_context(small_disk(256))
            return {}

        with pytest.raises(CalibrationError, match="cannot be written"):
            calibrate(request, finish=fill)
    assert sorted(path.rglob("*")) == files
    said: list[str] = []
    calibrate(request, tell=said.append)
    assert sum("finished in an earlier run" in sentence for sentence in said) == 6


def test_a_work_folder_that_cannot_be_written_is_explained(
    artefact: Artefact, request_for: Request, tmp_path: Path
) -> None:
    request = replace(request_for(artefact()), work=tmp_path / "work")
    with small_disk(300), pytest.raises(CalibrationError, match="cannot be written"):
        calibrate(request)


def test_copies_of_an_artefact_are_the_same_subject(
    artefact: Artefact, request_for: Request, tmp_path: Path
) -> None:
    path = artefact()
    shutil.copytree(path, tmp_path / "copy")
    request = replace(request_for(path), work=tmp_path / "work")
    calibrate(request)
    said: list[str] = []
    calibrate(replace(request, artefact=tmp_path / "copy"), tell=said.append)
    assert sum("finished in an earlier run" in sentence for sentence in said) == 6
