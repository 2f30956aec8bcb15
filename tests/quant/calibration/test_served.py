import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from spearhead.model.attention import Segment
from spearhead.model.checkpoint import load_variants, open_checkpoint
from spearhead.model.decoder import Decoder, RowBlocks
from spearhead.model.kv_cache import KvStorage
from spearhead.quant.calibration import Calibration, CalibrationRequest, CalibrationSettings, calibrate
from spearhead.quant.calibration.encoding import served
from spearhead.quant.evaluation import compensated_linear
from spearhead.quant.layers import ResidentLayers, StreamedLayers, final_hidden
from spearhead.quant.student import Student

Artefact = Callable[..., Path]
Request = Callable[..., CalibrationRequest]
CPU = torch.device("cpu")
TOKENS = torch.randint(3, 300, (1, 30), generator=torch.Generator().manual_seed(1))


def _served_logits(path: Path, variant: str) -> torch.Tensor:
    checkpoint = open_checkpoint(str(path))
    weights = load_variants(checkpoint, variants=[variant], dtype=torch.float32, device=CPU)[variant]
    storage = KvStorage(checkpoint.config, 2, 16, torch.float32, CPU)
    decoder = Decoder(checkpoint.config, storage, context_length=32, row_blocks=RowBlocks(), device=CPU)
    segment = Segment(pages=[0, 1], start=0, count=30)
    return decoder.forward(weights, [segment], TOKENS[0].tolist(), range(30)).logits


def _student_logits(path: Path, found: Calibration) -> torch.Tensor:
    checkpoint = open_checkpoint(str(path))
    source = ResidentLayers(StreamedLayers(checkpoint, dtype=torch.float32, device=CPU))
    student = Student(found.chosen.factors, found.config.factor_bits, CPU)
    with torch.no_grad():
        return final_hidden(source, TOKENS, student.linear(torch.float32))[0] @ source.head.T


@pytest.mark.parametrize("bits", [16, 8, 4])
@pytest.mark.parametrize("architecture", ["llama", "qwen2"])
def test_what_is_served_is_what_was_decided(
    artefact: Artefact, request_for: Request, architecture: str, bits: int
) -> None:
    path = artefact(architecture)
    found = calibrate(request_for(path, factor_bits=bits))
    assert found.chosen.factors
    ours, theirs = _served_logits(path, "w4+ec"), _student_logits(path, found)
    # Float32 sums in another order.
    assert float((ours - theirs).norm() / theirs.norm()) < 1e-5
    assert float((ours - _served_logits(path, "w4")).norm() / theirs.norm()) > 1e-3


def test_forced_gates_are_in_the_file_and_served(artefact: Artefact, request_for: Request) -> None:
    path = artefact()
    found = calibrate(request_for(path, gate="force", gate_min_rank=2))
    assert found.chosen.rung == "gated"
    tensors = load_file(path / "spear/ec.safetensors")
    assert any(".ec.gate.w1" in name for name in tensors)
    compensators = open_checkpoint(str(path)).compensators
    assert compensators is not None
    gated = {module for module, one in compensators.by_module.items() if one.gate is not None}
    assert gated == {m for m, one in found.chosen.factors.items() if len(one.a) >= 2}
    assert {len(one.a) >= 2 for one in found.chosen.factors.values()} == {True, False}
    assert found.chosen.compensator_bytes == found.allocation.spent_bytes
    ours, theirs = _served_logits(path, "w4+ec"), _student_logits(path, found)
    # Gates are stored in bfloat16.
    assert float((ours - theirs).norm() / theirs.norm()) < 1e-3


def test_a_gate_that_does_not_win_is_dropped(artefact: Artefact, request_for: Request) -> None:
    path = artefact()
    request = request_for(path, gate="auto", gate_min_rank=2)
    slow = replace(request.config.training, gate_learning_rate=0.0)
    found = calibrate(replace(request, config=replace(request.config, training=slow)))
    assert [state.start for state in found.candidates] == ["static", "trained"]
    # Gates that never move are 1: the candidate equals the rung before, and equal is not better.
    assert not found.decisions[3].kept and "dropped" in found.decisions[3].sentence
    assert not any(".gate." in name for name in load_file(path / "spear/ec.safetensors"))


def test_low_ranks_get_no_gate(artefact: Artefact, request_for: Request) -> None:
    said: list[str] = []
    found = calibrate(request_for(artefact(), gate="auto", max_rank=2), tell=said.append)
    assert len(found.rungs) == 3
    assert "no compensator has rank 4, below which there is nothing to gate" in said


def test_streamed_layers_give_the_same_bytes(artefact: Artefact, request_for: Request) -> None:
    path = artefact()
    request = replace(request_for(path), force=True)
    calibrate(request)
    resident = (path / "spear/ec.safetensors").read_bytes()
    limits = CalibrationSettings(dtype="float32", memory_bytes=20_000)
    said: list[str] = []
    found = calibrate(replace(request, settings=limits), tell=said.append)
    assert isinstance(found.models.teacher(), StreamedLayers)
    assert any("its layers are read from the disk" in sentence for sentence in said)
    assert (path / "spear/ec.safetensors").read_bytes() == resident


def test_the_artefact_says_how_it_came_to_be(artefact: Artefact, request_for: Request) -> None:
    path = artefact()
    found = calibrate(request_for(path))
    said = json.loads((path / "spear/ec.json").read_text())
    checkpoint = open_checkpoint(str(path))
    assert said["w4_sha256"] == dict(checkpoint.weight_digests)
    assert said["full_precision_revision"] == found.subject.full.revision
    assert said["compensator_bytes"] <= said["budget_bytes"]
    compensators = checkpoint.compensators
    assert compensators is not None and compensators.stored_bytes == said["compensator_bytes"]
    assert set(said["ranks"]) == set(compensators.by_module)
    assert set(said["damage"]) == {"cka_final", "cka_block"}
    assert said["config"]["sampling"]["seed"] == said["seed"] == 0
    assert [line.split(":")[0] for line in said["decisions"]] == ["w4", "static", "trained"]
    assert not any("lm_head" in module or "embed" in module for module in said["reasons"])
    assert json.loads((path / "config.json").read_text())["spear"]["ec_file"] == "spear/ec.safetensors"


def test_dense_modules_and_those_in_8_bits_are_left_alone(
    tiny_checkpoint: Callable[..., Path], request_for: Request, tmp_path: Path
) -> None:
    from spearhead.quant import QuantizationRecipe, quantize_checkpoint

    recipe = QuantizationRecipe.parse("channel", "rtn", ["*down_proj=w8", "*1.*q_proj=dense"])
    quantize_checkpoint(str(tiny_checkpoint("llama")), tmp_path / "mixed", recipe, None)
    found = calibrate(request_for(tmp_path / "mixed"))
    assert set(found.subject.skipped) == {
        "model.layers.0.mlp.down_proj", "model.layers.1.mlp.down_proj", "model.layers.1.self_attn.q_proj",
    }  # fmt: skip
    assert not set(found.chosen.factors) & set(found.subject.skipped)
    with_w8 = calibrate(replace(request_for(tmp_path / "mixed", include_w8=True), force=True))
    assert set(with_w8.subject.skipped) == {"model.layers.1.self_attn.q_proj"}


def test_the_blocks_of_a_gguf_file_are_mended(
    tiny_checkpoint: Callable[..., Path], tiny_gguf: Callable[..., Path], request_for: Request
) -> None:
    folder = tiny_checkpoint("llama")
    file = tiny_gguf(folder, "Q4_0")
    found = calibrate(replace(request_for(file), full_precision=str(folder)))
    assert found.written == file.parent / "spear/ec.safetensors"
    assert open_checkpoint(str(file), gguf_codes=True).variants == ("w4", "w4+ec")


def test_a_text_stands_for_samples(artefact: Artefact, request_for: Request, tmp_path: Path) -> None:
    text = tmp_path / "fox.txt"
    text.write_text("The quick brown fox jumps over the lazy dog while the rain falls. " * 60)
    found = calibrate(replace(request_for(artefact()), text=text))
    assert found.texts.described.endswith("windows of fox.txt")
    assert found.chosen.factors


def test_saved_sequences_of_the_same_model_spare_the_sampling(
    artefact: Artefact, request_for: Request, tmp_path: Path
) -> None:
    path = artefact()
    first = calibrate(request_for(path))
    first.texts.whole.save(tmp_path / "samples.safetensors")
    request = replace(request_for(path), sequences=tmp_path / "samples.safetensors", force=True)
    second = calibrate(request)
    assert torch.equal(first.texts.whole.token_ids, second.texts.whole.token_ids)
    assert torch.equal(first.chosen.kl, second.chosen.kl)


def test_training_helps_what_was_served_before(artefact: Artefact, request_for: Request) -> None:
    """The loss that decides is that of rounded factors in the served arithmetic."""
    path = artefact()
    found = calibrate(request_for(path, factor_bits=4))
    placed = served(found.chosen.factors, 4, CPU)
    source = ResidentLayers(StreamedLayers(open_checkpoint(str(path)), dtype=torch.float32, device=CPU))
    ours = final_hidden(source, TOKENS, compensated_linear(placed))[0] @ source.head.T
    assert float((ours - _served_logits(path, "w4+ec")).norm() / ours.norm()) < 1e-5
