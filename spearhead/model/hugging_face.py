"""Reading ``config.json``: the spellings of transformers 4 and 5, and what is refused."""

from collections.abc import Mapping
from typing import Any, cast

from spearhead.errors import CheckpointError
from spearhead.model.rope import RopeConfig, RopeScaling

_ARCHITECTURES = ("llama", "qwen2", "qwen3", "mistral")
_SCALINGS: dict[str, RopeScaling] = {
    "default": "none",
    "linear": "linear",
    "llama3": "llama3",
    "yarn": "yarn",
}


def check_supported(config: Mapping[str, Any]) -> None:
    """Refuses, by name, what the decoder would compute wrongly.

    Raises:
        CheckpointError: Unknown architecture, activation or partial rotary embedding.
    """
    model_type = config.get("model_type")
    if model_type not in _ARCHITECTURES:
        raise CheckpointError(
            f"model_type is {model_type!r}; supported architectures are {', '.join(_ARCHITECTURES)}. "
            "Choose a checkpoint of one of these"
        )
    activation = config.get("hidden_act", "silu")
    if activation != "silu":
        raise CheckpointError(f"hidden_act is {activation!r}; only silu is supported")
    for parameters in (config, _rope_parameters(config)):
        share = parameters.get("partial_rotary_factor")
        if share not in (None, 1, 1.0):
            raise CheckpointError(f"partial_rotary_factor is {share}; only whole heads (1.0) are supported")


def require_int(config: Mapping[str, Any], key: str) -> int:
    """A positive integer that must be there.

    Raises:
        CheckpointError: Missing, not an integer, or below 1.
    """
    value = optional_int(config, key)
    if value is None:
        raise CheckpointError(f"config.json has no {key}; is this the folder of a whole checkpoint?")
    return value


def optional_int(config: Mapping[str, Any], key: str) -> int | None:
    """A positive integer, or ``None`` when missing or null.

    Raises:
        CheckpointError: Not an integer, or below 1.
    """
    value = config.get(key)
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise CheckpointError(f"config.json: {key} is {value!r}; it must be an integer of at least 1")
    return value


def token_ids(config: Mapping[str, Any], key: str) -> tuple[int, ...]:
    """Token ids given as nothing, one number or a list."""
    value = config.get(key)
    if value is None:
        return ()
    return tuple(value) if isinstance(value, list) else (int(value),)


def parse_rope(config: Mapping[str, Any]) -> RopeConfig:
    """Position embeddings from ``rope_parameters`` (5) or ``rope_theta`` and ``rope_scaling`` (4).

    Raises:
        CheckpointError: A scaling that is not supported, or one without its parameters.
    """
    given = _rope_parameters(config)
    if any(isinstance(value, Mapping) for value in given.values()):
        raise CheckpointError("rope_parameters differ from layer to layer; only one set a model is supported")
    kind = given.get("rope_type", given.get("type", "default"))
    if kind not in _SCALINGS:
        raise CheckpointError(
            f"RoPE scaling {kind!r} is not supported; supported: default, linear, llama3, yarn. Remove the "
            "scaling from config.json to serve the original context, or choose another checkpoint"
        )
    theta = float(given.get("rope_theta") or config.get("rope_theta") or 10_000.0)
    scaling = _SCALINGS[kind]
    if scaling == "none":
        return RopeConfig(theta=theta)
    context_length = require_int(config, "max_position_embeddings")
    original = (
        config.get("original_max_position_embeddings")
        or given.get("original_max_position_embeddings")
        or context_length
    )
    factor = given.get("factor")
    if factor is None and scaling == "yarn":
        factor = context_length / original
    if factor is None:
        raise CheckpointError(f"RoPE scaling {kind!r} has no factor in config.json")
    optional = {
        key: float(given[key])
        for key in (
            "low_freq_factor",
            "high_freq_factor",
            "beta_fast",
            "beta_slow",
            "attention_factor",
            "mscale",
            "mscale_all_dim",
        )
        if given.get(key) is not None
    }
    if scaling == "llama3" and not {"low_freq_factor", "high_freq_factor"} <= optional.keys():
        raise CheckpointError(
            "RoPE scaling 'llama3' needs low_freq_factor and high_freq_factor in config.json"
        )
    return RopeConfig(
        theta=theta,
        scaling=scaling,
        factor=float(factor),
        original_context_length=int(original),
        truncate=bool(given.get("truncate", True)),
        **optional,
    )


def _rope_parameters(config: Mapping[str, Any]) -> Mapping[str, Any]:
    return cast(Mapping[str, Any], config.get("rope_parameters") or config.get("rope_scaling") or {})


def sliding_windows(config: Mapping[str, Any]) -> tuple[int | None, ...]:
    """The attention window of each layer, as each architecture configures it.

    Raises:
        CheckpointError: A layer type other than full or sliding attention.
    """
    layer_count = require_int(config, "num_hidden_layers")
    family = config["model_type"]
    if family == "mistral":
        # Without the key, transformers takes 4096; null switches the window off.
        window = optional_int({"sliding_window": 4096} | dict(config), "sliding_window")
        return (window,) * layer_count
    if family == "llama" or not config.get("use_sliding_window", False):
        return (None,) * layer_count
    window = optional_int({"sliding_window": 4096} | dict(config), "sliding_window")
    layer_types = config.get("layer_types")
    if layer_types is None:
        first = int(config.get("max_window_layers", 28))
        return tuple(window if layer >= first else None for layer in range(layer_count))
    unknown = set(layer_types) - {"full_attention", "sliding_attention"}
    if unknown or len(layer_types) != layer_count:
        raise CheckpointError(
            f"layer_types must name full_attention or sliding_attention for each of {layer_count} layers; "
            f"found {len(layer_types)} layers{''.join(f', {name}' for name in sorted(unknown))}"
        )
    return tuple(window if kind == "sliding_attention" else None for kind in layer_types)
