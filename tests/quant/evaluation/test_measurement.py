from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from spearhead.errors import CalibrationError, ModelMismatch
from spearhead.model.quantization import QuantizationScheme
from spearhead.model.weights import Gate, PlacedCompensator
from spearhead.quant.evaluation import (
    EvaluatedModel,
    TextProtocol,
    compensated_linear,
    cut_text,
    measure_text,
    opened_models,
    text_from_sequences,
)
from spearhead.quant.evaluation.texts import EvaluationText
from spearhead.tokenizer import Tokenizer

Make = Callable[..., EvaluatedModel]


@pytest.fixture
def text(folder: Path) -> EvaluationText:
    words = "The rain falls on the hills while a fox verifies drafts. " * 40
    return cut_text("rain", words, Tokenizer.load(folder), TextProtocol(length=48, max_segments=5))


def test_the_perplexity_is_what_transformers_computes_by_hand(
    folder: Path, make_model: Make, text: EvaluationText
) -> None:
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    with torch.no_grad():
        losses = [float(model(row[None], labels=row[None]).loss) for row in text.segments]
    found = measure_text(make_model("fp16"), [], text)
    assert float(found.reference.nll.mean()) == pytest.approx(np.mean(losses), rel=1e-5)
    torch.testing.assert_close(
        torch.from_numpy(found.reference.nll.mean(1)), torch.tensor(losses), rtol=1e-5, atol=1e-5
    )


def test_the_reference_against_itself_has_no_divergence(make_model: Make, text: EvaluationText) -> None:
    found = measure_text(make_model("fp16"), [make_model("w4", quantised=True)], text)
    itself, w4 = found.variants["fp16"], found.variants["w4"]
    assert abs(itself.kl).max() < 1e-6 and itself.agrees.min() == 1
    assert np.array_equal(itself.nll, found.reference.nll)
    assert w4.kl.mean() > 1e-3 and w4.reverse_kl.mean() > 1e-3


def test_streamed_layers_give_what_resident_ones_give(make_model: Make, text: EvaluationText) -> None:
    resident = measure_text(make_model("fp16"), [make_model("w4", quantised=True)], text)
    streamed = measure_text(
        make_model("fp16", streamed=True), [make_model("w4", quantised=True, streamed=True)], text
    )
    np.testing.assert_allclose(streamed.variants["w4"].kl, resident.variants["w4"].kl, rtol=1e-3, atol=1e-5)
    np.testing.assert_allclose(streamed.reference.nll, resident.reference.nll, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("tokens_at_once", [1, 96, 10_000])
def test_results_do_not_depend_on_the_batch(
    make_model: Make, text: EvaluationText, tokens_at_once: int
) -> None:
    variants = [make_model("w4", quantised=True)]
    one = measure_text(make_model("fp16"), variants, text, tokens_at_once=48)
    other = measure_text(make_model("fp16"), variants, text, tokens_at_once=tokens_at_once)
    np.testing.assert_allclose(other.variants["w4"].kl, one.variants["w4"].kl, rtol=1e-3, atol=1e-5)


def test_a_streamed_layer_is_read_once_for_all_segments_that_fit(
    make_model: Make, text: EvaluationText
) -> None:
    model = make_model("fp16", streamed=True)
    reads: list[int] = []

    class Counted:
        config, device, dtype = model.source.config, model.source.device, model.source.dtype
        embedding, final_norm, head = model.source.embedding, model.source.final_norm, model.source.head

        def layer(self, index: int) -> object:
            reads.append(index)
            return model.source.layer(index)

    counted = EvaluatedModel(name="fp16", source=Counted(), streamed=True)
    segment_bytes = 48 * model.source.config.hidden_size * 4
    measure_text(counted, [], text, tokens_at_once=48)
    assert reads == [0, 1]
    measure_text(counted, [], text, tokens_at_once=48, hidden_bytes=2 * segment_bytes)
    assert reads[2:] == [0, 1] * 3


def test_padding_of_unequal_sequences_changes_nothing(make_model: Make) -> None:
    long, short = list(range(3, 23)), list(range(40, 52))
    both = measure_text(make_model("fp16"), [], text_from_sequences("both", [long, short]))
    alone = measure_text(make_model("fp16"), [], text_from_sequences("short", [short]))
    np.testing.assert_allclose(both.reference.nll[1, :11], alone.reference.nll[0], rtol=1e-4, atol=1e-5)
    assert np.isnan(both.reference.nll[1, 11:]).all()


def test_a_compensator_that_holds_the_whole_error_undoes_it(make_model: Make, text: EvaluationText) -> None:
    full, w4 = make_model("fp16"), make_model("w4", quantised=True)
    placed = {}
    for index in range(2):
        for name, weight in full.source.layer(index).items():
            if name.endswith("_proj.weight"):
                error = weight - w4.source.layer(index)[name]
                module = f"model.layers.{index}.{name.removesuffix('.weight')}"
                rows, columns = error.shape
                eye = torch.eye(columns)
                placed[module] = PlacedCompensator(row_offset=7, row_count=rows, a=eye, b=error, gate=None)
    exact = EvaluatedModel(name="w4+ec", source=w4.source, linear=compensated_linear(placed))
    found = measure_text(full, [w4, exact], text)
    assert found.variants["w4"].kl.mean() > 1e-3
    assert abs(found.variants["w4+ec"].kl).max() < 1e-5


def test_a_gate_scales_the_correction(make_model: Make) -> None:
    module, rank = "model.layers.0.mlp.down_proj", 3
    generator = torch.Generator().manual_seed(1)
    a, b, x = (torch.randn(s, generator=generator) for s in ((rank, 6), (5, rank), (2, 4, 6)))
    gate = Gate(
        w1=torch.randn(2, rank, generator=generator),
        b1=torch.zeros(2),
        w2=torch.randn(rank, 2, generator=generator),
        b2=torch.ones(rank),
    )
    code = x @ a.T
    hidden = torch.nn.functional.silu(code.clamp(-8, 8) @ gate.w1.T + gate.b1)
    expected = (2 * torch.sigmoid(hidden @ gate.w2.T + gate.b2) * code) @ b.T
    linear = compensated_linear({module: PlacedCompensator(row_offset=0, row_count=5, a=a, b=b, gate=gate)})
    weight = torch.zeros(5, 6)
    torch.testing.assert_close(linear(module, x, weight, None), expected)
    assert not linear("model.layers.1.mlp.down_proj", x, weight, None).any()


def test_models_of_other_vocabularies_are_refused(
    make_model: Make, tiny_checkpoint: Callable[..., Path], text: EvaluationText
) -> None:
    model = make_model("fp16")

    class Wider:
        config, device, dtype = model.source.config, model.source.device, model.source.dtype
        embedding, final_norm = model.source.embedding, model.source.final_norm
        head = torch.cat((model.source.head, torch.zeros(1, 64)))
        layer = model.source.layer

    with pytest.raises(ModelMismatch, match="vocabularies differ"):
        measure_text(model, [EvaluatedModel(name="wider", source=Wider())], text)
    with pytest.raises(ModelMismatch, match="two models are called"):
        measure_text(model, [make_model("fp16", quantised=True)], text)
    with pytest.raises(ModelMismatch, match="token id 9999"):
        measure_text(model, [], text_from_sequences("other", [[1, 9999]]))


def test_numbers_that_overflow_are_an_error_that_names_the_model(
    make_model: Make, text: EvaluationText
) -> None:
    broken = make_model("broken")
    broken.source.final_norm[3] = torch.inf
    with pytest.raises(CalibrationError, match="hidden states of broken hold NaN or infinity"):
        measure_text(make_model("fp16"), [broken], text)


@pytest.mark.parametrize("which", ["fp16", "broken"])
def test_logits_that_overflow_are_an_error_that_names_the_model(
    make_model: Make, text: EvaluationText, which: str
) -> None:
    model = make_model("fp16")

    class Huge:
        config, device, dtype = model.source.config, model.source.device, model.source.dtype
        embedding, final_norm, layer = model.source.embedding, model.source.final_norm, model.source.layer
        head = model.source.head.clone()

    Huge.head[7] *= 1e38  # hidden states are finite, and most logits are
    broken = EvaluatedModel(name=which, source=Huge())
    with pytest.raises(
        CalibrationError, match=rf"logits of {which} overflow on \d+ of \d+ tokens in or after"
    ):
        measure_text(*((broken, []) if which == "fp16" else (model, [broken])), text)


def test_a_head_of_another_type_is_measured_in_float32(make_model: Make, text: EvaluationText) -> None:
    model = make_model("fp16")

    class Narrow:
        config, device, dtype = model.source.config, model.source.device, model.source.dtype
        embedding, final_norm, layer = model.source.embedding, model.source.final_norm, model.source.layer
        head = model.source.head.bfloat16()

    found = measure_text(model, [EvaluatedModel(name="bf16 head", source=Narrow())], text)
    assert 0 < found.variants["bf16 head"].kl.mean() < 0.1


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device: results on a GPU are not compared")
def test_a_gpu_measures_what_the_processor_measures(folder: Path, text: EvaluationText) -> None:
    found = []
    for device in (torch.device("cpu"), torch.device("cuda")):
        schemes = [QuantizationScheme.parse("group32")]
        with opened_models([str(folder)], schemes=schemes, dtype=torch.float32, device=device) as models:
            found.append(measure_text(models.reference, models.variants, text))
    cpu, gpu = (one.variants["w4"] for one in found)
    np.testing.assert_allclose(gpu.nll, cpu.nll, rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(gpu.kl, cpu.kl, rtol=1e-2, atol=1e-5)
    assert np.mean(gpu.agrees == cpu.agrees) > 0.99
    assert abs(found[1].variants["fp16"].kl).max() < 1e-6
