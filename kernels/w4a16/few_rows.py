"""Launches the product of at most 16 rows; says when it is the one to take. Needs Triton."""

import torch
from torch import Tensor

from kernels.compensator.layout import GpuCompensator
from kernels.producer.workspace import slice_columns, step_columns
from kernels.w4a16.few_rows_kernel import few_rows_kernel
from kernels.w4a16.layout import TILE_INPUTS, GpuWeight
from kernels.w4a16.plan import FewTile, LayerPlan
from kernels.w4a16.workspace import Workspace

_WARPS = 4
_MOST_CHUNKS = 64  # of a part, whose scales lie in shared memory


def tile_for(plan: LayerPlan, weight: GpuWeight, rows: int) -> FewTile | None:
    """The tile of a row count, if the plan has one and the kernel takes the weight's groups and parts."""
    chunks = -(-weight.in_features // TILE_INPUTS)
    # Triton 3.6 does not compile a loop over one chunk.
    if weight.group_size % 128 or not 1 < chunks <= _MOST_CHUNKS * plan.parts:
        return None
    return next((tile for tile in plan.few if rows <= tile.rows), None)


def launch(
    x: Tensor,
    weight: GpuWeight,
    tile: FewTile,
    parts: int,
    workspace: Workspace,
    y: Tensor,
    compensator: GpuCompensator | None,
    codes: Tensor | None,
    room: Tensor | None,
) -> None:
    """One launch on arguments that :func:`kernels.w4a16.gpu.check` has seen; fills ``y``.

    Args:
        x: ``(M, K)``, M from 1 to the rows of the tile.
        weight: ``(N, K)``, per channel or of groups that are multiples of 128.
        tile: Divides the outputs.
        parts: Of K.
        workspace: Large enough (:func:`kernels.w4a16.workspace.needed`).
        y: ``(M, N)``.
        compensator: ``None`` = no correction.
        codes: float32 ``(P, M, S R)``, partial codes; ``None`` = computed here.
        room: int32 zeros, used up by a launch that computes codes.

    Raises:
        ValueError: The tile does not divide the outputs.
    """
    rows, columns, padded = x.shape[0], weight.in_features, weight.padded_outputs
    if padded % tile.outputs:
        raise ValueError(f"tiles of {tile.outputs} outputs do not divide {padded}; use 64")
    tiles, sums = padded // tile.outputs, parts * rows * padded if parts > 1 else 0
    slices, size, step, own = 0, 16, 16, None
    memory, counters = workspace.partials(sums), workspace.counters(tiles)
    if compensator is not None and codes is None:
        width = compensator.code_width
        size, step = slice_columns(width, columns), step_columns(width, columns)
        slices, own = -(-columns // size), compensator.down
        memory = workspace.partials(sums + slices * rows * width)
        codes = memory[sums:]
    few_rows_kernel[(slices + tiles * parts,)](
        x,
        weight.words,
        weight.scales,
        weight.bias,
        own,
        None if compensator is None else compensator.b,
        codes,
        room,
        y,
        memory,
        counters,
        rows,
        N=weight.out_features,
        NP=padded,
        K=columns,
        BM=tile.rows,
        BN=tile.outputs,
        G=weight.group_size,
        PARTS=parts,
        STAGES=tile.stages,
        HAS_BIAS=weight.bias is not None,
        R=0 if compensator is None else compensator.rank,
        S=1 if compensator is None else compensator.segments,
        P=1 if codes is None or slices else codes.shape[0],
        ENDS=(weight.out_features,) if compensator is None else compensator.ends,
        SLICES=slices,
        BLOCK_C=step,
        STEPS=size // step,
        PDL=True,
        EARLY=tile.early,
        num_warps=_WARPS,
        launch_pdl=True,
    )


def multiply(
    x: Tensor,
    weight: GpuWeight,
    tile: FewTile,
    parts: int,
    workspace: Workspace,
    compensator: GpuCompensator | None,
    codes: Tensor | None,
    room: Tensor | None,
) -> Tensor:
    """:func:`launch` into a new tensor ``(M, N)``; M may be 0."""
    y = torch.empty(x.shape[0], weight.out_features, dtype=x.dtype, device=x.device)
    if x.shape[0]:
        launch(x, weight, tile, parts, workspace, y, compensator, codes, room)
    return y
