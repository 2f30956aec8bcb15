"""Damaged configurations and weights of every quantised format end in a CheckpointError, never in another."""

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from spearhead.errors import CheckpointError
from spearhead.model.checkpoint import open_checkpoint
from tests.model.checkpoint.published import awq_tensors, gptq_tensors, publish, random_grid

FORMATS = ["compressed-tensors", "gptq", "awq"]
fuzz = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60, deadline=None)
json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.sampled_from(["re:(", "Linear", "gptq", "gemm", "group", "channel", "", "\0"]),
    lambda inner: (
        st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["a", "weights"]), inner, max_size=2)
    ),
    max_leaves=4,
)


@pytest.fixture
def folders(
    tmp_path: Path, tiny_checkpoint: Callable[..., Path], tiny_artefact: Callable[..., Path]
) -> dict[str, Path]:
    source = tiny_checkpoint("llama", num_hidden_layers=1)
    grid: dict[str, Any] = {"seed": 0, "group_size": 32, "symmetric": True, "act_order": True}

    def gptq(module: str, weight: torch.Tensor) -> dict[str, torch.Tensor]:
        return gptq_tensors(random_grid(tuple(weight.shape), **grid), bits=4, version=1)

    def awq(module: str, weight: torch.Tensor) -> dict[str, torch.Tensor]:
        return awq_tensors(random_grid(tuple(weight.shape), **grid | {"act_order": False}))

    common = {"bits": 4, "group_size": 32}
    version1 = {"quant_method": "gptq", "desc_act": True, "sym": True, "dynamic": {}, "pack_dtype": "int32"}
    gemm = {"quant_method": "awq", "version": "gemm", "zero_point": True}
    return {
        "compressed-tensors": tiny_artefact(source),
        "gptq": publish(source, tmp_path / "gptq", version1 | common, gptq),
        "awq": publish(source, tmp_path / "awq", gemm | common, awq),
    }


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every (container, key) within a JSON value."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield value, key
        yield from places(inner)


@pytest.mark.parametrize("form", FORMATS)
@fuzz
@given(data=st.data())
def test_any_configuration_is_read_or_refused(
    folders: dict[str, Path], form: str, data: st.DataObject
) -> None:
    path = folders[form] / "config.json"
    original = path.read_text()
    config = json.loads(original)
    found = list(places({key: config[key] for key in ("quantization_config", "spear") if key in config}))
    container, key = data.draw(st.sampled_from(found))
    target = config if key in ("quantization_config", "spear") and key in config else container
    target[key] = data.draw(json_values)
    try:
        path.write_text(json.dumps(config))
        checkpoint = open_checkpoint(str(folders[form]))
        assert checkpoint.quantized_weight("model.layers.0.mlp.down_proj") is not None
        checkpoint.close()
    except CheckpointError:
        return
    finally:
        path.write_text(original)


@pytest.mark.parametrize("form", FORMATS)
@fuzz
@given(data=st.data())
def test_any_weights_are_read_or_refused(folders: dict[str, Path], form: str, data: st.DataObject) -> None:
    """Bytes that are cut off, or changed in the header, which is where names, types and shapes are."""
    path = folders[form] / "model.safetensors"
    keep = path.with_suffix(".original")
    shutil.copyfile(path, keep)
    content = path.read_bytes()
    header = 8 + int.from_bytes(content[:8], "little")
    start = data.draw(st.integers(0, header - 1))
    end = data.draw(st.sampled_from([start, start + 1, len(content)]))
    try:
        path.write_bytes(content[:start] + data.draw(st.binary(max_size=6)) + content[end:])
        checkpoint = open_checkpoint(str(folders[form]))
        assert bool(torch.isfinite(checkpoint.tensor("model.layers.0.mlp.down_proj.weight")).all())
        checkpoint.close()
    except CheckpointError:
        return
    finally:
        shutil.move(keep, path)
