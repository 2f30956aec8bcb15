"""The shape of a decoder: everything about a model that is not a tensor.

Llama, Qwen2, Qwen3 and Mistral are one decoder with a few switches; :class:`ModelConfig` holds them.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Self, cast

from spearhead.errors import CheckpointError
from spearhead.model.hugging_face import (
    check_supported,
    optional_int,
    parse_rope,
    require_int,
    sliding_windows,
    token_ids,
)
from spearhead.model.rope import RopeConfig, inverse_frequencies

__all__ = ["Architecture", "ModelConfig", "RopeConfig", "inverse_frequencies"]

Architecture = Literal["llama", "qwen2", "qwen3", "mistral"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """A decoder-only transformer with RMSNorm, RoPE, grouped-query attention and SwiGLU.

    Attributes:
        architecture: Family; the other fields already say everything that differs between families.
        hidden_size: D, width of the residual stream.
        intermediate_size: Width of the MLP.
        layer_count: Number of decoder layers.
        head_count: H, query heads.
        kv_head_count: Key and value heads; divides ``head_count``.
        head_dim: Size of one head; ``head_count * head_dim`` need not equal ``hidden_size``.
        vocab_size: V, rows of the embedding; may exceed what the tokenizer can produce.
        context_length: Longest sequence in tokens.
        rms_norm_eps: Added to the mean square in every norm.
        rope: Position embeddings.
        qk_norm: RMSNorm over each query and key head before RoPE.
        qkv_bias: Biases on the query, key and value projections.
        output_bias: Bias on the attention's output projection.
        mlp_bias: Biases on the MLP's projections.
        tie_word_embeddings: The head is the embedding.
        sliding_windows: One a layer: how many positions a token sees, itself included; ``None`` = all.
        eos_token_ids: Tokens that end a sequence.
        bos_token_id: Token that starts a sequence, if the model has one.
    """

    architecture: Architecture
    hidden_size: int
    intermediate_size: int
    layer_count: int
    head_count: int
    kv_head_count: int
    head_dim: int
    vocab_size: int
    context_length: int
    rms_norm_eps: float
    rope: RopeConfig
    qk_norm: bool
    qkv_bias: bool
    output_bias: bool
    mlp_bias: bool
    tie_word_embeddings: bool
    sliding_windows: tuple[int | None, ...]
    eos_token_ids: tuple[int, ...]
    bos_token_id: int | None

    def __post_init__(self) -> None:
        if self.head_count % self.kv_head_count:
            raise CheckpointError(
                f"num_attention_heads {self.head_count} is not a multiple of num_key_value_heads "
                f"{self.kv_head_count}; config.json does not describe a usable model"
            )
        if self.head_dim % 2:
            raise CheckpointError(f"head_dim {self.head_dim} is odd; rotary embeddings need an even head_dim")

    @classmethod
    def from_hugging_face(
        cls, config: Mapping[str, Any], generation_config: Mapping[str, Any] | None = None
    ) -> Self:
        """Reads a ``config.json``, as transformers 4 or 5 spells it.

        Args:
            config: The parsed ``config.json``.
            generation_config: The parsed ``generation_config.json``; its end-of-sequence tokens win.

        Raises:
            CheckpointError: Missing key, or something that this decoder does not compute, by name.
        """
        check_supported(config)
        family = cast(Architecture, config["model_type"])
        head_count = require_int(config, "num_attention_heads")
        hidden_size = require_int(config, "hidden_size")
        attention_bias = family in ("llama", "qwen3") and bool(config.get("attention_bias", False))
        eos_source = (
            generation_config if (generation_config or {}).get("eos_token_id") is not None else config
        )
        return cls(
            architecture=family,
            hidden_size=hidden_size,
            intermediate_size=require_int(config, "intermediate_size"),
            layer_count=require_int(config, "num_hidden_layers"),
            head_count=head_count,
            kv_head_count=_kv_head_count(config, family, head_count),
            head_dim=_head_dim(config, family, hidden_size, head_count),
            vocab_size=require_int(config, "vocab_size"),
            context_length=require_int(config, "max_position_embeddings"),
            rms_norm_eps=float(config.get("rms_norm_eps", 1e-6)),
            rope=parse_rope(config),
            qk_norm=family == "qwen3",
            qkv_bias=family == "qwen2" or attention_bias,
            output_bias=attention_bias,
            mlp_bias=family == "llama" and bool(config.get("mlp_bias", False)),
            tie_word_embeddings=bool(config.get("tie_word_embeddings", False)),
            sliding_windows=sliding_windows(config),
            eos_token_ids=token_ids(eos_source or {}, "eos_token_id"),
            bos_token_id=next(iter(token_ids(config, "bos_token_id")), None),
        )


def _kv_head_count(config: Mapping[str, Any], family: Architecture, head_count: int) -> int:
    # Only Llama has checkpoints from before grouped-query attention, without the key.
    if family == "llama" or config.get("num_key_value_heads", 0) is None:
        return optional_int(config, "num_key_value_heads") or head_count
    return require_int(config, "num_key_value_heads")


def _head_dim(config: Mapping[str, Any], family: Architecture, hidden_size: int, head_count: int) -> int:
    head_dim = optional_int(config, "head_dim")
    if head_dim is not None:
        return head_dim
    if family == "qwen3":
        return 128
    if hidden_size % head_count:
        raise CheckpointError(
            f"hidden_size {hidden_size} is not a multiple of num_attention_heads {head_count} and "
            "config.json has no head_dim"
        )
    return hidden_size // head_count
