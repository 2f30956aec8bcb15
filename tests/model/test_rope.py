from typing import Any

import pytest
import torch
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from spearhead.model.architecture import ModelConfig, RopeConfig, inverse_frequencies

SCALINGS: dict[str, dict[str, Any]] = {
    "linear": {"rope_type": "linear", "factor": 4.0},
    "llama3": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    },
    "llama3, short context": {
        "rope_type": "llama3",
        "factor": 32.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    },
    "yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768},
    "yarn, own ramp": {
        "rope_type": "yarn",
        "factor": 16.0,
        "original_max_position_embeddings": 512,
        "beta_fast": 20.0,
        "beta_slow": 2.0,
        "truncate": False,
    },
    "yarn, attention factor": {
        "rope_type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": 4096,
        "attention_factor": 1.5,
    },
    "yarn, mscales": {
        "rope_type": "yarn",
        "factor": 40.0,
        "original_max_position_embeddings": 4096,
        "mscale": 1.0,
        "mscale_all_dim": 0.8,
    },
    "yarn, empty ramp": {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 4},
}


@pytest.mark.parametrize("theta", [10_000.0, 500_000.0])
@pytest.mark.parametrize("head_dim", [16, 128])
@pytest.mark.parametrize("name", SCALINGS)
def test_scaled_frequencies_equal_those_of_transformers(name: str, head_dim: int, theta: float) -> None:
    parameters = SCALINGS[name] | {"rope_theta": theta}
    config = LlamaConfig(
        head_dim=head_dim, rope_parameters=dict(parameters), max_position_embeddings=131072, vocab_size=100
    )
    expected, expected_factor = ROPE_INIT_FUNCTIONS[parameters["rope_type"]](config, "cpu")
    ours = ModelConfig.from_hugging_face(config.to_dict()).rope
    frequencies, factor = inverse_frequencies(ours, head_dim)
    assert frequencies.dtype == torch.float32
    torch.testing.assert_close(frequencies, expected, rtol=1e-6, atol=0)
    assert factor == pytest.approx(expected_factor, rel=1e-9)


def test_without_scaling_wavelengths_are_a_geometric_series() -> None:
    frequencies, factor = inverse_frequencies(RopeConfig(theta=10_000.0), 8)
    torch.testing.assert_close(frequencies, torch.tensor([1.0, 0.1, 0.01, 0.001]))
    assert factor == 1.0
