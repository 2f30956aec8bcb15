import json
import os
import subprocess
import sys
from math import prod
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from spearhead.model.architecture import ModelConfig
from spearhead.model.checkpoint.layout import expected_shapes

LIMIT_BYTES = 24 << 20
LAYERS = 58
_SHAPE = {
    "model_type": "llama",
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "vocab_size": 64,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": True,
    "torch_dtype": "float16",
}


def make_checkpoint(folder: Path, layers: int) -> int:
    """Writes one and returns the bytes of its weights."""
    shape = _SHAPE | {"num_hidden_layers": layers}
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(shape))
    generator = torch.Generator().manual_seed(0)
    noise = (0.02 * torch.randn(1 << 17, generator=generator)).half()
    tensors = {
        name: noise[: prod(size)].reshape(size).clone() if len(size) > 1 else torch.ones(size).half()
        for name, size in expected_shapes(ModelConfig.from_hugging_face(shape)).items()
    }
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return sum(tensor.nbytes for tensor in tensors.values())


def limited(folder: Path, output: Path, way: str) -> subprocess.CompletedProcess[str]:
    script = Path(__file__).with_name("limited_memory.py")
    arguments = [folder, folder.with_name("small"), output, LIMIT_BYTES, way]
    return subprocess.run(
        [sys.executable, str(script), *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])},
    )


@pytest.mark.skipif(sys.platform != "linux", reason="the limit on writable memory is Linux's")
def test_a_checkpoint_several_times_larger_than_memory_is_quantised(tmp_path: Path) -> None:
    make_checkpoint(tmp_path / "small", layers=2)
    assert make_checkpoint(tmp_path / "large", layers=LAYERS) > 3 * LIMIT_BYTES
    # The limit bites: the same checkpoint does not fit as a whole, even in 16 bits.
    refused = limited(tmp_path / "large", tmp_path / "none", "resident")
    assert refused.returncode != 0 and "memory" in refused.stderr.lower()
    (tmp_path / "small-w4").rename(tmp_path / "done")
    done = limited(tmp_path / "large", tmp_path / "w4", "streamed")
    assert done.returncode == 0, done.stderr
    report = json.loads((tmp_path / "w4" / "spear" / "quantization.json").read_text())
    assert len(report["modules"]) == LAYERS * 7
    assert all(m["weighted_error"] < 0.2 for m in report["modules"] if m["choice"] != "dense")
