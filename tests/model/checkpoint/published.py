"""Checkpoints as other tools publish them, written from the formats' definitions one code at a time."""

import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

Encode = Callable[[str, Tensor], dict[str, Tensor]]
AWQ_PLACES = {0: 0, 1: 4, 2: 1, 3: 5, 4: 2, 5: 6, 6: 3, 7: 7}
"""Column within eight to its place in the word."""


def publish(folder: Path, output: Path, quantization: Mapping[str, Any], encode: Encode) -> Path:
    """A copy of a full-precision folder in which ``encode(module, weight)`` stands for each projection.

    What ``encode`` returns is named within the module; nothing means that the module stays dense.
    """
    shutil.copytree(folder, output)
    tensors = {}
    for name, tensor in load_file(folder / "model.safetensors").items():
        module = name.removesuffix(".weight")
        is_projection = name.endswith("_proj.weight")
        encoded = encode(module, tensor) if is_projection else {}
        if encoded:
            tensors |= {f"{module}.{part}": value.contiguous() for part, value in encoded.items()}
        else:
            tensors[name] = tensor
    save_file(tensors, output / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = dict(quantization)
    (output / "config.json").write_text(json.dumps(config))
    return output


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """Unsigned codes (N, K), zero points and float16 scales (N, G), and the group of each input (K,)."""

    codes: np.ndarray
    zeros: np.ndarray
    scales: np.ndarray
    groups: np.ndarray

    def weights(self) -> Tensor:
        """float32 (N, K), element by element."""
        rows, columns = self.codes.shape
        out = np.empty((rows, columns), dtype=np.float32)
        for n in range(rows):
            for k in range(columns):
                g = self.groups[k]
                out[n, k] = np.float32(int(self.codes[n, k]) - int(self.zeros[n, g])) * np.float32(
                    self.scales[n, g]
                )
        return torch.from_numpy(out)


def random_grid(
    shape: tuple[int, int], *, seed: int, group_size: int, bits: int = 4, symmetric: bool, act_order: bool
) -> Grid:
    """Every code is possible; zero points leave out 0, which version 1 of GPTQ cannot store."""
    rows, columns = shape
    source = np.random.default_rng(seed)
    size = group_size if group_size > 0 else columns
    groups = np.arange(columns) // size
    count = int(groups[-1]) + 1
    low, high = 1, 1 << bits
    zeros = source.integers(low, high, (rows, count)) if not symmetric else np.full((rows, count), high // 2)
    return Grid(
        codes=source.integers(0, high, (rows, columns)),
        zeros=zeros,
        scales=(source.normal(size=(rows, count)) * 0.02).astype(np.float16),
        groups=source.permutation(groups) if act_order else groups,
    )


def nearest_grid(weight: Tensor, *, group_size: int, act_order: bool = False) -> Grid:
    """A weight (N, K) rounded to nearest between the ends of each group, as published checkpoints are.

    With ``act_order`` groups are of inputs in falling order of their columns' size.
    """
    values = weight.float().numpy()
    columns = values.shape[1]
    order = np.argsort(-np.square(values).sum(0)) if act_order else np.arange(columns)
    groups = np.empty(columns, dtype=np.int64)
    groups[order] = np.arange(columns) // group_size
    count = columns // group_size
    ends = np.stack(
        [
            [np.minimum(values[:, groups == g].min(1), 0.0), np.maximum(values[:, groups == g].max(1), 0.0)]
            for g in range(count)
        ]
    )  # (G, 2, N)
    scales = ((ends[:, 1] - ends[:, 0]) / 15).T.astype(np.float16)
    zeros = np.clip(np.rint(-ends[:, 0].T / scales), 1, 15).astype(np.int64)
    places = np.rint(values / scales[:, groups].astype(np.float32)) + zeros[:, groups]
    return Grid(codes=np.clip(places, 0, 15).astype(np.int64), zeros=zeros, scales=scales, groups=groups)


def gptq_tensors(grid: Grid, *, bits: int, version: int, with_index: bool = True) -> dict[str, Tensor]:
    """GPTQ: eight inputs a word of weights, eight outputs a word of zero points."""
    rows, columns = grid.codes.shape
    places = 32 // bits
    weights = np.zeros((columns // places, rows), dtype=np.uint32)
    for k in range(columns):
        for n in range(rows):
            weights[k // places, n] |= np.uint32(int(grid.codes[n, k]) << (k % places * bits))
    zeros = np.zeros((grid.zeros.shape[1], rows // places), dtype=np.uint32)
    for g in range(grid.zeros.shape[1]):
        for n in range(rows):
            stored = int(grid.zeros[n, g]) - (1 if version == 1 else 0)
            zeros[g, n // places] |= np.uint32(stored << (n % places * bits))
    tensors = {
        "qweight": _words(weights),
        "qzeros": _words(zeros),
        "scales": torch.from_numpy(np.ascontiguousarray(grid.scales.T)),
    }
    if with_index:
        tensors["g_idx"] = torch.from_numpy(grid.groups.astype(np.int32))
    return tensors


def awq_tensors(grid: Grid) -> dict[str, Tensor]:
    """AWQ, version gemm: eight outputs a word, interleaved."""
    rows, columns = grid.codes.shape
    weights = np.zeros((columns, rows // 8), dtype=np.uint32)
    for k in range(columns):
        for n in range(rows):
            weights[k, n // 8] |= np.uint32(int(grid.codes[n, k]) << (4 * AWQ_PLACES[n % 8]))
    zeros = np.zeros((grid.zeros.shape[1], rows // 8), dtype=np.uint32)
    for g in range(grid.zeros.shape[1]):
        for n in range(rows):
            zeros[g, n // 8] |= np.uint32(int(grid.zeros[n, g]) << (4 * AWQ_PLACES[n % 8]))
    return {
        "qweight": _words(weights),
        "qzeros": _words(zeros),
        "scales": torch.from_numpy(np.ascontiguousarray(grid.scales.T)),
    }


def _words(words: np.ndarray) -> Tensor:
    return torch.from_numpy(words.view(np.int32))


def edit_config(folder: Path, edit: Callable[[dict[str, Any]], None]) -> None:
    """Changes ``config.json`` in place."""
    config = json.loads((folder / "config.json").read_text())
    edit(config)
    (folder / "config.json").write_text(json.dumps(config))


def edit_tensors(path: Path, edit: Callable[[dict[str, Any]], None]) -> None:
    """Changes a safetensors file in place."""
    tensors = load_file(path)
    edit(tensors)
    save_file(tensors, path, metadata={"format": "pt"})
