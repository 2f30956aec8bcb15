"""4-bit artefacts of tiny models, with and without compensators."""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from spearhead.model.checkpoint import load_variants, open_checkpoint
from spearhead.model.loading import load_model
from spearhead.model.quantization import QuantizationScheme
from spearhead.model.settings import KvCacheSettings, ModelSettings
from spearhead.quant import quantize_checkpoint


@pytest.fixture
def tiny_artefact(tmp_path: Path) -> Callable[..., Path]:
    """``tiny_artefact(folder, scheme="group32") -> folder`` beside the source."""

    def make(folder: Path, scheme: str = "group32") -> Path:
        output = tmp_path / f"{folder.name}-{scheme.replace('/', '-')}"
        quantize_checkpoint(str(folder), output, QuantizationScheme.parse(scheme))
        return output

    return make


@pytest.fixture
def add_compensators() -> Callable[..., None]:
    """``add_compensators(artefact, {module: (N, K, R, gate width or 0)}, **changes to ec.json)``."""

    def add(artefact: Path, modules: dict[str, tuple[int, int, int, int]], **changes: Any) -> None:
        generator = torch.Generator().manual_seed(0)

        def random(*shape: int) -> torch.Tensor:
            return (0.1 * torch.randn(*shape, generator=generator)).to(torch.bfloat16)

        tensors = {}
        for name, (outputs, inputs, rank, width) in modules.items():
            tensors |= {f"{name}.ec.A": random(rank, inputs), f"{name}.ec.B": random(outputs, rank)}
            if width:
                tensors |= {
                    f"{name}.ec.gate.w1": random(width, rank),
                    f"{name}.ec.gate.b1": random(width),
                    f"{name}.ec.gate.w2": random(rank, width),
                    f"{name}.ec.gate.b2": random(rank),
                }
        config = json.loads((artefact / "config.json").read_text())
        config["spear"]["ec_file"] = "spear/ec.safetensors"
        (artefact / "config.json").write_text(json.dumps(config))
        (artefact / "spear").mkdir(exist_ok=True)
        save_file(tensors, artefact / "spear" / "ec.safetensors")
        description = {
            "version": 1,
            "quantization": config["spear"]["quantization"],
            "w4_sha256": {
                path.name: hashlib.sha256(path.read_bytes()).hexdigest()
                for path in artefact.glob("*.safetensors")
            },
        }
        (artefact / "spear" / "ec.json").write_text(json.dumps(description | changes))

    return add


@pytest.fixture
def tiny_engine(tiny_checkpoint: Callable[..., Path]) -> Callable[..., Any]:
    """``tiny_engine(architecture, pages=64, dtype="float32", variants=("fp16",)) -> SequenceEngine``."""

    def make(
        architecture: str = "llama",
        *,
        pages: int = 64,
        dtype: str = "float32",
        variants: tuple[str, ...] = ("fp16",),
        **overrides: Any,
    ) -> Any:
        checkpoint = open_checkpoint(str(tiny_checkpoint(architecture, **overrides)))
        model = load_model(
            checkpoint,
            ModelSettings(path="tiny", dtype=dtype),
            KvCacheSettings(page_count=pages),
            config=checkpoint.config,
            load_weights=lambda dtype, device: load_variants(
                checkpoint,
                variants=variants,
                dtype=dtype,
                device=device,
                quantization=QuantizationScheme.parse("group32"),
            ),
        )
        assert model.batch_invariant
        return model.engine

    return make
