from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from spearhead.errors import CalibrationError
from spearhead.model.architecture import ModelConfig
from spearhead.quant.calibration import CalibrationConfig, CalibrationRequest, calibrate
from spearhead.quant.calibration.sequences import counted, in_step
from spearhead.quant.self_sampling import SampledSequences, SamplingOrigin, SamplingTokens, SelfSamplingConfig

Artefact = Callable[..., Path]
Request = Callable[..., CalibrationRequest]
_HUGE = 1 << 40


def _model(layers: int, kv_heads: int, head_dim: int) -> ModelConfig:
    shape = {
        "model_type": "llama",
        "hidden_size": 32 * head_dim,
        "intermediate_size": 64,
        "num_hidden_layers": layers,
        "num_attention_heads": 32,
        "num_key_value_heads": kv_heads,
        "vocab_size": 8,
        "max_position_embeddings": 4096,
    }
    return ModelConfig.from_hugging_face(shape)


@pytest.mark.parametrize(
    ("layers", "kv_heads", "head_dim", "rows"),
    [(30, 4, 48, 6000), (32, 8, 128, 1152), (10**6, 32, 128, 1)],  # the first as large as SmolLM2-135M's
)
def test_how_many_are_written_in_step_follows_from_the_model_alone(
    layers: int, kv_heads: int, head_dim: int, rows: int
) -> None:
    sampling = CalibrationConfig.of_recipe("full").sampling
    found = in_step(sampling, _model(layers, kv_heads, head_dim), torch.bfloat16)
    assert found == replace(sampling, batch_size=rows)


def test_samples_of_an_earlier_run_serve_whatever_was_written_in_step(
    artefact: Artefact, request_for: Request, tmp_path: Path
) -> None:
    path, file = artefact(), tmp_path / "samples.safetensors"
    request = request_for(path)
    first = calibrate(request, after=lambda found: found.texts.whole.save(file))
    sampling = replace(request.config.sampling, batch_size=_HUGE)
    other = replace(request, config=replace(request.config, sampling=sampling), sequences=file, force=True)
    second = calibrate(other)
    assert torch.equal(second.texts.whole.token_ids, first.texts.whole.token_ids)
    assert second.texts.whole.origin == first.texts.whole.origin


def test_keys_and_values_that_do_not_fit_are_refused_with_numbers(
    artefact: Artefact, request_for: Request, tmp_path: Path
) -> None:
    request = request_for(artefact(max_position_embeddings=_HUGE))
    sampling = replace(request.config.sampling, length=1 << 36, batch_size=4)
    with pytest.raises(
        CalibrationError,
        match=r"keys and values of 1 sequences of \d+ tokens in step take \d+\.\d GiB, and \d+\.\d of the "
        r"\d+\.\d GiB of cpu are free; lower --sampling-batch",
    ):
        calibrate(replace(request, config=replace(request.config, sampling=sampling)))


def test_neither_the_first_token_of_a_document_nor_the_last_before_another_counts() -> None:
    starts = torch.zeros(2, 6, dtype=torch.bool)
    starts[:, 0] = starts[1, 4] = True
    sequences = SampledSequences(
        token_ids=torch.zeros(2, 6, dtype=torch.int32),
        document_starts=starts,
        rejected=0,
        origin=SamplingOrigin(
            config=SelfSamplingConfig(sequence_count=2, length=6),
            tokens=SamplingTokens(vocab_size=8, bos_token_id=1, eos_token_ids=(2,)),
            revision="sha256:aa",
        ),
    )
    assert counted(sequences, 1).tolist() == [[0, 1, 1, 1, 1, 1], [0, 1, 1, 0, 0, 1]]
