"""The ``quantization_config`` of compressed-tensors: which module is quantised how."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spearhead.errors import CheckpointError
from spearhead.model.checkpoint.layout import EMBEDDING
from spearhead.model.checkpoint.module_reader import sharing

_FORMAT = "pack-quantized"
_ACT_ORDER = ("group", "dynamic", True)
_NO_ACT_ORDER = ("weight", "static", False, None)  # ordered while calibrating, stored in order


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightScheme:
    """How the weights of some modules are stored.

    Attributes:
        bits: 4 or 8.
        symmetric: No zero points are stored.
        group_size: 0 = one scale a row.
        act_order: Inputs name their group.
    """

    bits: int
    symmetric: bool
    group_size: int
    act_order: bool

    def __str__(self) -> str:
        kind = "symmetric" if self.symmetric else "asymmetric"
        order = ", act-order" if self.act_order else ""
        return f"w{self.bits} {kind}, {sharing(self.group_size)}{order}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleSchemes:
    """Schemes by target, and what is left out.

    Attributes:
        by_target: Module name, ``re:`` pattern or class to scheme; ``None`` = stays dense.
        ignored: Names, patterns and classes that stay dense.
    """

    by_target: Mapping[str, WeightScheme | None]
    ignored: Sequence[str]

    def scheme(self, module: str) -> WeightScheme | None:
        """How a module is quantised; names win over patterns, patterns over classes."""
        kind = "Embedding" if f"{module}.weight" == EMBEDDING else "Linear"
        if any(_matches(module, target) or target == kind for target in self.ignored):
            return None
        patterns = sorted(self.by_target, key=lambda target: (target.startswith("re:"), target))
        for target in [*(target for target in patterns if _matches(module, target)), kind]:
            if target in self.by_target:
                return self.by_target[target]
        return None


def parse_schemes(config: Mapping[str, Any], path: Path) -> ModuleSchemes:
    """Reads a ``quantization_config`` whose ``quant_method`` is ``compressed-tensors``.

    Args:
        config: The parsed section.
        path: For messages.

    Raises:
        CheckpointError: Anything but weights as 4-bit or 8-bit integers, by name.
    """
    groups = config.get("config_groups")
    if not isinstance(groups, dict) or not all(isinstance(group, dict) for group in groups.values()):
        raise CheckpointError(f"{path}: config_groups is {groups!r}; a table of groups is needed")
    wrong = _not_weights(config, groups)
    by_target: dict[str, WeightScheme | None] = {}
    for group in groups.values():
        weights = group.get("weights")
        problems = [] if weights is None else _problems(weights)
        wrong += problems
        if not problems:
            by_target |= dict.fromkeys(_names(group.get("targets"), path), _scheme(weights))
    if wrong:
        raise CheckpointError(
            f"{path} has {', '.join(wrong)}; supported is {_FORMAT} with 4-bit or 8-bit integer weights, per "
            "channel or per group. Quantise the full-precision checkpoint with `spearhead quantize`"
        )
    return ModuleSchemes(by_target=by_target, ignored=_names(config.get("ignore") or [], path))


def _not_weights(config: Mapping[str, Any], groups: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """What would have to be computed beside the weights, and formats that pack otherwise."""
    form = config.get("format")
    forms = [group.get("format") or form for group in groups.values()] or [form]
    wrong = [f"format {other!r}" for other in forms if other != _FORMAT]
    if any(
        group.get(f"{kind}_activations") is not None
        for group in groups.values()
        for kind in ("input", "output")
    ):
        wrong.append("quantised activations")
    if config.get("kv_cache_scheme") is not None:
        wrong.append("a quantised KV cache")
    if (config.get("sparsity_config") or {"format": "dense"}) not in ({"format": "dense"}, {}):
        wrong.append("a sparsity_config")
    if config.get("transform_config"):
        wrong.append("a transform_config")
    return wrong


def _problems(weights: Any) -> list[str]:
    if not isinstance(weights, dict):
        return [f"weights {weights!r}"]
    supported: dict[str, tuple[Any, ...]] = {
        "num_bits": (4, 8),
        "type": ("int",),
        "symmetric": (True, False),
        "dynamic": (False, None),
        "strategy": ("channel", "group"),
        "actorder": (*_ACT_ORDER, *_NO_ACT_ORDER),
    }
    problems = [
        f"{key} {weights.get(key)!r}" for key, values in supported.items() if weights.get(key) not in values
    ]
    size = weights.get("group_size")
    if weights.get("strategy") == "group" and not (isinstance(size, int) and size > 0):
        problems.append(f"group_size {size!r}")
    return problems


def _scheme(weights: Mapping[str, Any] | None) -> WeightScheme | None:
    if weights is None:
        return None
    return WeightScheme(
        bits=int(weights["num_bits"]),
        symmetric=bool(weights["symmetric"]),
        group_size=int(weights["group_size"]) if weights["strategy"] == "group" else 0,
        act_order=weights.get("actorder") in _ACT_ORDER,
    )


def _names(value: Any, path: Path) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        raise CheckpointError(f"{path}: targets and ignore must be lists of names; one is {value!r}")
    return value


def _matches(module: str, target: str) -> bool:
    if not target.startswith("re:"):
        return module == target
    try:
        return re.match(target.removeprefix("re:"), module) is not None
    except re.error as error:
        raise CheckpointError(
            f"pattern {target!r} in quantization_config is no regular expression: {error}"
        ) from error
