from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from compressed_tensors.compressors.pack_quantized import PackedQuantizationCompressor
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
from compressed_tensors.quantization.utils import calculate_qparams
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from spearhead.errors import CheckpointError
from spearhead.model.checkpoint import open_checkpoint
from spearhead.model.quantization import InputGroups
from tests.model.checkpoint.published import edit_config, edit_tensors, publish

Factory = Callable[..., Path]
Q_PROJ, DOWN = "model.layers.0.self_attn.q_proj", "model.layers.1.mlp.down_proj"
GROUP32: dict[str, Any] = {"num_bits": 4, "symmetric": True, "strategy": "group", "group_size": 32}
ASYMMETRIC = GROUP32 | {"symmetric": False}
CHANNEL8: dict[str, Any] = {"num_bits": 8, "symmetric": True, "strategy": "channel"}


def theirs(weight: torch.Tensor, settings: dict[str, Any]) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """What the library stores for a weight, and what it makes of that."""
    arguments = QuantizationArgs(**{key: value for key, value in settings.items() if key != "actorder"})
    scheme = QuantizationScheme(targets=["Linear"], weights=arguments)
    grouped = weight.reshape(weight.shape[0], -1, settings.get("group_size") or weight.shape[1])
    scales, zeros = calculate_qparams(grouped.amin(2), grouped.amax(2), arguments)
    state = {"weight": weight, "weight_scale": scales, "weight_zero_point": zeros}
    packed = PackedQuantizationCompressor.compress(state, scheme)
    return packed, PackedQuantizationCompressor.decompress(packed, scheme)["weight"]


def config(groups: dict[str, Any], ignore: tuple[str, ...] = ("lm_head",)) -> dict[str, Any]:
    """A whole quantization_config from targets to settings."""
    return {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "quantization_status": "compressed",
        "ignore": list(ignore),
        "config_groups": {
            f"group_{i}": {
                "targets": targets.split(),
                "weights": {"type": "int", "dynamic": False, **settings},
                "input_activations": None,
                "output_activations": None,
            }
            for i, (targets, settings) in enumerate(groups.items())
        },
    }


def write(
    source: Path, settings: Callable[[str], dict[str, Any] | None], quantization: dict[str, Any]
) -> tuple[Path, dict[str, torch.Tensor]]:
    """A folder by the library, and the weights that it reads back."""
    expected = {}

    def encode(module: str, weight: torch.Tensor) -> dict[str, torch.Tensor]:
        wanted = settings(module)
        if wanted is None:
            return {}
        packed, expected[module] = theirs(weight, wanted)
        return packed

    return publish(source, source.parent / "packed", quantization, encode), expected


@pytest.fixture
def asymmetric(tiny_checkpoint: Factory) -> Path:
    return write(tiny_checkpoint("llama"), lambda module: ASYMMETRIC, config({"Linear": ASYMMETRIC}))[0]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize(
    ("settings", "description"),
    [
        (GROUP32, "w4 symmetric, group 32"),
        (ASYMMETRIC, "w4 asymmetric, group 32"),
        (CHANNEL8, "w8 symmetric, per channel"),
        (CHANNEL8 | {"symmetric": False}, "w8 asymmetric, per channel"),
        (CHANNEL8 | {"num_bits": 4, "symmetric": False}, "w4 asymmetric, per channel"),
        (GROUP32 | {"actorder": "weight"}, "w4 symmetric, group 32"),
    ],
)
def test_weights_are_what_the_library_reads(
    tiny_checkpoint: Factory, settings: dict[str, Any], description: str, dtype: str
) -> None:
    source = tiny_checkpoint("qwen2", dtype=dtype)
    folder, expected = write(source, lambda module: settings, config({"Linear": settings}))
    checkpoint = open_checkpoint(str(folder))
    assert checkpoint.quantization == description
    assert checkpoint.weight_dtype == dtype
    for module, weight in expected.items():
        assert torch.equal(checkpoint.tensor(f"{module}.weight").to(weight.dtype), weight), module
    # transformers 5.24 cannot load packed zero points, so that the library is the only witness of those.
    if settings["symmetric"]:
        assert torch.equal(logits(folder, dtype), logits_of_ours(source, checkpoint, dtype))


def logits(folder: Path, dtype: str) -> torch.Tensor:
    with torch.inference_mode():
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype)).eval()
        return model(torch.arange(3, 30)[None]).logits


def logits_of_ours(source: Path, checkpoint: Any, dtype: str) -> torch.Tensor:
    """transformers' full-precision model with every parameter as we read it."""
    with torch.inference_mode():
        model = AutoModelForCausalLM.from_pretrained(source, dtype=getattr(torch, dtype)).eval()
        for name, parameter in model.named_parameters():
            parameter.copy_(checkpoint.tensor(name))
        return model(torch.arange(3, 30)[None]).logits


def test_each_module_follows_its_own_target(tiny_checkpoint: Factory) -> None:
    """A name wins over a pattern, a pattern over a class; what is ignored or named by nobody stays dense."""
    source = tiny_checkpoint("llama", dtype="bfloat16")
    group16 = GROUP32 | {"group_size": 16}
    quantization = config(
        {"Linear": GROUP32, r"re:.*self_attn\.[qk]_proj$": group16, f"{Q_PROJ} re:.*down_proj": CHANNEL8},
        ("lm_head", "re:.*layers.0.mlp.*", "model.layers.1.self_attn.v_proj"),
    )

    def settings(module: str) -> dict[str, Any] | None:
        if "layers.0.mlp" in module or module == "model.layers.1.self_attn.v_proj":
            return None
        if module in (Q_PROJ, DOWN):
            return CHANNEL8
        return group16 if module.endswith(("q_proj", "k_proj")) else GROUP32

    folder, expected = write(source, settings, quantization)
    checkpoint = open_checkpoint(str(folder))
    for module, weight in expected.items():
        assert torch.equal(checkpoint.tensor(f"{module}.weight").bfloat16(), weight), module
    assert checkpoint.quantized_weight("model.layers.1.self_attn.v_proj") is None
    assert checkpoint.input_groups.keys() == expected.keys()
    assert checkpoint.input_groups[Q_PROJ] == InputGroups(size=0)
    assert checkpoint.input_groups["model.layers.1.self_attn.q_proj"] == InputGroups(size=16)
    assert checkpoint.quantization == (
        "w4 symmetric, group 16 and w4 symmetric, group 32 and w8 symmetric, per channel"
    )
    assert torch.equal(logits(folder, "bfloat16"), logits_of_ours(source, checkpoint, "bfloat16"))


@pytest.mark.parametrize("actorder", ["group", "dynamic", True])
def test_inputs_that_are_grouped_by_activation_find_their_scales(
    tiny_checkpoint: Factory, actorder: Any
) -> None:
    """The library quantises the inputs in their new order; the index takes every code back to its place."""
    source, expected = tiny_checkpoint("llama"), {}

    def encode(module: str, weight: torch.Tensor) -> dict[str, torch.Tensor]:
        order = torch.randperm(weight.shape[1], generator=torch.Generator().manual_seed(len(expected)))
        place = torch.argsort(order)
        packed, ordered = theirs(weight[:, order], ASYMMETRIC)
        expected[module] = ordered[:, place]
        codes = packed["weight_packed"].view(torch.uint8)
        nibbles = torch.stack([codes & 0xF, codes >> 4], dim=2).reshape(weight.shape)[:, place]
        packed["weight_packed"] = (nibbles[:, ::2] | nibbles[:, 1::2] << 4).contiguous().view(torch.int32)
        return packed | {"weight_g_idx": (place // 32).to(torch.int32)}

    settings = ASYMMETRIC | {"actorder": actorder}
    folder = publish(source, source.parent / "packed", config({"Linear": settings}), encode)
    checkpoint = open_checkpoint(str(folder))
    assert checkpoint.quantization == "w4 asymmetric, group 32, act-order"
    assert checkpoint.input_groups[Q_PROJ] == InputGroups(size=32, act_order=True)
    for module, weight in expected.items():
        assert torch.equal(checkpoint.tensor(f"{module}.weight"), weight), module


def test_a_quantised_embedding_comes_dequantised(tiny_checkpoint: Factory, asymmetric: Path) -> None:
    name = "model.embed_tokens"
    packed, expected = theirs(load_file(asymmetric / "model.safetensors")[f"{name}.weight"], CHANNEL8)

    def replace(tensors: dict[str, Any]) -> None:
        del tensors[f"{name}.weight"]
        tensors |= {f"{name}.{part}": value for part, value in packed.items()}

    edit_tensors(asymmetric / "model.safetensors", replace)
    edit_config(
        asymmetric,
        lambda c: c.update(quantization_config=config({"Linear": ASYMMETRIC, "Embedding": CHANNEL8})),
    )
    assert torch.equal(open_checkpoint(str(asymmetric)).tensor(f"{name}.weight"), expected)


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda t: t.pop(f"{Q_PROJ}.weight_zero_point"), r"weight_zero_point is not in"),
        (
            lambda t: t.update({f"{Q_PROJ}.weight_zero_point": torch.zeros(64, 2, dtype=torch.int8)}),
            r"weight_zero_point is I8 \(64, 2\), expected I32 \(8, 2\)",
        ),
        (
            lambda t: t.update({f"{Q_PROJ}.weight_shape": torch.tensor([64, 60])}),
            r"weight_shape says \(64, 60\), expected \(64, 64\)",
        ),
        (
            lambda t: t.update({f"{Q_PROJ}.weight_shape": torch.tensor(64)}),
            r"weight_shape is I64 \(\), expected",
        ),
        (lambda t: t.pop(f"{Q_PROJ}.weight_scale"), r"weight_scale is not in"),
        (
            lambda t: t.update({f"{Q_PROJ}.weight_scale": torch.ones(64, 2, dtype=torch.bfloat16)}),
            "scales are of types bfloat16, float32",
        ),
        (lambda t: t.update({f"{Q_PROJ}.weight_g_idx": torch.zeros(64)}), "weight_g_idx is not part of"),
    ],
)
def test_tensors_that_do_not_fit_are_named(
    asymmetric: Path, edit: Callable[[dict[str, Any]], None], message: str
) -> None:
    edit_tensors(asymmetric / "model.safetensors", edit)
    with pytest.raises(CheckpointError, match=message):
        open_checkpoint(str(asymmetric))


@pytest.mark.parametrize(
    ("quantization", "message"),
    [
        (config({"Linear": GROUP32}), r"weight_zero_point.* is not part of"),
        (
            config({"Linear": ASYMMETRIC | {"group_size": 64}}),
            "has 96 inputs, which groups of 64 do not divide",
        ),
        (
            config({"Linear": ASYMMETRIC | {"num_bits": 8}}),
            r"weight_packed is I32 \(64, 12\), expected I32 \(64, 24\)",
        ),
        (config({"Linear": ASYMMETRIC | {"actorder": "group"}}), "weight_g_idx is not in"),
        (config({"Linear": ASYMMETRIC}, (Q_PROJ,)), f"no target of quantization_config matches {Q_PROJ}"),
        (config({"re:.*mlp.*": ASYMMETRIC}), r"no target of quantization_config matches .*self_attn"),
    ],
)
def test_a_config_of_other_weights_is_refused(
    asymmetric: Path, quantization: dict[str, Any], message: str
) -> None:
    edit_config(asymmetric, lambda c: c.update(quantization_config=quantization))
    with pytest.raises(CheckpointError, match=message):
        open_checkpoint(str(asymmetric))


@pytest.mark.parametrize("value", [[], "gptq", 4])
def test_a_quantization_config_that_is_no_table_is_refused(asymmetric: Path, value: object) -> None:
    edit_config(asymmetric, lambda c: c.update(quantization_config=value))
    with pytest.raises(
        CheckpointError, match=r"quantization_config in config\.json is .*; it must be a table"
    ):
        open_checkpoint(str(asymmetric))
