"""What is looked at before a quantisation run starts: shapes, calibration tokens, room on the disk."""

import os
import shutil
from collections.abc import Mapping, Sequence
from math import prod
from pathlib import Path

from spearhead.errors import CalibrationError, CheckpointError, ConfigError
from spearhead.model.architecture import ModelConfig
from spearhead.model.checkpoint import Checkpoint
from spearhead.model.checkpoint.layout import expected_shapes, linear_modules
from spearhead.quant.quantizing.packing import packed_bytes
from spearhead.quant.recipe import Choices, ModuleChoice, QuantizationRecipe

_GROUP_SIZES = (128, 64, 32)


def check_places(output: Path, work: Path) -> None:
    """Refuses an output that is there already, and a work folder that would get into its way.

    Raises:
        ConfigError: Either of them.
    """
    if output.exists():
        raise ConfigError(f"{output} exists; remove it or choose another output folder")
    place, waiting = output.resolve(), work.resolve()
    if place == waiting or place in waiting.parents:
        raise ConfigError(
            f"{work} would lie in {output}, which appears at the end; choose another for --work"
        )
    if waiting in place.parents:
        raise ConfigError(
            f"{output} would lie in {work}, which is removed at the end; choose another folder for --work"
        )


def checked_choices(checkpoint: Checkpoint, recipe: QuantizationRecipe) -> dict[str, ModuleChoice | None]:
    """What becomes of each module of a checkpoint.

    Raises:
        CheckpointError: It is quantised already, or a group size does not divide the inputs of a module.
        ConfigError: The recipe names no such module.
    """
    if checkpoint.quantization:
        raise CheckpointError(
            f"{checkpoint.path} is quantised already ({checkpoint.quantization}); give its source"
        )
    choices = recipe.choices(linear_modules(checkpoint.config))
    check_groups(checkpoint.config, choices)
    return choices


def needs_statistics(choices: Choices) -> bool:
    """Whether any method looks at calibration tokens."""
    return any(choice is not None and choice.needs_statistics for choice in choices.values())


def check_groups(config: ModelConfig, choices: Choices) -> None:
    """Refuses group sizes that do not divide the inputs of their modules.

    Raises:
        CheckpointError: All modules that do not fit, and schemes that would.
    """
    shapes = linear_modules(config)
    unfit: dict[str, tuple[int, int]] = {}
    for module, choice in choices.items():
        inputs = shapes[module][1]
        if choice is not None and not choice.scheme.fits(inputs):
            unfit[module] = (inputs, choice.scheme.group_size)
    if not unfit:
        return
    sizes = sorted({size for _, size in unfit.values()})
    others = [f"group{g}" for g in _GROUP_SIZES if all(inputs % g == 0 for inputs, _ in unfit.values())]
    example = f"'*{next(iter(unfit)).split('.', 3)[3]}={[*others, 'channel'][0]}'"
    raise CheckpointError(
        f"group size {' and '.join(map(str, sizes))} does not divide the inputs of {_named(config, unfit)}; "
        f"use {', '.join([*others, 'channel'])} for them, such as --override {example}"
    )


def _named(config: ModelConfig, unfit: Mapping[str, tuple[int, int]]) -> str:
    """Modules by name; a projection that is there in every layer is said once."""
    by_part: dict[str, list[str]] = {}
    for module, (inputs, _) in unfit.items():
        by_part.setdefault(f"{module.split('.', 3)[3]} (K = {inputs})", []).append(module)
    everywhere = [part for part, modules in by_part.items() if len(modules) == config.layer_count]
    single = [
        f"{module} (K = {unfit[module][0]})"
        for part, modules in by_part.items()
        if part not in everywhere
        for module in modules
    ]
    named = [f"{', '.join(everywhere)} in each of {config.layer_count} layers"] if everywhere else []
    return ", ".join([*named, *single])


def check_sequences(config: ModelConfig, choices: Choices, sequences: Sequence[Sequence[int]] | None) -> None:
    """Refuses calibration tokens that the model cannot read, and their absence where they are needed.

    Raises:
        CalibrationError: What is wrong.
    """
    asking = sorted({choice.method for choice in choices.values() if choice and choice.needs_statistics})
    if sequences is None:
        if asking:
            raise CalibrationError(f"{', '.join(asking)} needs calibration tokens; give them, or use rtn")
        return
    if not sequences or not all(map(len, sequences)):
        raise CalibrationError(
            f"{len(sequences)} calibration sequences, some empty; give at least one token each"
        )
    longest = max(map(len, sequences))
    if longest > config.context_length:
        raise CalibrationError(
            f"a calibration sequence has {longest} tokens, the model reads {config.context_length}; cut it"
        )
    largest, least = max(map(max, sequences)), min(map(min, sequences))
    if largest >= config.vocab_size or least < 0:
        raise CalibrationError(
            f"calibration token {largest if least >= 0 else least} is not among the model's "
            f"{config.vocab_size}; encode the text with the tokenizer of this model"
        )


def artefact_bytes(config: ModelConfig, choices: Choices, item_bytes: int) -> int:
    """What the weights of an artefact will take, in 16 bits (or ``item_bytes``) where they are kept."""
    total = 0
    for name, shape in expected_shapes(config).items():
        choice = choices.get(name.removesuffix(".weight"))
        if choice is None:
            total += prod(shape) * item_bytes
        else:
            total += packed_bytes((shape[0], shape[1]), choice, item_bytes)
    return total


def check_room(needs: Sequence[tuple[Path, int]]) -> None:
    """Refuses to start where the disk would fill up.

    Args:
        needs: (existing folder, bytes that will be written below it).

    Raises:
        ConfigError: How much is needed, and how much is free.
    """
    by_device: dict[int, tuple[Path, int]] = {}
    for folder, size in needs:
        device = os.stat(folder).st_dev
        first, sum_before = by_device.get(device, (folder, 0))
        by_device[device] = (first, sum_before + size)
    for folder, size in by_device.values():
        free = shutil.disk_usage(folder).free
        if size > free:
            raise ConfigError(
                f"{folder} has {free / 1e6:.0f} MB free and the run writes up to {size / 1e6:.0f} MB there; "
                "make room, or choose another disk with --work"
            )
