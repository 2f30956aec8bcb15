import json
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
import torch

from spearhead.cli import main
from spearhead.model.checkpoint import open_checkpoint
from spearhead.quant import RunSettings
from spearhead.quant.quantizing.self_sampled import sampled_sequences

Factory = Callable[..., Path]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Matrices of tiny models take longer to hand out than to multiply."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "calibration.txt"
    path.write_text("The quick brown fox jumps over the lazy dog while the rain falls. " * 40)
    return path


def test_rounding_needs_nothing_and_prints_errors_by_layer(
    tiny_checkpoint: Factory, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["quantize", str(tiny_checkpoint("llama")), str(tmp_path / "w4")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["error", "in", "%", "q", "k", "v", "o", "gate", "up", "down"]
    assert [line.split()[0] for line in lines[1:3]] == ["0", "1"]
    assert "14 modules, w4 symmetric, group 32, absmax/7.5" in lines[-1]
    assert "calibration tokens" not in lines[-1]


def test_what_other_commands_run_says_one_line(
    tiny_checkpoint: Factory, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["quantize", str(tiny_checkpoint("llama")), str(tmp_path / "w4"), "--brief"]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert "14 modules, w4 symmetric, group 32, absmax/7.5" in line


def test_a_recipe_is_read_from_options(
    tiny_checkpoint: Factory, tmp_path: Path, text: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["quantize", str(tiny_checkpoint("llama")), str(tmp_path / "w4"), "--scheme", "channel"]
    arguments += ["--method", "gptq", "--act-order", "--damping", "0.05", "--override", "*down_proj=group32"]
    arguments += ["--override", "model.layers.0.*=w8", "--override", "*1.*q_proj=dense"]
    arguments += ["--calibration", str(text), "--sequences", "4", "--length", "32", "--inputs", "quantized"]
    assert main([*arguments, "--batch-size", "2", "--skip-first", "1"]) == 0
    out = capsys.readouterr().out
    assert "13 modules" in out and "128 calibration tokens see it" in out
    kept = json.loads((tmp_path / "w4" / "spear" / "quantization.json").read_text())
    assert kept["recipe"] == (
        "channel/7.5:gptq; *down_proj=group32/7.5:gptq; model.layers.0.*=w8/127.5:rtn; *1.*q_proj=dense; "
        "act_order=True damping=0.05 awq_points=20 clipping_steps=100 clipping_rate=0.02"
    )
    assert (kept["inputs"], kept["batch_size"], kept["skip_first"]) == ("quantized", 2, 1)


def test_without_a_text_the_model_samples_its_own(
    tiny_checkpoint: Factory, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["quantize", str(tiny_checkpoint("llama")), str(tmp_path / "out" / "w4")]
    assert main([*arguments, "--method", "awq", "--sequences", "6", "--length", "24"]) == 0
    captured = capsys.readouterr()
    assert "144 calibration tokens see it" in captured.out
    assert "144/144 tokens" in captured.err
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["w4"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--scheme", "group128"], "group size 128 does not divide the inputs of self_attn.q_proj (K = 64)"),
        (["--override", "*lm_head=w8"], "override '*lm_head' matches no module"),
        (["--scheme", "tensor", "--method", "awq"], "awq needs scales per channel or per group"),
        (["--method", "gptq", "--calibration", "missing.txt"], "missing.txt cannot be read"),
        (["--damping", "0"], "damping is 0.0"),
        (["--damping", "0.02"], "--damping would have no effect on rtn without calibration tokens; leave"),
        (
            ["--act-order", "--method", "awq"],
            "--act-order would have no effect on awq with calibration tokens",
        ),
        (["--clipping-steps", "9", "--method", "gptq"], "--clipping-steps would have no effect on gptq with"),
        (["--inputs", "quantized", "--length", "64"], "--length, --inputs would have no effect on rtn"),
        (["--dtype", "bfloat16", "--skip-first", "1"], "--dtype, --skip-first would have no effect on rtn"),
        (["--batch-size", "2", "--sequences", "9"], "--sequences, --batch-size would have no effect on rtn"),
    ],
)
def test_what_cannot_work_ends_at_once_with_code_2(
    tiny_checkpoint: Factory,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    options: list[str],
    message: str,
) -> None:
    arguments = ["quantize", str(tiny_checkpoint("llama")), str(tmp_path / "out" / "w4")]
    assert main([*arguments, *options]) == 2
    captured = capsys.readouterr()
    assert message in captured.err and "sampling" not in captured.err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("mistake", ["source", "text", "recipe", "length"])
def test_a_mistake_does_not_cost_what_an_interrupted_run_sampled(
    tiny_checkpoint: Factory, tmp_path: Path, mistake: str
) -> None:
    source, output = str(tiny_checkpoint("llama")), tmp_path / "out" / "w4"
    sampling = tmp_path / "out" / ".w4.work.sampling"
    arguments = [str(output), "--method", "awq", "--sequences", "6"]
    with closing(open_checkpoint(source)) as checkpoint:
        sampled_sequences(checkpoint, count=6, length=24, settings=RunSettings(), work=sampling)
    wrong = {
        "source": [f"{source}-2", *arguments],
        "text": [source, *arguments, "--calibration", "missing.txt"],
        "recipe": [source, *arguments, "--scheme", "group128"],
        "length": [source, *arguments, "--length", "23"],
    }
    assert main(["quantize", *wrong[mistake]]) == 2
    assert [path.name for path in sampling.iterdir()] == ["batch-00000.safetensors"]


def test_the_folder_that_one_is_in_is_no_work_folder_if_it_holds_files(
    tiny_checkpoint: Factory,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    source = tiny_checkpoint("llama")
    monkeypatch.chdir(source)
    assert main(["quantize", str(source), str(tmp_path / "w4"), "--work", "."]) == 2
    assert "holds other files" in capsys.readouterr().err
