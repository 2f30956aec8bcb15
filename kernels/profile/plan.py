"""What to measure: a model's dimensions, row buckets and contexts. Nothing here needs a GPU."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from kernels.w4a16.plan import OWN_CODE_ROWS, LayerPlan
from kernels.w4a16.shapes import ModelShape

CONTEXTS = (128, 512, 1024, 2048, 4096, 8192)
ATTENTION_ROWS = (1, 2, 5, 9, 17, 64, 256, 1024)
"""New rows of one sequence: a token with its drafts, or a chunk of a prompt."""


def row_buckets(limits: Iterable[int], most: int) -> tuple[int, ...]:
    """Row counts to measure: powers of two, and the first row count of each tile.

    Between two of them time is a line, or nearly so: a product takes a step where the next tile begins, and
    both ends of the step are measured.

    Args:
        limits: Row counts up to which a tile serves.
        most: Rows of the largest step.

    Raises:
        ValueError: ``most`` leaves fewer than the two points that a curve needs.
    """
    if most < 2:
        raise ValueError(f"at most {most} rows: a curve needs two row counts; give 2 or more")
    powers = {1 << power for power in range(most.bit_length())}
    found = powers | {limit + 1 for limit in limits} | {most}
    return tuple(sorted(rows for rows in found if rows <= most))


def tile_limits(plans: Iterable[LayerPlan]) -> set[int]:
    """Row counts after which a layer takes another tile, or its codes from kernels in front."""
    return {
        OWN_CODE_ROWS,
        *(limit for plan in plans for limit, _ in plan.tiles),
        *(tile.rows for plan in plans for tile in plan.few),
    }


def read_model(folder: Path) -> tuple[ModelShape, int]:
    """Dimensions and group size of a checkpoint.

    Args:
        folder: With ``config.json``, as transformers spells it.

    Returns:
        The dimensions, and the group size of its 4-bit weights: 0 = per channel, or not quantised.

    Raises:
        ValueError: The file is missing or lacks a dimension.
    """
    path = folder / "config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
        heads, hidden = int(config["num_attention_heads"]), int(config["hidden_size"])
        shape = ModelShape(
            hidden_size=hidden,
            intermediate_size=int(config["intermediate_size"]),
            layer_count=int(config["num_hidden_layers"]),
            head_count=heads,
            kv_head_count=int(config.get("num_key_value_heads") or heads),
            head_dim=int(config.get("head_dim") or hidden // heads),
            vocab_size=int(config["vocab_size"]),
        )
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise ValueError(
            f"{path} gives no model's dimensions: {error!r}; give a checkpoint's folder"
        ) from error
    return shape, _group_size(config.get("quantization_config") or {})


def _group_size(quantization: dict[str, Any]) -> int:
    groups: dict[str, Any] = quantization.get("config_groups") or {}
    sizes = [group["weights"].get("group_size") for group in groups.values()]
    return max(int((sizes or [quantization.get("group_size")])[0] or 0), 0)


def numbers(text: str) -> tuple[int, ...]:
    """Whole numbers from 1, sorted, each once.

    Raises:
        ValueError: A part is none.
    """
    found = sorted({int(part) for part in text.split(",")})
    if found[0] < 1:
        raise ValueError(f"{found[0]} in {text!r}: numbers must be 1 or more")
    return tuple(found)
