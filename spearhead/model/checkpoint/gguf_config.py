"""A ``config.json`` from a GGUF file's metadata."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from spearhead.errors import CheckpointError
from spearhead.model.rope import RopeConfig, inverse_frequencies

_CLASSES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}


def config_from_gguf(
    metadata: Mapping[str, Any],
    shapes: Mapping[str, tuple[int, ...]],
    *,
    rope_divisors: Sequence[float] | None,
    weight_dtype: str,
) -> dict[str, Any]:
    """What ``config.json`` would say about the model in a GGUF file.

    Args:
        metadata: The file's key-value pairs.
        shapes: Its tensors by GGUF name, rows first.
        rope_divisors: The ``rope_freqs`` tensor: what divides each rotary frequency.
        weight_dtype: ``float16``, ``bfloat16`` or ``float32``.

    Raises:
        CheckpointError: Missing keys, or something that cannot be served.
    """
    reader = _Reader(metadata)
    family = reader.architecture
    heads, hidden = reader.integer("attention.head_count"), reader.integer("embedding_length")
    head_dim = reader.integer("attention.key_length", hidden // heads)
    reader.refuse_unless("rope.dimension_count", head_dim)
    reader.refuse_unless("attention.value_length", head_dim)
    reader.refuse_unless("expert_count", 0)
    theta = _short(reader.get("rope.freq_base", 10_000.0))
    config = {
        "architectures": [_CLASSES[family]],
        "model_type": family,
        "hidden_act": "silu",
        "hidden_size": hidden,
        "intermediate_size": reader.integer("feed_forward_length"),
        "num_hidden_layers": reader.integer("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": reader.integer("attention.head_count_kv", heads),
        "head_dim": head_dim,
        "vocab_size": shapes["token_embd.weight"][0] if "token_embd.weight" in shapes else 0,
        "max_position_embeddings": reader.integer("context_length"),
        "rms_norm_eps": _short(reader.get("attention.layer_norm_rms_epsilon", 1e-6)),
        "rope_theta": theta,
        "rope_scaling": _rope_scaling(reader, rope_divisors, theta, head_dim),
        "attention_bias": "blk.0.attn_q.bias" in shapes,
        "mlp_bias": "blk.0.ffn_down.bias" in shapes,
        "tie_word_embeddings": "output.weight" not in shapes,
        "bos_token_id": metadata.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": _eos_token_ids(metadata),
        "torch_dtype": weight_dtype,
    }
    window = reader.get("attention.sliding_window", None)
    if family == "llama" and window:
        # GGUF has no architecture of its own for Mistral.
        config |= {
            "model_type": "mistral",
            "architectures": ["MistralForCausalLM"],
            "sliding_window": int(window),
        }
    return config


class _Reader:
    """Metadata keys of the file's architecture."""

    def __init__(self, metadata: Mapping[str, Any]) -> None:
        self._metadata = metadata
        self.architecture = str(metadata.get("general.architecture"))
        if self.architecture not in _CLASSES:
            raise CheckpointError(
                f"GGUF architecture {self.architecture!r} is not supported; supported are "
                f"{', '.join(_CLASSES)} (Mistral comes as llama)"
            )

    def get(self, key: str, default: Any) -> Any:
        return self._metadata.get(f"{self.architecture}.{key}", default)

    def integer(self, key: str, default: int | None = None) -> int:
        value = self.get(key, default)
        if not isinstance(value, int | np.integer):
            raise CheckpointError(
                f"GGUF metadata {self.architecture}.{key} is {value!r}; a single integer is needed"
            )
        return int(value)

    def refuse_unless(self, key: str, wanted: int) -> None:
        value = self.integer(key, wanted)
        if value != wanted:
            raise CheckpointError(
                f"GGUF metadata {self.architecture}.{key} is {value}; only {wanted} is supported here"
            )


def _rope_scaling(
    reader: _Reader, divisors: Sequence[float] | None, theta: float, head_dim: int
) -> dict[str, Any] | None:
    if divisors is not None:
        return _llama3_scaling(divisors, theta, head_dim)
    kind = reader.get("rope.scaling.type", "none")
    factor = float(reader.get("rope.scaling.factor", reader.get("rope.scale_linear", 1.0)))
    if kind == "none" or (kind == "linear" and factor == 1.0):
        return None
    if reader.get("rope.scaling.attn_factor", 1.0) != 1.0:
        raise CheckpointError("GGUF rope.scaling.attn_factor is not supported; choose another checkpoint")
    scaling = {"rope_type": kind, "factor": factor}
    if kind == "yarn":
        scaling["original_max_position_embeddings"] = reader.integer("rope.scaling.original_context_length")
        scaling["beta_fast"] = float(reader.get("rope.scaling.yarn_beta_fast", 32.0))
        scaling["beta_slow"] = float(reader.get("rope.scaling.yarn_beta_slow", 1.0))
    return scaling


def _llama3_scaling(divisors: Sequence[float], theta: float, head_dim: int) -> dict[str, Any]:
    """Llama 3's parameters, which GGUF keeps only as the divisors that follow from them."""
    found = torch.tensor(divisors)
    rope = RopeConfig(
        theta=theta,
        scaling="llama3",
        factor=round(float(found.max()), 3),
        original_context_length=8192,
        low_freq_factor=1.0,
        high_freq_factor=4.0,
    )
    plain, _ = inverse_frequencies(RopeConfig(theta=theta), head_dim)
    scaled, _ = inverse_frequencies(rope, head_dim)
    if found.shape != plain.shape or not torch.allclose(plain / scaled, found, rtol=1e-4):
        raise CheckpointError(
            "the rope_freqs of this GGUF file do not follow Llama 3's rule (factors 1 and 4, 8192 tokens); "
            "use the safetensors checkpoint of the model instead"
        )
    return {
        "rope_type": "llama3",
        "factor": rope.factor,
        "original_max_position_embeddings": rope.original_context_length,
        "low_freq_factor": rope.low_freq_factor,
        "high_freq_factor": rope.high_freq_factor,
    }


def _eos_token_ids(metadata: Mapping[str, Any]) -> list[int]:
    keys = ("tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id")
    return sorted({int(metadata[key]) for key in keys if key in metadata})


def _short(value: float) -> float:
    """The shortest decimal that is the same float32: GGUF stores 1e-5 as 9.999999747e-06."""
    return float(str(np.float32(value)))
