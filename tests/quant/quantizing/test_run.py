import fcntl
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from spearhead.errors import CalibrationError, CheckpointError, ConfigError
from spearhead.model.checkpoint import open_checkpoint
from spearhead.quant import QuantizationProgress, QuantizationRecipe, RunSettings, quantize_checkpoint

Factory = Callable[..., Path]
SEQUENCES = [list(range(3, 60)), list(range(9, 50)), list(range(70, 90))]
SETTINGS = RunSettings(inputs="quantized", batch_size=2)
RTN = QuantizationRecipe.parse("group32")
GPTQ = QuantizationRecipe.parse("channel", "gptq")
RECIPES = {
    "rtn": (RTN, None),
    "gptq": (GPTQ, SEQUENCES),
    "awq": (QuantizationRecipe.parse("channel", "awq"), SEQUENCES),
}


class Stopped(BaseException):
    """Ends a run from within."""


def stop_after(tensors: int) -> Callable[[QuantizationProgress], None]:
    seen: list[str] = []

    def progress(step: QuantizationProgress) -> None:
        seen.append(step.tensor)
        if len(seen) == tensors:
            raise Stopped

    return progress


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


# Of 21 tensors: the embedding, nine in each of two layers, norm and head. A layer is done whole or again.
@pytest.mark.parametrize(("tensors", "left"), [(1, 20), (15, 11), (20, 0)])
@pytest.mark.parametrize("kind", RECIPES)
def test_an_interrupted_run_goes_on_and_gives_the_same_files(
    tiny_checkpoint: Factory, tmp_path: Path, kind: str, tensors: int, left: int
) -> None:
    source = str(tiny_checkpoint("llama", num_key_value_heads=4))
    recipe, sequences = RECIPES[kind]
    quantize_checkpoint(source, tmp_path / "a" / "w4", recipe, sequences, settings=SETTINGS)
    with pytest.raises(Stopped):
        quantize_checkpoint(
            source,
            tmp_path / "b" / "w4",
            recipe,
            sequences,
            settings=SETTINGS,
            progress=stop_after(tensors),
        )
    assert not (tmp_path / "b" / "w4").exists()
    seen: list[QuantizationProgress] = []
    quantize_checkpoint(
        source, tmp_path / "b" / "w4", recipe, sequences, settings=SETTINGS, progress=seen.append
    )
    assert files(tmp_path / "b" / "w4") == files(tmp_path / "a" / "w4")
    assert [path.name for path in (tmp_path / "b").iterdir()] == ["w4"]
    assert len(seen) == left and all(step.resumed_bytes > 0 for step in seen)
    assert all(step.done_bytes == step.total_bytes for step in seen[-1:])


def test_a_killed_process_leaves_what_the_next_one_goes_on_with(
    tiny_checkpoint: Factory, tmp_path: Path
) -> None:
    source = str(tiny_checkpoint("llama"))
    script = Path(__file__).with_name("killed_run.py")
    killed = subprocess.run(
        [sys.executable, str(script), source, str(tmp_path / "w4"), "12"],
        check=False,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])},
    )
    assert killed.returncode == -signal.SIGKILL
    assert not (tmp_path / "w4").exists() and (tmp_path / ".w4.work").exists()
    seen: list[QuantizationProgress] = []
    quantize_checkpoint(source, tmp_path / "w4", GPTQ, SEQUENCES, settings=SETTINGS, progress=seen.append)
    assert seen[0].resumed_bytes > 0
    quantize_checkpoint(source, tmp_path / "whole" / "w4", GPTQ, SEQUENCES, settings=SETTINGS)
    assert (tmp_path / "w4" / "model.safetensors").read_bytes() == (
        tmp_path / "whole" / "w4" / "model.safetensors"
    ).read_bytes()


@pytest.mark.parametrize("change", ["recipe", "calibration", "source", "inputs"])
def test_an_interrupted_run_of_another_kind_is_refused(
    tiny_checkpoint: Factory, tmp_path: Path, change: str
) -> None:
    source = tiny_checkpoint("llama")
    with pytest.raises(Stopped):
        quantize_checkpoint(
            str(source), tmp_path / "w4", GPTQ, SEQUENCES, settings=SETTINGS, progress=stop_after(3)
        )
    other = {
        "source": str(tiny_checkpoint("llama", seed=1) if change == "source" else source),
        "recipe": QuantizationRecipe.parse("channel", "rtn") if change == "recipe" else GPTQ,
        "sequences": SEQUENCES[:2] if change == "calibration" else SEQUENCES,
        "settings": RunSettings(inputs="full" if change == "inputs" else "quantized", batch_size=2),
    }
    with pytest.raises(ConfigError, match=rf"interrupted run of another kind \({change} was"):
        quantize_checkpoint(output=tmp_path / "w4", **other)  # type: ignore[arg-type]


def test_restart_drops_what_an_interrupted_run_left(tiny_checkpoint: Factory, tmp_path: Path) -> None:
    source = str(tiny_checkpoint("llama"))
    with pytest.raises(Stopped):
        quantize_checkpoint(source, tmp_path / "w4", GPTQ, SEQUENCES, progress=stop_after(15))
    seen: list[QuantizationProgress] = []
    quantize_checkpoint(
        source,
        tmp_path / "w4",
        QuantizationRecipe.parse("group32"),
        settings=RunSettings(restart=True),
        progress=seen.append,
    )
    assert seen[0].resumed_bytes == 0 and seen[0].tensor == "model.embed_tokens.weight"
    assert open_checkpoint(str(tmp_path / "w4")).quantization == "w4 symmetric, group 32, absmax/7.5"


@pytest.mark.parametrize(
    ("output", "work", "message"),
    [
        ("scratch/w4", "scratch", "scratch/w4 would lie in .*scratch, which is removed at the end"),
        ("w4", "w4/work", "w4/work would lie in .*w4, which appears at the end"),
        ("w4", "w4", "would lie in"),
    ],
)
def test_a_work_folder_around_or_in_the_output_is_refused_at_once(
    tiny_checkpoint: Factory, tmp_path: Path, output: str, work: str, message: str
) -> None:
    source, place = str(tiny_checkpoint("llama")), tmp_path / "out"
    with pytest.raises(ConfigError, match=message):
        quantize_checkpoint(source, place / output, RTN, settings=RunSettings(work=place / work))
    assert not place.exists()


def test_two_runs_never_assemble_one_artefact_together(tiny_checkpoint: Factory, tmp_path: Path) -> None:
    source, place = str(tiny_checkpoint("llama")), tmp_path / "out" / ".w4.assembling"
    (place / "spear").mkdir(parents=True)
    (place / "spear" / "theirs.json").write_text("{}")
    other = os.open(place, os.O_RDONLY)
    fcntl.flock(other, fcntl.LOCK_EX)
    with pytest.raises(ConfigError, match="assembling is used by another run"):
        quantize_checkpoint(source, tmp_path / "out" / "w4", RTN)
    assert [path.name for path in (place / "spear").iterdir()] == ["theirs.json"]
    os.close(other)  # as when that process was killed
    quantize_checkpoint(source, tmp_path / "out" / "w4", RTN)
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["w4"]
    assert not (tmp_path / "out" / "w4" / "spear" / "theirs.json").exists()


def test_a_chosen_work_folder_is_used_and_removed(tiny_checkpoint: Factory, tmp_path: Path) -> None:
    source, work = str(tiny_checkpoint("llama")), tmp_path / "scratch" / "run"
    settings = RunSettings(work=work)
    with pytest.raises(Stopped):
        quantize_checkpoint(
            source, tmp_path / "w4", GPTQ, SEQUENCES, settings=settings, progress=stop_after(15)
        )
    assert (work / "layer-00000.safetensors").exists()
    quantize_checkpoint(source, tmp_path / "w4", GPTQ, SEQUENCES, settings=settings)
    assert not work.exists()


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """Writes beyond this fail, as they do on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)


# The embedding takes 84 kB, a layer less, the joined weights more than each.
@pytest.mark.parametrize("size", [1_000, 60_000, 90_000])
def test_a_full_disk_is_an_error_that_leaves_nothing_half_made(
    tiny_checkpoint: Factory, tmp_path: Path, size: int
) -> None:
    source = str(tiny_checkpoint("llama"))
    with largest_file(size), pytest.raises(ConfigError, match=r"cannot be written .* same command again"):
        quantize_checkpoint(source, tmp_path / "out" / "w4", GPTQ, SEQUENCES)
    assert [path.name for path in (tmp_path / "out").iterdir()] == [".w4.work"]
    assert not list((tmp_path / "out" / ".w4.work").glob("*.unfinished"))
    quantize_checkpoint(source, tmp_path / "out" / "w4", GPTQ, SEQUENCES)
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["w4"]


def test_infinity_in_one_calibration_token_names_module_and_token_and_writes_nothing(
    tiny_checkpoint: Factory, tmp_path: Path
) -> None:
    folder = tiny_checkpoint("llama")
    tensors = load_file(folder / "model.safetensors")
    for part in ("gate_proj", "up_proj"):
        tensors[f"model.layers.1.mlp.{part}.weight"] *= 1e20
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(
        CalibrationError, match=r"layers\.1\.mlp\.down_proj holds NaN or infinity at sequence 0, token"
    ):
        quantize_checkpoint(str(folder), tmp_path / "out" / "w4", GPTQ, SEQUENCES)
    assert not list((tmp_path / "out").iterdir())


def test_a_source_that_cannot_be_read_for_a_moment_costs_no_finished_layer(
    tiny_checkpoint: Factory, tmp_path: Path
) -> None:
    source = str(tiny_checkpoint("llama"))

    def away(step: QuantizationProgress) -> None:
        if step.tensor.startswith("model.layers.1."):
            raise CheckpointError("the source cannot be read") from OSError(5, "Input/output error")

    with pytest.raises(CheckpointError, match="cannot be read"):
        quantize_checkpoint(source, tmp_path / "w4", GPTQ, SEQUENCES, progress=away)
    seen: list[QuantizationProgress] = []
    quantize_checkpoint(source, tmp_path / "w4", GPTQ, SEQUENCES, progress=seen.append)
    assert not any(step.tensor.startswith("model.layers.0.") for step in seen)


def test_padding_does_not_change_what_is_chosen(tiny_checkpoint: Factory, tmp_path: Path) -> None:
    source = str(tiny_checkpoint("llama"))
    for size in (1, 3):  # alone, nothing is padded
        quantize_checkpoint(
            source, tmp_path / str(size), GPTQ, SEQUENCES, settings=RunSettings(batch_size=size)
        )
    one, three = (load_file(tmp_path / str(size) / "model.safetensors") for size in (1, 3))
    differing = sum(int((one[name] != three[name]).sum()) for name in one if name.endswith("_packed"))
    assert differing < 0.01 * sum(one[name].numel() for name in one if name.endswith("_packed"))


def test_statistics_follow_quantised_inputs_when_asked(tiny_checkpoint: Factory, tmp_path: Path) -> None:
    source = str(tiny_checkpoint("llama"))
    for inputs in ("full", "quantized"):
        settings = RunSettings(inputs=inputs)  # type: ignore[arg-type]
        quantize_checkpoint(source, tmp_path / inputs, GPTQ, SEQUENCES, settings=settings)
    full, quantized = (load_file(tmp_path / inputs / "model.safetensors") for inputs in ("full", "quantized"))

    def same(layer: int) -> bool:
        return torch.equal(
            *(side[f"model.layers.{layer}.mlp.up_proj.weight_packed"] for side in (full, quantized))
        )

    assert same(0) and not same(1)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("method", ["rtn-clip", "gptq", "awq-clip", "omniquant"])
def test_a_gpu_chooses_what_the_cpu_chooses(tiny_checkpoint: Factory, tmp_path: Path, method: str) -> None:
    source = str(tiny_checkpoint("qwen2", num_key_value_heads=4))
    recipe = QuantizationRecipe.parse("group32", method, ["*k_proj=w8", "*0.*down_proj=dense"])
    errors = [
        quantize_checkpoint(
            source,
            tmp_path / device,
            recipe,
            SEQUENCES,
            settings=RunSettings(device=device, inputs="quantized"),
        ).mean_weighted_error
        for device in ("cpu", "cuda")
    ]
    assert errors[1] == pytest.approx(errors[0], rel=0.02)


def test_an_unknown_device_is_refused() -> None:
    with pytest.raises(ConfigError, match="device is 'gpu'; it must be cpu, cuda"):
        RunSettings(device="gpu")
    if torch.cuda.is_available():
        pytest.skip("this machine has the device")
    with pytest.raises(ConfigError, match="no CUDA device is here; use cpu"):
        RunSettings(device="cuda")


def test_a_source_whose_layers_are_quantised_is_refused(tiny_checkpoint: Factory, tmp_path: Path) -> None:
    quantize_checkpoint(str(tiny_checkpoint("llama")), tmp_path / "w4", GPTQ, SEQUENCES)
    with pytest.raises(CheckpointError, match="is quantised already"):
        quantize_checkpoint(str(tmp_path / "w4"), tmp_path / "again", GPTQ, SEQUENCES)
