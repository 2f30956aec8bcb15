"""What the readers of quantised formats have in common."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from spearhead.errors import CheckpointError
from spearhead.model.architecture import ModelConfig
from spearhead.model.checkpoint.layout import HEAD, linear_modules
from spearhead.model.checkpoint.tensor_files import TensorFiles
from spearhead.model.quantization import InputGroups, QuantizedWeight


class ModuleReader(Protocol):
    """Reads the quantised modules of one format. Making one checks every shape, type and range."""

    @property
    def description(self) -> str:
        """The quantiser for people, such as ``w4 gptq, group 128, act-order``."""

    @property
    def scale_dtype(self) -> str:
        """``float16``, ``bfloat16`` or ``float32``."""

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Shape of each tensor as if nothing was quantised."""

    @property
    def input_groups(self) -> Mapping[str, InputGroups]:
        """Module name to groups, for each quantised module."""

    def weight(self, module: str) -> QuantizedWeight:
        """One of ``input_groups``.

        Raises:
            CheckpointError: Its data cannot be read.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class Scaling:
    """All of a :class:`QuantizedWeight` but its codes."""

    scales: Tensor
    zeros: Tensor | None
    group_index: Tensor | None


def module_shapes(config: ModelConfig, modules: Iterable[str]) -> dict[str, tuple[int, int]]:
    """(Outputs, inputs) of modules that are quantised.

    Raises:
        CheckpointError: One that the model does not have.
    """
    known = linear_modules(config) | {HEAD.removesuffix(".weight"): (config.vocab_size, config.hidden_size)}
    found = {module: known.get(module) for module in modules}
    unknown = [module for module, shape in found.items() if shape is None]
    if unknown:
        raise CheckpointError(
            f"{unknown[0]} is quantised, but is no linear module of this {config.architecture} model"
        )
    return {module: shape for module, shape in found.items() if shape is not None}


def read_scales(files: TensorFiles, name: str) -> Tensor:
    """Scales as stored.

    Raises:
        CheckpointError: NaN or infinity.
    """
    scales = files.tensor(name)
    if not bool(torch.isfinite(scales).all()):
        raise CheckpointError(f"tensor {name} holds NaN or infinity; make the artefact again")
    return scales


def read_group_index(files: TensorFiles, name: str, group_count: int, group_size: int) -> Tensor | None:
    """The group of each input, ``None`` when groups are consecutive and equal.

    Raises:
        CheckpointError: A group that does not exist.
    """
    index = files.tensor(name).to(torch.int32)
    low, high = (int(bound) for bound in index.aminmax())
    if low < 0 or high >= group_count:
        raise CheckpointError(
            f"tensor {name} names groups {low} to {high}, but there are {group_count}; the checkpoint is "
            "damaged"
        )
    in_order = torch.equal(index, group_index(len(index), group_size))
    return None if in_order and equal_groups(len(index), group_size) else index


def group_index(in_features: int, group_size: int) -> Tensor:
    """int32 ``(K,)``: consecutive groups, of which the last may be smaller."""
    return torch.arange(in_features, dtype=torch.int32) // group_size


def equal_groups(in_features: int, group_size: int) -> bool:
    """Whether groups divide the inputs."""
    return in_features % group_size == 0


def nonzero(zeros: Tensor) -> Tensor | None:
    """Zero points in int16, ``None`` when each is zero."""
    return zeros.to(torch.int16) if bool(zeros.any()) else None


def scale_dtype(dtypes: Iterable[str], where: str) -> str:
    """The one type that all scales have.

    Raises:
        CheckpointError: Several, or none because nothing is quantised.
    """
    found = sorted(set(dtypes))
    if len(found) != 1:
        raise CheckpointError(
            f"{where} says that it is quantised, but "
            + (f"its scales are of types {', '.join(found)}" if found else "holds no quantised module")
            + "; make the artefact again"
        )
    return found[0]


def sharing(group_size: int) -> str:
    """How weights share scales, for people."""
    return f"group {group_size}" if group_size else "per channel"
