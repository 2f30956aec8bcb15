import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from spearhead.errors import CalibrationError, CheckpointError, ModelMismatch
from spearhead.model.checkpoint import load_variants, open_checkpoint
from spearhead.model.checkpoint.compensator_files import (
    CompensatorDescription,
    StoredCompensator,
    save_compensators,
)
from spearhead.model.checkpoint.factor_codec import encode_factor
from spearhead.model.quantization import QuantizationScheme
from spearhead.model.weights import Gate
from spearhead.quant import quantize_checkpoint
from spearhead.quant.evaluation import opened_models
from spearhead.quant.layers import ResidentLayers, StreamedLayers

CPU = {"dtype": torch.float32, "device": torch.device("cpu")}
MODULE = "model.layers.1.mlp.down_proj"


@pytest.fixture
def artefact(folder: Path, tmp_path: Path) -> Path:
    output = tmp_path / "tiny-w4"
    quantize_checkpoint(str(folder), output, QuantizationScheme.parse("group32"))
    return output


def compensate(artefact: Path) -> None:
    checkpoint = open_checkpoint(str(artefact))
    generator = torch.Generator().manual_seed(1)

    def random(*shape: int) -> torch.Tensor:
        return 0.1 * torch.randn(*shape, generator=generator)

    stored = StoredCompensator(
        a=encode_factor(random(2, 96), bits=16),
        b=encode_factor(random(2, 64), bits=16),
        gate=Gate(w1=random(3, 2), b1=random(3), w2=random(2, 3), b2=random(2)),
    )
    save_compensators(
        artefact,
        {MODULE: stored},
        CompensatorDescription(
            w4_sha256=checkpoint.weight_digests, quantization=checkpoint.quantization, details={}
        ),
    )
    path = artefact / "config.json"
    config = json.loads(path.read_text())
    config["spear"]["ec_file"] = "spear/ec.safetensors"
    path.write_text(json.dumps(config))


def test_an_artefact_brings_its_source_and_its_compensators(folder: Path, artefact: Path) -> None:
    compensate(artefact)
    with opened_models([str(artefact)], **CPU) as models:
        assert models.reference.name == "fp16"
        assert [model.name for model in models.variants] == ["w4", "w4+ec"]
        w4, compensated = models.variants
        assert compensated.baseline == "w4" and compensated.source is w4.source
        assert compensated.served_bytes > w4.served_bytes > 0
        assert "group 32" in w4.quantization and "1 compensators, 1 gated" in compensated.quantization
        assert models.revision == open_checkpoint(str(folder)).revision


def test_compensators_are_applied_as_the_served_decoder_applies_them(artefact: Path) -> None:
    from spearhead.model.decoder import linear as served_linear

    compensate(artefact)
    loaded = load_variants(open_checkpoint(str(artefact)), variants=["w4+ec"], **CPU)["w4+ec"]
    x = torch.randn(2, 5, 96, generator=torch.Generator().manual_seed(2))
    with opened_models([str(artefact)], **CPU) as models:
        model = models.variants[1]
        ours = model.linear(MODULE, x, model.source.layer(1)["mlp.down_proj.weight"], None)
        plain = x @ model.source.layer(1)["mlp.down_proj.weight"].T
    torch.testing.assert_close(ours, served_linear(x.flatten(0, 1), loaded.layers[1].down).view_as(ours))
    assert (ours - plain).norm() > 1e-3 * plain.norm()


def test_layers_that_do_not_fit_are_streamed(folder: Path, artefact: Path) -> None:
    with opened_models([str(folder), str(artefact)], **CPU) as models:
        assert isinstance(models.reference.source, ResidentLayers) and not models.reference.streamed
    said: list[str] = []
    with opened_models([str(folder), str(artefact)], memory_bytes=1000, tell=said.append, **CPU) as models:
        assert isinstance(models.reference.source, StreamedLayers)
        assert all(model.streamed for model in (models.reference, *models.variants))
    assert [sentence.split(" takes ")[0] for sentence in said] == [str(folder), str(artefact)]
    assert all("read from the disk" in sentence for sentence in said)


def test_several_artefacts_have_names_of_their_own(folder: Path, artefact: Path) -> None:
    schemes = [QuantizationScheme.parse("channel"), QuantizationScheme.parse("group32/7")]
    with opened_models([str(folder), str(artefact)], schemes=schemes, **CPU) as models:
        names = [model.name for model in models.variants]
        assert names == ["channel/7.5:w4", "group32/7:w4", "tiny-w4:w4"]
        rounded = models.variants[0].source.layer(0)["mlp.up_proj.weight"]
        assert not torch.equal(rounded, models.reference.source.layer(0)["mlp.up_proj.weight"])


def test_another_full_precision_model_is_a_variant_and_dots_stay_in_names(
    folder: Path, tmp_path: Path
) -> None:
    other = tmp_path / "tiny-3.2-1b"
    folder.rename(tmp_path / "tiny")
    shutil.copytree(tmp_path / "tiny", other)
    paths = [str(tmp_path / "tiny"), str(other)]
    with opened_models(paths, drafters=[str(other)], **CPU) as models:
        assert [model.name for model in models.variants] == ["tiny-3.2-1b:fp16"]
        assert [model.name for model in models.drafters] == ["tiny-3.2-1b"]


def test_rounding_while_loading_is_what_the_artefact_holds(folder: Path, artefact: Path) -> None:
    scheme = QuantizationScheme.parse("group32")
    with opened_models([str(folder), str(artefact)], schemes=[scheme], **CPU) as models:
        rounded, stored = models.variants
        for name, weight in rounded.source.layer(1).items():
            assert torch.equal(weight, stored.source.layer(1)[name])
        assert rounded.served_bytes == pytest.approx(stored.served_bytes, rel=0.05)


def test_without_full_precision_there_is_nothing_to_measure_against(artefact: Path) -> None:
    path = artefact / "config.json"
    config = json.loads(path.read_text())
    config["spear"]["full_precision"] = "../gone"
    path.write_text(json.dumps(config))
    with (
        pytest.raises(CalibrationError, match="give the full-precision checkpoint as well"),
        opened_models([str(artefact)], **CPU),
    ):
        pass


def test_models_of_another_tokenizer_or_vocabulary_are_refused(
    folder: Path, tiny_checkpoint: Callable[..., Path]
) -> None:
    wider = tiny_checkpoint("llama", vocab_size=400)
    with (
        pytest.raises(ModelMismatch, match="has a vocabulary of 400"),
        opened_models([str(folder), str(wider)], **CPU),
    ):
        pass
    other = tiny_checkpoint("llama")
    document = json.loads((other / "tokenizer.json").read_text())
    document["model"]["merges"].pop()
    (other / "tokenizer.json").write_text(json.dumps(document))
    for arguments in (
        {"paths": [str(folder), str(other)]},
        {"paths": [str(folder)], "drafters": [str(other)]},
    ):
        with pytest.raises(ModelMismatch, match="different tokenizers"), opened_models(**arguments, **CPU):
            pass


def test_a_model_that_was_quantised_from_other_weights_is_refused(
    artefact: Path, tiny_checkpoint: Callable[..., Path]
) -> None:
    other = tiny_checkpoint("llama", seed=7, max_position_embeddings=512)
    with (
        pytest.raises(ModelMismatch, match="tiny-w4 was made from another checkpoint"),
        opened_models([str(other), str(artefact)], **CPU),
    ):
        pass


def test_a_quantised_drafter_is_refused(folder: Path, artefact: Path) -> None:
    with (
        pytest.raises(CheckpointError, match="name the full-precision checkpoint"),
        opened_models([str(folder)], drafters=[str(artefact)], **CPU),
    ):
        pass
