"""Measured plans: one JSON file a GPU model, written by ``python -m kernels.tuning``, read once.

``kernels/configs/w4a16.<gpu>.json``::

    {"schema": 2, "op": "w4a16", "gpu": "NVIDIA H200", "versions": {"torch": "…", "triton": "…"},
     "layers": {"4096x14336/128": {            N x K / group size as the kernels use it, 0 = per channel
        "parts": 8,                            of K, for every row count
        "dense_from": 256,                     prefill rows from which the dense path wins; null = never
        "tiles": [{"up_to": 16, "rows": 16, "outputs": 128, "warps": 4, "stages": 4,
                   "split": 8, "registers": 128, "overlap": false}, …],
        "few": [{"rows": 8, "outputs": 64,     for so many rows, the kernel for few; may be missing
                 "stages": 4, "early": false}, …]}}}

Nothing is tuned while serving: a layer that is not in the file takes the plan of the same shape with other
groups, and without one, or without a file, :func:`kernels.w4a16.plan.default_plan`; the log says so.
"""

import json
import logging
import re
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from kernels.w4a16.layout import GpuWeight
from kernels.w4a16.plan import FewTile, LayerPlan, Tile, default_plan

CONFIGS = Path(__file__).parent.parent / "configs"
_SCHEMA = 2
_log = logging.getLogger("kernels.w4a16")


def layer_key(out_features: int, in_features: int, group_size: int) -> str:
    """A layer's name in a table."""
    return f"{out_features}x{in_features}/{group_size}"


def table_path(gpu: str, directory: Path = CONFIGS) -> Path:
    """Where the table of a GPU model lies; ``gpu`` is the driver's name for it."""
    return directory / f"w4a16.{re.sub('[^a-z0-9]+', '-', gpu.lower()).strip('-')}.json"


def read_table(path: Path) -> dict[str, LayerPlan]:
    """The plans of a file, by :func:`layer_key`.

    Raises:
        ValueError: The file is no table of this schema.
    """
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        if document["schema"] != _SCHEMA or document["op"] != "w4a16":
            raise ValueError(
                f"schema {document['schema']} of {document['op']}; this is schema {_SCHEMA} of w4a16"
            )
        return {key: _plan(value) for key, value in document["layers"].items()}
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(
            f"{path} is no table of plans: {error!r}; write it anew: python -m kernels.tuning"
        ) from error


def write_table(path: Path, gpu: str, versions: Mapping[str, str], plans: Mapping[str, LayerPlan]) -> None:
    """Writes a table, whole or not at all."""
    layers = {key: _layer(plan) for key, plan in sorted(plans.items())}
    document = {"schema": _SCHEMA, "op": "w4a16", "gpu": gpu, "versions": dict(versions), "layers": layers}
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_suffix(".json.part")
    unfinished.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    unfinished.replace(path)


class Plans:
    """The plans of one GPU: its table's, and defaults for what the table lacks.

    Args:
        gpu: The driver's name for the GPU model.
        multiprocessors: Of the GPU.
        directory: Where tables lie.

    Raises:
        ValueError: The table cannot be read.
    """

    def __init__(self, gpu: str, multiprocessors: int, directory: Path = CONFIGS) -> None:
        self._multiprocessors = multiprocessors
        path = table_path(gpu, directory)
        self._tuned: dict[str, LayerPlan] = {}
        self._others: dict[str, LayerPlan] = {}
        if path.is_file():
            self._tuned = read_table(path)
            _log.info("plans for %s: %d layers of %s", gpu, len(self._tuned), path.name)
        else:
            _log.warning("no plans for %s (%s): every layer takes untuned defaults; tune it with "
                         "python -m kernels.tuning", gpu, path.name)  # fmt: skip

    def of(self, weight: GpuWeight) -> LayerPlan:
        """A layer's plan; the same one each time."""
        key = layer_key(weight.out_features, weight.in_features, weight.group_size)
        if key in self._tuned:
            return self._tuned[key]
        if key not in self._others:
            self._others[key] = self._untuned(weight, key)
        return self._others[key]

    def _untuned(self, weight: GpuWeight, key: str) -> LayerPlan:
        """That of the same shape with other groups, or the default."""
        shape = key.split("/")[0]
        near = min((other for other in self._tuned if other.split("/")[0] == shape), default=None)
        if near is not None:
            _log.info("no tuned plan for layer %s: it takes that of %s", key, near)
            return self._tuned[near]
        _log.warning("no tuned plan for layer %s: it takes an untuned default", key)
        return default_plan(weight.padded_outputs, weight.in_features, self._multiprocessors)


def _layer(plan: LayerPlan) -> dict[str, Any]:
    tiles = [{"up_to": limit, **asdict(tile)} for limit, tile in plan.tiles]
    few = [asdict(tile) for tile in plan.few]
    return {"parts": plan.parts, "dense_from": plan.dense_from, "tiles": tiles, "few": few}


def _plan(layer: dict[str, Any]) -> LayerPlan:
    tiles = tuple(
        (tile["up_to"], Tile(**{key: value for key, value in tile.items() if key != "up_to"}))
        for tile in layer["tiles"]
    )
    few = tuple(FewTile(**tile) for tile in layer.get("few", ()))
    return LayerPlan(parts=layer["parts"], tiles=tiles, dense_from=layer["dense_from"], few=few)
