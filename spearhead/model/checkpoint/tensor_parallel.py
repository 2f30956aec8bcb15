"""Whether quantised weights can be cut into equal shards."""

from collections.abc import Mapping

from spearhead.errors import CheckpointError
from spearhead.model.architecture import ModelConfig
from spearhead.model.checkpoint.layout import linear_modules
from spearhead.model.quantization import InputGroups, QuantizationScheme

_ROW_PARALLEL = (".self_attn.o_proj", ".mlp.down_proj")
_SIZES = (16, 8, 6, 4, 3, 2, 1)
_SHOWN = 4


def scheme_groups(config: ModelConfig, scheme: QuantizationScheme) -> dict[str, InputGroups]:
    """The groups of a model that is quantised at load."""
    return dict.fromkeys(linear_modules(config), InputGroups(size=scheme.group_size))


def check_tensor_parallel(config: ModelConfig, quantization: Mapping[str, InputGroups], size: int) -> None:
    """Refuses a tensor-parallel size whose shards would cut through a group.

    Only projections that are split along their inputs matter: the attention's output and the MLP's down
    projection. The others are split along their outputs, each of which has its own scales.

    Args:
        config: The model.
        quantization: Groups of the quantised modules, such as ``Checkpoint.input_groups``.
        size: Number of shards.

    Raises:
        CheckpointError: The modules that do not fit, and the sizes that would.
    """
    problems = _problems(config, quantization, size)
    if not problems:
        return
    fitting = [str(other) for other in _SIZES if not _problems(config, quantization, other)]
    rest = f" and {len(problems) - _SHOWN} more" if len(problems) > _SHOWN else ""
    raise CheckpointError(
        f"tensor parallel size {size} does not fit the quantised weights: "
        f"{'; '.join(problems[:_SHOWN])}{rest}. "
        f"Use size {' or '.join(fitting)}, or weights with smaller groups or one scale a row"
    )


def _problems(config: ModelConfig, quantization: Mapping[str, InputGroups], size: int) -> list[str]:
    if size == 1:
        return []
    shapes = linear_modules(config)
    problems = []
    for module, groups in quantization.items():
        if module not in shapes or not module.endswith(_ROW_PARALLEL):
            continue
        _, inputs = shapes[module]
        if groups.act_order:
            problems.append(f"{module} groups its inputs by activation, so that each shard needs all scales")
        elif inputs % size or (groups.size and inputs // size % groups.size):
            unit = f"groups of {groups.size}" if groups.size else "single inputs"
            problems.append(
                f"{module} has {inputs} inputs, {inputs / size:g} a shard, which cuts through {unit}"
            )
    return problems
