"""What a producer's launcher prepares for codes: memory for partial codes, and the kernel's arguments."""

from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.compensator.layout import MAX_SLICES, GpuCompensator
from kernels.tensor_checks import power_of_two, require

_A_ELEMENTS = 1 << 14  # of A that a program holds in registers at once
_LEAST_COLUMNS, _MOST_COLUMNS = 64, 512  # of a slice; its steps on a tensor core follow each other
_MMA_K = 16  # columns of a tensor-core step
_ROWS = 16  # of a program that takes several: those of a tensor core
_RUNS = ((256, 1), (1024, 4), (1 << 62, 16))  # rows up to which a program takes so many slices
_GATE_ELEMENTS = 1 << 13  # of a gate's layer, held in registers at once


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeWorkspace:
    """Memory in which programs of a launch hand partial codes to the last of them.

    Belongs to one stream: two launches that may overlap must not share one.

    Attributes:
        partials: float32, partial codes; what it holds between launches has no meaning.
        arrivals: int32, one counter a row; zero between launches. A launch that died may leave another
            value: zero it then.
    """

    partials: Tensor
    arrivals: Tensor


def slice_columns(code_width: int, columns: int) -> int:
    """Columns of a slice: as many as let a program read its part of A at once, but no more than
    :data:`kernels.compensator.layout.MAX_SLICES` slices.

    Args:
        code_width: Codes a row.
        columns: K.
    """
    return max(_fitting_columns(code_width), power_of_two(-(-columns // MAX_SLICES)))


def step_columns(code_width: int, columns: int) -> int:
    """Columns of a slice that a program takes at once; they divide it.

    Args:
        code_width: Codes a row.
        columns: K.
    """
    return min(slice_columns(code_width, columns), max(_A_ELEMENTS // power_of_two(code_width), _MMA_K))


def code_workspace(rows: int, columns: int, code_width: int, device: torch.device) -> CodeWorkspace:
    """Allocates what launches of at most this size need.

    Fewer columns may be more slices: slices grow where there would be too many of them.

    Args:
        rows: Most rows M of a launch.
        columns: Most columns K.
        code_width: Most codes a row, ``GpuCompensator.code_width``.
        device: Of the launches.
    """
    slices = min(-(-columns // _fitting_columns(code_width)), MAX_SLICES)
    return CodeWorkspace(
        partials=torch.empty(rows * slices * code_width, dtype=torch.float32, device=device),
        arrivals=torch.zeros(rows, dtype=torch.int32, device=device),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeLaunch:
    """Arguments that a producer kernel passes on to :mod:`kernels.producer.kernel`.

    Attributes:
        tensors: ``a``, ``w1``, ``b1``, ``w2``, ``b2``, ``gated``, ``partials``, ``arrivals``, ``codes``.
        constants: Compile-time values.
        program: Those that say how many rows and slices a program takes, and how many steps are on their way:
            of float32, shared memory has room for one.
        grid: Such programs over rows and slices.
        output: float32 ``(P, M, S R)`` that the kernel fills, partial codes; ``None`` without a compensator.
            P is 1 with gates, whose input is the sum.
    """

    tensors: tuple[Tensor, ...]
    constants: dict[str, int | bool]
    program: dict[str, int]
    grid: tuple[int, int]
    output: Tensor | None


def program_size(rows: int, slices: int, *, gated: bool, few: int) -> tuple[int, int]:
    """Rows and slices of one program; they decide on time, not on bits.

    Few rows want many programs, each with its part of A; many rows fill the GPU anyway and want A and x read
    seldom. The programs of a gated row wait for each other, so that each has one slice.

    Args:
        rows: M.
        slices: Of K.
        gated: Whether there are gates.
        few: Rows up to which a program takes one row and one slice.
    """
    if gated or rows <= few:
        return 1, 1
    run = next(run for most, run in _RUNS if rows <= most)
    return _ROWS, min(run, slices)


def code_launch(
    x: Tensor,
    columns: int,
    slice_columns: int,
    compensator: GpuCompensator | None,
    workspace: CodeWorkspace | None,
    out: Tensor | None = None,
    *,
    few_rows: int = 8,
) -> CodeLaunch:
    """Checks compensator and workspace against a launch.

    Args:
        x: ``(M, …)``, gives rows, type and device.
        columns: K.
        slice_columns: Columns of a slice.
        compensator: ``None`` = no codes.
        workspace: Needed with a gated compensator.
        out: What to fill, ``(P, M, S R)``; ``None`` = a new one.
        few_rows: Rows up to which a program takes one row and one slice.

    Raises:
        ValueError: They do not fit.
    """
    rows, slices = x.shape[0], -(-columns // slice_columns)
    if compensator is None:
        return CodeLaunch(
            tensors=(x,) * 9,
            constants=code_constants(None, slices),
            program={"TILE_ROWS": 1, "RUN": 1},
            grid=(rows, slices),
            output=None,
        )
    width = compensator.code_width
    require("compensator.down", compensator.down, shape=(columns, width), dtypes=(x.dtype,), device=x.device)
    gate = compensator.gate
    waiting: tuple[Tensor, Tensor] = (compensator.down, compensator.down)  # not read without gates
    if gate is not None:
        if workspace is None:
            raise ValueError(
                "a gated compensator was given without a workspace; make one with code_workspace()"
            )
        _require_room(workspace, rows * slices * width, rows, x.device)
        waiting = (workspace.partials, workspace.arrivals)
    tile_rows, run = program_size(rows, slices, gated=gate is not None, few=few_rows)
    shape = (slices if gate is None else 1, rows, width)
    output = torch.empty(shape, dtype=torch.float32, device=x.device) if out is None else out
    require("codes", output, shape=shape, dtypes=(torch.float32,), device=x.device)
    return CodeLaunch(
        tensors=(compensator.down, *_gate_tensors(compensator), *waiting, output),
        constants=code_constants(compensator, slices),
        program={"TILE_ROWS": tile_rows, "RUN": run, "num_stages": 3 if x.element_size() == 2 else 1},
        grid=(-(-rows // tile_rows), -(-slices // run)),
        output=output,
    )


def code_constants(compensator: GpuCompensator | None, slices: int) -> dict[str, int | bool]:
    """The compile-time values of the code functions; 0 segments switch them off."""
    if compensator is None:
        return {"SEGMENTS": 0, "R": 16, "BLOCK_W": 16, "H": 1, "BLOCK_H": 1, "SLICES": slices,
                "GATED": False}  # fmt: skip
    hidden = 1 if compensator.gate is None else compensator.gate.w1.shape[1]
    return {
        "SEGMENTS": compensator.segments,
        "R": compensator.rank,
        "BLOCK_W": power_of_two(compensator.code_width),
        "H": hidden,
        "BLOCK_H": min(hidden, max(_GATE_ELEMENTS // compensator.rank, 1)),
        "SLICES": slices,
        "GATED": compensator.gate is not None,
    }


def _fitting_columns(code_width: int) -> int:
    """Columns whose part of A a program reads at once."""
    return max(min(_A_ELEMENTS // power_of_two(code_width), _MOST_COLUMNS), _LEAST_COLUMNS)


def _gate_tensors(compensator: GpuCompensator) -> tuple[Tensor, ...]:
    a, gate = compensator.down, compensator.gate
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
