"""Where a model is cut for its ranks. Pure arithmetic: it knows no tensor.

Attention is cut between key-value heads, the MLP between channels. What reads a cut dimension, the
attention's output and the MLP's down projection, is cut along its inputs, so a cut may only lie between two
groups of inputs that share a scale. Parts may differ in size: 8 heads over 3 ranks are 3, 3 and 2.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from math import lcm
from typing import Literal

from spearhead.errors import CheckpointError
from spearhead.model.architecture import ModelConfig
from spearhead.model.quantization import InputGroups

_OUTPUT, _DOWN = ".self_attn.o_proj", ".mlp.down_proj"
_GRANULES = (128, 64, 32, 16)
"""Channels that kernels like to have together, the best first; a small MLP gets by with fewer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """One rank's part of a weight.

    Attributes:
        axis: 0 = some of the outputs, 1 = some of the inputs: results are then a part of a sum.
        span: Which.
    """

    axis: Literal[0, 1]
    span: range


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """One rank's part of every layer.

    Attributes:
        rank: Whose.
        size: Number of ranks.
        kv_heads: Key and value heads; their query heads come with them.
        channels: Channels of the MLP.
        most_kv_heads: Of any rank, so that all can hold the same number of KV pages.
    """

    rank: int
    size: int
    kv_heads: range
    channels: range
    most_kv_heads: int

    def shape(self, config: ModelConfig) -> ModelConfig:
        """What this rank computes, as if it were a model of its own."""
        queries = config.head_count // config.kv_head_count
        return replace(
            config,
            head_count=len(self.kv_heads) * queries,
            kv_head_count=len(self.kv_heads),
            intermediate_size=len(self.channels),
        )

    def cuts(self, config: ModelConfig) -> dict[str, Cut]:
        """The part of each linear module, by its name within a layer.

        Args:
            config: Of the whole model.
        """
        key = _scaled(self.kv_heads, config.head_dim)
        query = _scaled(self.kv_heads, config.head_dim * (config.head_count // config.kv_head_count))
        return {
            "self_attn.q_proj": Cut(axis=0, span=query),
            "self_attn.k_proj": Cut(axis=0, span=key),
            "self_attn.v_proj": Cut(axis=0, span=key),
            "self_attn.o_proj": Cut(axis=1, span=query),
            "mlp.gate_proj": Cut(axis=0, span=self.channels),
            "mlp.up_proj": Cut(axis=0, span=self.channels),
            "mlp.down_proj": Cut(axis=1, span=self.channels),
        }


def plan_shards(config: ModelConfig, groups: Mapping[str, InputGroups], size: int) -> tuple[Shard, ...]:
    """Cuts a model into parts as equal as its heads and groups allow.

    Args:
        config: Of the whole model.
        groups: How the inputs of quantised modules share scales, by full module name; of all variants.
        size: Number of ranks.

    Raises:
        CheckpointError: The model cannot be cut into so many; the message has the shapes.
    """
    _refuse_scattered(config, groups, size)
    queries = config.head_count // config.kv_head_count
    width = queries * config.head_dim
    together = lcm(width, _group(groups, _OUTPUT)) // width
    heads = _parts(config.kv_head_count, together, size)
    channels = _parts(config.intermediate_size, _granule(config, groups, size), size)
    if heads is None or channels is None:
        raise CheckpointError(_refusal(config, groups, size, together))
    most = max(map(len, heads))
    return tuple(
        Shard(rank=rank, size=size, kv_heads=heads[rank], channels=channels[rank], most_kv_heads=most)
        for rank in range(size)
    )


def _scaled(span: range, factor: int) -> range:
    return range(span.start * factor, span.stop * factor)


def _parts(total: int, unit: int, size: int) -> list[range] | None:
    """Consecutive ranges of whole units, the larger ones first; ``None`` = a rank would get nothing."""
    each, larger = divmod(total // unit, size)
    if total % unit or not each:
        return None
    starts = [unit * (rank * each + min(rank, larger)) for rank in range(size + 1)]
    return [range(start, end) for start, end in pairwise(starts)]


def _group(groups: Mapping[str, InputGroups], part: str) -> int:
    """Inputs between two places where every module of a kind may be cut."""
    return lcm(1, *(one.size or 1 for module, one in groups.items() if module.endswith(part)))


def _granule(config: ModelConfig, groups: Mapping[str, InputGroups], size: int) -> int:
    group, inner = _group(groups, _DOWN), config.intermediate_size
    units = (lcm(group, granule) for granule in _GRANULES)
    return next((unit for unit in units if inner % unit == 0 and inner // unit >= size), group)


def _refuse_scattered(config: ModelConfig, groups: Mapping[str, InputGroups], size: int) -> None:
    inputs = {_OUTPUT: config.head_count * config.head_dim, _DOWN: config.intermediate_size}
    for module, one in groups.items() if size > 1 else ():
        part = next((part for part in inputs if module.endswith(part)), None)
        if part is None or not (one.act_order or (one.size and inputs[part] % one.size)):
            continue
        why = "in the order of their activation" if one.act_order else f"of {one.size}, the last one smaller"
        raise CheckpointError(
            f"{module} has {inputs[part]} inputs in groups {why}, which cannot be cut for {size} ranks; set "
            "parallel.tensor_parallel_size = 1, or quantise without act-order, in groups that divide the "
            "inputs"
        )


def _refusal(config: ModelConfig, groups: Mapping[str, InputGroups], size: int, together: int) -> str:
    group = _group(groups, _DOWN)
    most_heads, most_channels = config.kv_head_count // together, config.intermediate_size // group
    return (
        f"the model cannot be cut for {size} ranks: its {config.head_count} query heads share "
        f"{config.kv_head_count} key-value heads of {config.head_dim}, of which {together} must stay "
        f"together (at most {most_heads} ranks), and its {config.intermediate_size} channels come in groups "
        f"of {group} (at most {most_channels} ranks); set parallel.tensor_parallel_size to at most "
        f"{min(most_heads, most_channels)}"
    )
