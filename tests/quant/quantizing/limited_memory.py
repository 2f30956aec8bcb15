"""Quantises a checkpoint with little memory: ``limited_memory.py FOLDER SMALL OUTPUT BYTES WAY``,
where WAY is ``streamed`` or ``resident``.

The limit is on writable memory of this process beyond what it has after it quantised SMALL, a few of the same
layers. Files that are mapped are no part of it: their pages come and go as the system likes.
"""

import resource
import sys
from contextlib import closing
from pathlib import Path

import torch

from spearhead.model.checkpoint import open_checkpoint
from spearhead.quant import QuantizationRecipe, RunSettings, quantize_checkpoint
from spearhead.quant.layers import ResidentLayers, StreamedLayers


def main(folder: Path, small: Path, output: Path, limit: int, way: str) -> None:
    torch.set_num_threads(1)
    quantize(small, output.with_name("small-w4"))  # libraries take their own memory first
    mapped = sum(path.stat().st_size for path in folder.glob("*.safetensors"))
    most = _writable_bytes() + mapped + limit
    resource.setrlimit(resource.RLIMIT_DATA, (most, most))
    if way == "resident":
        with closing(open_checkpoint(str(folder))) as checkpoint:
            ResidentLayers(StreamedLayers(checkpoint, dtype=torch.float16, device=torch.device("cpu")))
        return
    quantize(folder, output)


def quantize(folder: Path, output: Path) -> None:
    recipe = QuantizationRecipe.parse("group64", "rtn", ["*v_proj=w8", "*o_proj=dense"])
    sequences = [list(range(60)), list(range(9, 50))]
    quantize_checkpoint(str(folder), output, recipe, sequences, settings=RunSettings(inputs="quantized"))


def _writable_bytes() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmData:"):
            return int(line.split()[1]) << 10
    raise AssertionError("no VmData in /proc/self/status")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:4]), int(sys.argv[4]), sys.argv[5])
