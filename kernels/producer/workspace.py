"""What a producer's launcher prepares for codes: memory for partial codes, and the kernel's arguments."""

from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.compensator.layout import GpuCompensator
from kernels.tensor_checks import power_of_two, require

_A_ELEMENTS = 1 << 14  # of A that a program holds in registers at once
_SLICES = (128, 1024)  # least and most columns of a program
LARGEST_TILE = 16
"""Rows that one program covers at most."""
_GATE_ELEMENTS = 1 << 13  # of a gate's layer, held in registers at once


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeWorkspace:
    """Memory in which programs of a launch hand partial codes to the last of them.

    Belongs to one stream: two launches that may overlap must not share one.

    Attributes:
        partials: float32, partial codes; what it holds between launches has no meaning.
        arrivals: int32, one counter a row tile; zero between launches. A launch that died may leave another
            value: zero it then.
    """

    partials: Tensor
    arrivals: Tensor


def slice_columns(code_width: int) -> int:
    """Columns of a program with one row: as many as let it read its part of A at once.

    Args:
        code_width: Codes a row.
    """
    least, most = _SLICES
    return max(min(_A_ELEMENTS // power_of_two(code_width), most), least)


def code_workspace(rows: int, columns: int, code_width: int, device: torch.device) -> CodeWorkspace:
    """Allocates what launches of at most this size need.

    Args:
        rows: Most rows M of a launch.
        columns: Most columns K.
        code_width: Most codes a row, ``GpuCompensator.code_width``.
        device: Of the launches.
    """
    padded_rows = -(-rows // LARGEST_TILE) * LARGEST_TILE
    size = padded_rows * -(-columns // slice_columns(code_width)) * code_width
    return CodeWorkspace(
        partials=torch.empty(size, dtype=torch.float32, device=device),
        arrivals=torch.zeros(padded_rows, dtype=torch.int32, device=device),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeLaunch:
    """Arguments that a producer kernel passes on to :mod:`kernels.producer.kernel`.

    Attributes:
        tensors: ``a``, ``w1``, ``b1``, ``w2``, ``b2``, ``gated``, ``partials``, ``arrivals``, ``codes``.
        constants: Compile-time values.
        output: float32 ``(P, M, S R)`` that the kernel fills, partial codes; ``None`` without a compensator.
            P is 1 with gates, whose input is the sum.
    """

    tensors: tuple[Tensor, ...]
    constants: dict[str, int | bool]
    output: Tensor | None


def code_launch(
    x: Tensor,
    columns: int,
    tile_rows: int,
    slice_columns: int,
    compensator: GpuCompensator | None,
    workspace: CodeWorkspace | None,
) -> CodeLaunch:
    """Checks compensator and workspace against a launch.

    Args:
        x: ``(M, …)``, gives rows, type and device.
        columns: K.
        tile_rows: Rows a program.
        slice_columns: Columns a program.
        compensator: ``None`` = no codes.
        workspace: Needed with a compensator.

    Raises:
        ValueError: They do not fit.
    """
    if compensator is None:
        return CodeLaunch(tensors=(x,) * 9, constants=code_constants(None, 1, 1), output=None)
    if workspace is None:
        raise ValueError("a compensator was given without a workspace; make one with code_workspace()")
    rows, slices = x.shape[0], -(-columns // slice_columns)
    segments, rank, width = compensator.segments, compensator.rank, compensator.code_width
    require(
        "compensator.a", compensator.a, shape=(segments, rank, columns), dtypes=(x.dtype,), device=x.device
    )
    padded_rows = -(-rows // tile_rows) * tile_rows
    if compensator.gate is not None:  # else no program waits for another
        _require_room(workspace, padded_rows * slices * width, padded_rows // tile_rows, x.device)
    parts = slices if compensator.gate is None else 1
    output = torch.empty(parts, rows, width, dtype=torch.float32, device=x.device)
    return CodeLaunch(
        tensors=(
            compensator.a,
            *_gate_tensors(compensator),
            workspace.partials,
            workspace.arrivals,
            output,
        ),
        constants=code_constants(compensator, tile_rows, slices),
        output=output,
    )


def code_constants(compensator: GpuCompensator | None, tile_rows: int, slices: int) -> dict[str, int | bool]:
    """The compile-time values of the code functions; 0 segments switch them off."""
    if compensator is None:
        return {"SEGMENTS": 0, "R": 16, "BLOCK_W": 16, "H": 1, "BLOCK_H": 1, "SLICES": 1, "GATED": False}
    hidden = 1 if compensator.gate is None else compensator.gate.w1.shape[1]
    return {
        "SEGMENTS": compensator.segments,
        "R": compensator.rank,
        "BLOCK_W": power_of_two(compensator.code_width),
        "H": hidden,
        "BLOCK_H": min(hidden, max(_GATE_ELEMENTS // (compensator.rank * tile_rows), 1)),
        "SLICES": slices,
        "GATED": compensator.gate is not None,
    }


def _gate_tensors(compensator: GpuCompensator) -> tuple[Tensor, ...]:
    a, gate = compensator.a, compensator.gate
    if gate is None:
        return (a,) * 5
    segments, rank, hidden = compensator.segments, compensator.rank, gate.w1.shape[1]
    expected = {
        "w1": (gate.w1, (segments, hidden, rank)),
        "b1": (gate.b1, (segments, hidden)),
        "w2": (gate.w2, (segments, rank, hidden)),
        "b2": (gate.b2, (segments, rank)),
    }
    for name, (tensor, shape) in expected.items():
        require(f"gate {name}", tensor, shape=shape, dtypes=(torch.float32,), device=a.device)
    require("gate gated", gate.gated, shape=(segments,), dtypes=(torch.int32,), device=a.device)
    return gate.w1, gate.b1, gate.w2, gate.b2, gate.gated


def _require_room(workspace: CodeWorkspace, partials: int, arrivals: int, device: torch.device) -> None:
    require("workspace.partials", workspace.partials, shape=(None,), dtypes=(torch.float32,), device=device)
    require("workspace.arrivals", workspace.arrivals, shape=(None,), dtypes=(torch.int32,), device=device)
    have = workspace.partials.numel(), workspace.arrivals.numel()
    if have[0] < partials or have[1] < arrivals:
        raise ValueError(
            f"the workspace holds {have[0]} partial codes and {have[1]} counters; this launch needs "
            f"{partials} and {arrivals}: make it with code_workspace() for the largest launch"
        )
