from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from spearhead.model.checkpoint import open_checkpoint
from spearhead.model.quantization import QuantizationScheme, dequantize, rtn
from spearhead.quant.evaluation import EvaluatedModel
from spearhead.quant.layers import ResidentLayers, StreamedLayers


def rounded(_: str, weight: torch.Tensor) -> torch.Tensor:
    return dequantize(*rtn(weight, QuantizationScheme.parse("group32"), torch.float32))


@pytest.fixture
def folder(tiny_checkpoint: Callable[..., Path]) -> Path:
    return tiny_checkpoint("llama", max_position_embeddings=512)


@pytest.fixture
def make_model(folder: Path) -> Callable[..., EvaluatedModel]:
    """``make_model(name, quantised=False, streamed=False)``: the tiny model, perhaps in 4 bits."""

    def make(name: str, *, quantised: bool = False, streamed: bool = False) -> EvaluatedModel:
        source = StreamedLayers(
            open_checkpoint(str(folder)),
            dtype=torch.float32,
            device=torch.device("cpu"),
            replace=rounded if quantised else None,
        )
        return EvaluatedModel(
            name=name, source=source if streamed else ResidentLayers(source), streamed=streamed
        )

    return make
