import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file

from spearhead.errors import CheckpointError
from spearhead.model.checkpoint import Checkpoint, load_variants, open_checkpoint
from spearhead.model.checkpoint.compensator_files import (
    CompensatorDescription,
    StoredCompensator,
    save_compensators,
)
from spearhead.model.checkpoint.compensators import Compensator, load_compensators
from spearhead.model.checkpoint.factor_codec import FactorBits, encode_factor
from spearhead.model.checkpoint.layout import linear_modules
from spearhead.model.weights import Gate
from tests.model.checkpoint.published import edit_tensors, gptq_tensors, publish, random_grid

Factory = Callable[..., Path]
Q_PROJ, UP = "model.layers.0.self_attn.q_proj", "model.layers.1.mlp.up_proj"


def stored(shape: tuple[int, int], rank: int, bits: tuple[FactorBits, FactorBits], gate: bool = False) -> Any:
    outputs, inputs = shape
    generator = torch.Generator().manual_seed(rank)

    def random(*size: int) -> torch.Tensor:
        return torch.randn(*size, generator=generator)

    return StoredCompensator(
        a=encode_factor(random(rank, inputs), bits=bits[0]),
        b=encode_factor(random(rank, outputs), bits=bits[1]),
        gate=Gate(w1=random(5, rank), b1=random(5), w2=random(rank, 5), b2=random(rank)) if gate else None,
    )


def describe(checkpoint: Checkpoint, **details: Any) -> CompensatorDescription:
    return CompensatorDescription(
        w4_sha256=checkpoint.weight_digests, quantization=checkpoint.quantization, details=details
    )


def same(first: Compensator, second: Compensator) -> bool:
    gates = (first.gate, second.gate)
    pairs = [(first.a, second.a), (first.b, second.b)]
    if gates[0] is not None and gates[1] is not None:
        pairs += [(getattr(gates[0], part), getattr(gates[1], part)) for part in ("w1", "b1", "w2", "b2")]
    return (gates[0] is None) == (gates[1] is None) and all(torch.equal(one, other) for one, other in pairs)


@pytest.fixture
def artefact(tiny_checkpoint: Factory, tiny_artefact: Factory) -> Path:
    return tiny_artefact(tiny_checkpoint("llama", dtype="bfloat16"))


@pytest.mark.parametrize("bits", [(16, 16), (8, 8), (4, 4), (8, 4), (4, 16)])
@pytest.mark.parametrize("gate", [True, False])
def test_what_is_saved_is_what_is_loaded(
    artefact: Path, bits: tuple[FactorBits, FactorBits], gate: bool
) -> None:
    compensators = {Q_PROJ: stored((64, 64), 3, bits, gate), UP: stored((96, 64), 1, bits)}
    before = (artefact / "config.json").read_bytes()
    file = save_compensators(artefact, compensators, describe(open_checkpoint(str(artefact))))
    checkpoint = open_checkpoint(str(artefact))
    assert checkpoint.variants == ("w4", "w4+ec", "fp16")
    loaded = checkpoint.compensators
    assert loaded is not None
    assert loaded.by_module.keys() == compensators.keys()
    for module, compensator in compensators.items():
        assert same(loaded.by_module[module], compensator.decode()), module
    assert loaded.stored_bytes == sum(tensor.nbytes for tensor in load_file(file).values())
    assert (artefact / "config.json").read_bytes() == before


def test_fewer_bits_take_fewer_bytes(artefact: Path) -> None:
    sizes = []
    for bits in ((16, 16), (8, 8), (4, 4)):
        save_compensators(artefact, {UP: stored((96, 64), 4, bits)}, describe(open_checkpoint(str(artefact))))
        compensators = open_checkpoint(str(artefact)).compensators
        assert compensators is not None
        sizes.append(compensators.stored_bytes)
    assert sizes == [4 * 160 * 2, 4 * 160 + 2 * 16, 4 * 160 // 2 + 2 * 16]


def test_the_description_keeps_what_its_author_adds(artefact: Path) -> None:
    checkpoint = open_checkpoint(str(artefact))
    save_compensators(artefact, {UP: stored((96, 64), 2, (8, 8))}, describe(checkpoint, steps=400, version=7))
    description = json.loads((artefact / "spear" / "ec.json").read_text())
    assert description["steps"] == 400
    assert description["version"] == 2
    assert description["w4_sha256"] == checkpoint.weight_digests
    assert sorted(path.name for path in artefact.glob("spear/ec.*")) == ["ec.json", "ec.safetensors"]


def test_saving_again_replaces_what_was_there(artefact: Path) -> None:
    plain = open_checkpoint(str(artefact))
    revisions = []
    for module, shape in ((Q_PROJ, (64, 64)), (UP, (96, 64))):
        save_compensators(artefact, {module: stored(shape, 2, (8, 8))}, describe(plain))
        checkpoint = open_checkpoint(str(artefact))
        assert checkpoint.compensators is not None
        assert set(checkpoint.compensators.by_module) == {module}
        revisions.append(checkpoint.revision)
    assert len({plain.revision, *revisions}) == 3


def test_what_was_there_stays_when_the_description_cannot_be_written(artefact: Path) -> None:
    plain = open_checkpoint(str(artefact))
    save_compensators(artefact, {Q_PROJ: stored((64, 64), 2, (8, 8))}, describe(plain))
    before = {path.name: path.read_bytes() for path in (artefact / "spear").iterdir()}
    with pytest.raises(UnicodeEncodeError):
        save_compensators(artefact, {UP: stored((96, 64), 2, (8, 8))}, describe(plain, author="\ud800"))
    assert {path.name: path.read_bytes() for path in (artefact / "spear").iterdir()} == before


def test_a_published_checkpoint_takes_compensators_with_its_config_untouched(
    tiny_checkpoint: Factory,
) -> None:
    source = tiny_checkpoint("llama")

    def encode(module: str, weight: torch.Tensor) -> dict[str, torch.Tensor]:
        grid = random_grid(tuple(weight.shape), seed=1, group_size=32, symmetric=False, act_order=True)
        return gptq_tensors(grid, bits=4, version=2)

    settings = {"quant_method": "gptq", "bits": 4, "group_size": 32, "checkpoint_format": "gptq_v2"}
    folder = publish(source, source.parent / "gptq", settings, encode)
    compensator = stored((96, 64), 2, (4, 4))
    save_compensators(folder, {UP: compensator}, describe(open_checkpoint(str(folder))))
    checkpoint = open_checkpoint(str(folder))
    assert checkpoint.variants == ("w4", "w4+ec")
    variants = load_variants(checkpoint, variants=("w4+ec",), dtype=torch.float32, device=torch.device("cpu"))
    placed = variants["w4+ec"].layers[1].gate_up.compensators
    assert [(one.row_offset, one.row_count) for one in placed] == [(96, 96)]
    assert torch.equal(placed[0].b, compensator.decode().b)
    edit_tensors(folder / "model.safetensors", lambda tensors: tensors[f"{Q_PROJ}.scales"].mul_(2))
    with pytest.raises(CheckpointError, match=r"fitted to other 4-bit weights \(SHA-256 differs\)"):
        open_checkpoint(str(folder))


def test_compensators_lie_beside_a_gguf_file_too(tiny_checkpoint: Factory, tiny_gguf: Factory) -> None:
    path = tiny_gguf(tiny_checkpoint("llama"), "Q4_0")
    kept = open_checkpoint(str(path), gguf_codes=True)
    save_compensators(path.parent, {UP: stored((96, 64), 2, (8, 8))}, describe(kept))
    compensated = open_checkpoint(str(path), gguf_codes=True)
    assert compensated.variants == ("w4", "w4+ec")
    assert compensated.revision != kept.revision
    assert open_checkpoint(str(path)).compensators is None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: {}, "there are no compensators to write"),
        (lambda c: {UP: replace(c, b=encode_factor(torch.ones(3, 96), bits=8))}, "A of rank 2, B of rank 3"),
        (
            lambda c: {
                UP: replace(c, gate=Gate(**dict.fromkeys(("w1", "b1", "w2", "b2"), torch.ones(2, 2))))
            },
            "which do not fit rank 2",
        ),
        (
            lambda c: {UP: replace(c, a=replace(c.a, scales=torch.tensor([1.0, float("nan")])))},
            f"compensator of {UP} holds NaN or infinity",
        ),
    ],
)
def test_compensators_that_could_not_be_loaded_are_not_written(
    artefact: Path, change: Callable[[Any], Any], message: str
) -> None:
    checkpoint = open_checkpoint(str(artefact))
    with pytest.raises(CheckpointError, match=message):
        save_compensators(artefact, change(stored((96, 64), 2, (8, 8))), describe(checkpoint))
    assert not list(artefact.glob("spear/ec.*"))


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda t: t.pop(f"{UP}.ec.A_scale"), r"A_scale is not in"),
        (
            lambda t: t.update({f"{UP}.ec.A_scale": torch.ones(3)}),
            r"A_scale is F32 \(3,\), expected .* \(2,\)",
        ),
        (lambda t: t.update({f"{UP}.ec.A": torch.ones(2, 64)}), r"A_scale is no part of a compensator"),
        (lambda t: t.pop(f"{UP}.ec.B_packed"), rf"hold neither tensor {UP}\.ec\.B nor"),
        (
            lambda t: t.update({f"{UP}.ec.B_packed": torch.zeros(2, 11, dtype=torch.int32)}),
            r"B_packed has shape \(2, 11\); expected \(rank, 12\)",
        ),
        (
            lambda t: t.update({f"{UP}.ec.B_packed": torch.zeros(2, 12)}),
            r"B_packed is F32 \(2, 12\), expected I32",
        ),
        (
            lambda t: t.update(
                {
                    f"{UP}.ec.B_packed": torch.zeros(3, 12, dtype=torch.int32),
                    f"{UP}.ec.B_scale": torch.ones(3),
                }
            ),
            "A of rank 2, B of rank 3",
        ),
        (lambda t: t.update({f"{UP}.ec.B": torch.zeros(96, 2)}), r"ec\.B is no part of a compensator"),
        (lambda t: t.update({f"{UP}.ec.alpha": torch.ones(1)}), r"ec\.alpha is no part of a compensator"),
        (lambda t: t.update({f"{UP}.ec.A": torch.zeros(2, dtype=torch.int8)}), r"ec\.A has shape \(2,\)"),
        (
            lambda t: t[f"{UP}.ec.B_scale"].fill_(float("inf")),
            "B_packed of the compensators holds NaN or infinity",
        ),
    ],
)
def test_damaged_factors_are_named(artefact: Path, edit: Callable[[Any], None], message: str) -> None:
    checkpoint = open_checkpoint(str(artefact))
    file = save_compensators(artefact, {UP: stored((96, 64), 2, (8, 4))}, describe(checkpoint))
    edit_tensors(file, edit)
    description = file.with_suffix(".json")
    # Version 1 does not know the digest of the tensors, which would be refused first.
    description.write_text(json.dumps(json.loads(description.read_text()) | {"version": 1}))
    with pytest.raises(CheckpointError, match=message):
        open_checkpoint(str(artefact))


def test_tensors_of_another_description_are_refused(artefact: Path) -> None:
    checkpoint = open_checkpoint(str(artefact))
    file = save_compensators(artefact, {UP: stored((96, 64), 2, (8, 8))}, describe(checkpoint))
    edit_tensors(file, lambda tensors: tensors[f"{UP}.ec.A_scale"].mul_(2))
    with pytest.raises(CheckpointError, match=r"describes another ec\.safetensors than the one beside it"):
        open_checkpoint(str(artefact))


@pytest.mark.parametrize("lost", ["ec.json", "ec.safetensors"])
def test_half_of_a_pair_is_refused(artefact: Path, lost: str) -> None:
    checkpoint = open_checkpoint(str(artefact))
    save_compensators(artefact, {UP: stored((96, 64), 2, (8, 8))}, describe(checkpoint))
    (artefact / "spear" / lost).unlink()
    with pytest.raises(CheckpointError, match=lost):
        open_checkpoint(str(artefact))


@pytest.mark.parametrize("name", [5, ["ec"]])
def test_a_name_in_the_config_that_is_no_name_is_refused(artefact: Path, name: object) -> None:
    config = json.loads((artefact / "config.json").read_text())
    config["spear"]["ec_file"] = name
    (artefact / "config.json").write_text(json.dumps(config))
    with pytest.raises(
        CheckpointError, match=r"spear\.ec_file in config\.json is .*; it must be a file name"
    ):
        open_checkpoint(str(artefact))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60, deadline=None)
@given(data=st.data())
def test_damage_anywhere_is_a_checkpoint_error_or_harmless(artefact: Path, data: st.DataObject) -> None:
    """Bytes that are cut off or changed either leave finite numbers of the right shape, or are refused."""
    shutil.rmtree(artefact / "spear", ignore_errors=True)  # of the example before
    checkpoint = open_checkpoint(str(artefact))
    file = save_compensators(artefact, {UP: stored((96, 64), 2, (4, 8), gate=True)}, describe(checkpoint))
    victim = data.draw(st.sampled_from([file, file.with_suffix(".json")]))
    content = victim.read_bytes()
    if victim == file:  # version 1, so that the digest does not catch everything
        description = file.with_suffix(".json")
        description.write_text(json.dumps(json.loads(description.read_text()) | {"version": 1}))
    start = data.draw(st.integers(0, len(content) - 1))
    kept = data.draw(st.sampled_from([content[:start], content[: start + 1], content]))
    victim.write_bytes(kept[:start] + data.draw(st.binary(max_size=12)) + kept[start + 4 :])
    try:
        loaded = load_compensators(
            file,
            modules=linear_modules(checkpoint.config),
            w4_digests=checkpoint.weight_digests,
            quantization=checkpoint.quantization,
        )
    except CheckpointError:
        return
    assert all(
        bool(torch.isfinite(one.a).all() and torch.isfinite(one.b).all()) for one in loaded.by_module.values()
    )
