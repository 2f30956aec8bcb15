"""The state of a training run, and the file it goes on from after a kill."""

import contextlib
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from spearhead.errors import CalibrationError
from spearhead.model.checkpoint.durable import put_in_place

_HEADER = "spearhead_training"


@dataclass(frozen=True, slots=True, kw_only=True)
class CurvePoint:
    """One look at the losses.

    Attributes:
        step: Updates so far.
        train_kl: Mean over the updates since the last look, nats a token; ``None`` before the first.
        held_out_kl: Nats a token.
    """

    step: int
    train_kl: float | None
    held_out_kl: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingState:
    """Everything that the next update depends on.

    Attributes:
        step: Updates so far.
        curve: All looks.
        parameters: Values now.
        averages: The optimiser's, flat; see :meth:`~spearhead.quant.step_runner.Stepper.state`.
        best_parameters: Values at the best look.
    """

    step: int
    curve: tuple[CurvePoint, ...]
    parameters: tuple[Tensor, ...]
    averages: tuple[Tensor, ...]
    best_parameters: tuple[Tensor, ...]

    @property
    def best(self) -> CurvePoint:
        """The look with the lowest held-out loss, the first of equals."""
        return min(self.curve, key=lambda point: point.held_out_kl)


def save_state(path: Path, state: TrainingState) -> None:
    """Writes a state; a reader sees all of it or the one before.

    Raises:
        CalibrationError: The file cannot be written.
    """
    tensors = {
        f"{kind}/{index}": tensor.to("cpu", copy=True)
        for kind, group in _groups(state).items()
        for index, tensor in enumerate(group)
    }
    curve = [[point.step, point.train_kl, point.held_out_kl] for point in state.curve]
    header = json.dumps({"step": state.step, "curve": curve})
    part = path.with_name(f"{path.name}.part-{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        save_file(tensors, part, metadata={_HEADER: header})
        put_in_place(part, path)
    except (OSError, SafetensorError) as error:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)
        raise CalibrationError(
            f"{path} cannot be written: {error}; free space or choose another work folder"
        ) from error


def load_state(path: Path, parameters: Sequence[Tensor]) -> TrainingState:
    """Reads a state that belongs to these parameters.

    Raises:
        CalibrationError: Not such a file, damaged, or of parameters with other shapes.
    """
    try:
        with safe_open(path, "pt") as file:
            header = json.loads((file.metadata() or {})[_HEADER])
            curve = tuple(
                CurvePoint(step=step, train_kl=train_kl, held_out_kl=kl)
                for step, train_kl, kl in header["curve"]
            )
            tensors: dict[str, list[Tensor]] = {"parameters": [], "averages": [], "best": []}
            for kind, group in tensors.items():
                count = sum(name.startswith(f"{kind}/") for name in file.keys())  # noqa: SIM118
                group.extend(file.get_tensor(f"{kind}/{index}") for index in range(count))
    except (OSError, SafetensorError, KeyError, ValueError) as error:
        raise CalibrationError(f"{path} is no state of a training run: {error}; delete it") from error
    for group in (tensors["parameters"], tensors["best"]):
        if [tensor.shape for tensor in group] != [parameter.shape for parameter in parameters]:
            raise CalibrationError(
                f"{path} belongs to compensators of other shapes; delete it to train from the start"
            )
    return TrainingState(
        step=header["step"],
        curve=curve,
        parameters=tuple(tensors["parameters"]),
        averages=tuple(tensors["averages"]),
        best_parameters=tuple(tensors["best"]),
    )


def _groups(state: TrainingState) -> dict[str, tuple[Tensor, ...]]:
    return {"parameters": state.parameters, "averages": state.averages, "best": state.best_parameters}
