"""Which tensors a model of a given shape has, and the check that a checkpoint has them."""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from spearhead.errors import CheckpointError
from spearhead.model.architecture import ModelConfig
from spearhead.model.quantization import InputGroups, QuantizationScheme

EMBEDDING = "model.embed_tokens.weight"
FINAL_NORM = "model.norm.weight"
HEAD = "lm_head.weight"
_SHOWN = 5


def layer_name(layer: int, part: str) -> str:
    """Name of a part of a layer, such as ``model.layers.0.self_attn.q_proj``."""
    return f"model.layers.{layer}.{part}"


def projections(config: ModelConfig) -> dict[str, tuple[int, int]]:
    """The linear modules of one layer: name within the layer to (outputs, inputs)."""
    hidden, inner = config.hidden_size, config.intermediate_size
    query = config.head_count * config.head_dim
    key = config.kv_head_count * config.head_dim
    return {
        "self_attn.q_proj": (query, hidden),
        "self_attn.k_proj": (key, hidden),
        "self_attn.v_proj": (key, hidden),
        "self_attn.o_proj": (hidden, query),
        "mlp.gate_proj": (inner, hidden),
        "mlp.up_proj": (inner, hidden),
        "mlp.down_proj": (hidden, inner),
    }


def has_bias(config: ModelConfig, projection: str) -> bool:
    """Whether a projection of :func:`projections` has a bias."""
    if projection.startswith("mlp."):
        return config.mlp_bias
    return config.output_bias if projection == "self_attn.o_proj" else config.qkv_bias


def linear_modules(config: ModelConfig) -> dict[str, tuple[int, int]]:
    """Every linear module that may be quantised: full name to (outputs, inputs)."""
    return {
        layer_name(layer, part): shape
        for layer in range(config.layer_count)
        for part, shape in projections(config).items()
    }


def expected_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Every tensor of the model by name, each counted once: a tied head is the embedding."""
    shapes: dict[str, tuple[int, ...]] = {EMBEDDING: (config.vocab_size, config.hidden_size)}
    for layer in range(config.layer_count):
        for part, (outputs, inputs) in projections(config).items():
            shapes[layer_name(layer, f"{part}.weight")] = (outputs, inputs)
            if has_bias(config, part):
                shapes[layer_name(layer, f"{part}.bias")] = (outputs,)
        shapes[layer_name(layer, "input_layernorm.weight")] = (config.hidden_size,)
        shapes[layer_name(layer, "post_attention_layernorm.weight")] = (config.hidden_size,)
        if config.qk_norm:
            shapes[layer_name(layer, "self_attn.q_norm.weight")] = (config.head_dim,)
            shapes[layer_name(layer, "self_attn.k_norm.weight")] = (config.head_dim,)
    shapes[FINAL_NORM] = (config.hidden_size,)
    if not config.tie_word_embeddings:
        shapes[HEAD] = (config.vocab_size, config.hidden_size)
    return shapes


def check_shapes(config: ModelConfig, found: Mapping[str, tuple[int, ...]], where: str) -> None:
    """Compares what a checkpoint has with what its configuration says.

    Raises:
        CheckpointError: Tensors that are missing, of another shape, or that the decoder would ignore.
    """
    expected = expected_shapes(config)
    missing = [name for name in expected if name not in found]
    if missing:
        raise CheckpointError(f"{where}: missing {_some(missing)}. Download the checkpoint again")
    wrong = [
        f"{name} has shape {found[name]}, expected {shape}"
        for name, shape in expected.items()
        if found[name] != shape
    ]
    if wrong:
        raise CheckpointError(f"{where}: {_some(wrong)}. The weights belong to another config.json")
    # Old Llama checkpoints store rotary frequencies; tied ones may store the head again.
    extra = [name for name in found if name not in expected and not name.endswith("rotary_emb.inv_freq")]
    extra = [name for name in extra if not (config.tie_word_embeddings and name == HEAD)]
    if extra:
        raise CheckpointError(
            f"{where}: {_some(extra)} is not part of a {config.architecture} model as config.json describes "
            "it, and ignoring it would change the output"
        )


def check_tied_head(
    config: ModelConfig, found: Mapping[str, tuple[int, ...]], tensor: Callable[[str], Tensor], where: str
) -> None:
    """Refuses a stored head that a tied model would not use; one that repeats the embedding does no harm.

    Args:
        config: The model.
        found: Tensors that the checkpoint has.
        tensor: Reads one.
        where: For messages.

    Raises:
        CheckpointError: It is another matrix, which some readers take and others do not.
    """
    if not config.tie_word_embeddings or HEAD not in found:
        return
    embedding = tensor(EMBEDDING)
    if not torch.equal(tensor(HEAD).to(embedding.dtype), embedding):
        raise CheckpointError(
            f"{where} stores {HEAD}, which differs from {EMBEDDING}, and config.json ties the two; set "
            "tie_word_embeddings to false, or remove the tensor"
        )


def scheme_groups(config: ModelConfig, scheme: QuantizationScheme) -> dict[str, InputGroups]:
    """The groups of a model that is quantised at load."""
    return dict.fromkeys(linear_modules(config), InputGroups(size=scheme.group_size))


def check_groups(config: ModelConfig, scheme: QuantizationScheme) -> None:
    """Refuses a group size that does not divide the inputs of every module.

    Raises:
        CheckpointError: All modules that do not fit, and schemes that would.
    """
    shapes = projections(config)
    unfit = [f"{name} (K = {k})" for name, (_, k) in shapes.items() if not scheme.fits(k)]
    if not unfit:
        return
    others = [
        f"group{size}" for size in (128, 64, 32) if all(inputs % size == 0 for _, inputs in shapes.values())
    ]
    raise CheckpointError(
        f"group size {scheme.group_size} does not divide the inputs of {', '.join(unfit)} in each of "
        f"{config.layer_count} layers; use {', '.join([*others, 'channel'])}"
    )


def _some(items: list[str]) -> str:
    rest = len(items) - _SHOWN
    return ", ".join(items[:_SHOWN]) + (f" and {rest} more" if rest > 0 else "")
