"""Launches the fused W4 kernel; checks what the kernel takes on trust. Needs Triton."""

import torch
import triton
from torch import Tensor

from kernels.compensator.layout import GpuCompensator
from kernels.producer import total
from kernels.producer.workspace import slice_columns, step_columns
from kernels.tensor_checks import power_of_two, require
from kernels.w4a16 import few_rows
from kernels.w4a16.kernel import w4a16_kernel
from kernels.w4a16.layout import GpuWeight
from kernels.w4a16.plan import FewTile, LayerPlan, Tile, computes_codes, launch_rows
from kernels.w4a16.rooms import GROUP_ROWS, room_words
from kernels.w4a16.workspace import Workspace

DTYPES = (torch.float16, torch.bfloat16)
_CODE_STEP = 128  # columns of A and x that a program multiplies at once
# Codes that are given apart, as benchmarks give them to few rows; in service more rows have them so.
_ADDED_INSIDE = 16  # rows up to which the kernel adds partial codes; either way in the same order


def compiled() -> bool:
    """Whether kernels are compiled; in Triton's interpreter they are not."""
    return isinstance(w4a16_kernel, triton.JITFunction)


def needs_fence() -> bool:
    """Whether Triton leaves the fence between cp.async and wgmma to us."""
    major, minor = triton.__version__.split(".")[:2]
    return compiled() and (int(major), int(minor)) < (3, 7)


def multiply(
    x: Tensor,
    weight: GpuWeight,
    plan: LayerPlan,
    workspace: Workspace,
    *,
    compensator: GpuCompensator | None = None,
    codes: Tensor | None = None,
    room: Tensor | None = None,
) -> Tensor:
    """``x weightᵀ + bias + codes Bᵀ`` in the type of ``x``, by the fused kernel.

    Args:
        x: float16 or bfloat16 ``(M, K)``, contiguous, 16-byte aligned, on the current device; M may be 0.
        weight: ``(N, K)``.
        plan: The layer's; fixes which bits come out.
        workspace: Not used by another launch that may run at once.
        compensator: B of it is in the type of ``x``.
        codes: float32 ``(P, M, S R)``, partial codes, whose sum over P is the codes; given if ``compensator``
            is, unless :func:`kernels.w4a16.plan.computes_codes`.
        room: int32 zeros, :func:`kernels.w4a16.rooms.room_words` of them, used up by a launch that computes
            codes; ``None`` = made here, at the price of a launch.

    Returns:
        ``(M, N)``.

    Raises:
        ValueError: Something does not fit the kernel.
    """
    check(x, weight)
    rows = x.shape[0]
    if codes is None and compensator is not None and computes_codes(compensator, rows):
        check_compensator(x, weight, compensator)
        room = _checked(room, x.device, room_words(compensator, rows))
    else:
        check_correction(x, weight, compensator, codes)
        room = None
    few = _few_tile(weight, plan, rows)
    if few is not None:
        return few_rows.multiply(x, weight, few, plan.parts, workspace, compensator, codes, room)
    y = torch.empty(rows, weight.out_features, dtype=x.dtype, device=x.device)
    tile = plan.tile(rows)
    if codes is not None and codes.shape[0] > 1 and rows > _ADDED_INSIDE:
        codes = total.launch(codes)[None]
    step = launch_rows(rows, plan.parts, weight.padded_outputs, tile)
    for first in range(0, rows, max(step, 1)):
        own = slice(first, first + step)
        own_codes = None if codes is None else codes[:, own].contiguous()
        own_room = None if room is None or compensator is None else room[room_words(compensator, first) :]
        launch(x[own], weight, tile, plan.parts, workspace, y[own], compensator, own_codes, own_room)
    return y


def _checked(room: Tensor | None, device: torch.device, words: int) -> Tensor:
    if room is None:
        return torch.zeros(words, dtype=torch.int32, device=device)
    require("room", room, shape=(words,), dtypes=(torch.int32,), device=device)
    return room


def _few_tile(weight: GpuWeight, plan: LayerPlan, rows: int) -> FewTile | None:
    """The tile of the kernel for few rows; it is not interpreted."""
    return few_rows.tile_for(plan, weight, rows) if compiled() else None


def launch(
    x: Tensor,
    weight: GpuWeight,
    tile: Tile,
    parts: int,
    workspace: Workspace,
    y: Tensor,
    compensator: GpuCompensator | None,
    codes: Tensor | None,
    room: Tensor | None = None,
) -> None:
    """One launch on arguments that :func:`check` has seen; fills ``y``.

    It computes the codes of a compensator that is given without them, and needs ``room`` then.
    """
    rows, columns, padded = x.shape[0], weight.in_features, weight.padded_outputs
    if padded % tile.outputs:
        raise ValueError(f"tiles of {tile.outputs} outputs do not divide {padded}; use 64")
    grid: tuple[int, ...] = (triton.cdiv(rows, tile.rows), padded // tile.outputs, tile.split)
    counters = grid[0] * grid[1] if tile.split > 1 else 0
    sums = parts * grid[0] * tile.rows * padded if parts > 1 else 0
    memory, slices, slice_size, step, width = workspace.partials(sums), 0, 16, 16, 16
    if compensator is not None and codes is None:
        width = compensator.code_width
        slice_size = slice_columns(width, columns)
        step = min(step_columns(width, columns), _CODE_STEP)
        slices, groups = -(-columns // slice_size), -(-rows // GROUP_ROWS)
        memory = workspace.partials(sums + slices * rows * width)
        codes = memory[sums:]
        grid = (slices * groups + grid[0] * grid[1] * grid[2],)
    options: dict[str, int] = {"num_warps": tile.warps, "num_stages": tile.stages}
    if compiled():
        options |= {"launch_pdl": tile.overlap} | ({"maxnreg": tile.registers} if tile.registers else {})
    w4a16_kernel[grid](
        x,
        weight.words,
        weight.scales,
        weight.bias,
        compensator.down if compensator is not None and slices else None,
        None if compensator is None else compensator.b,
        codes,
        room,
        y,
        memory,
        workspace.counters(counters),
        rows,
        N=weight.out_features,
        NP=padded,
        K=columns,
        BM=tile.rows,
        BN=tile.outputs,
        G=weight.group_size,
        PARTS=parts,
        SPLIT=tile.split,
        LEVELS=(parts // tile.split).bit_length() - 1,
        HAS_BIAS=weight.bias is not None,
        R=0 if compensator is None else compensator.rank,
        S=1 if compensator is None else compensator.segments,
        P=1 if codes is None or slices else codes.shape[0],
        ENDS=(weight.out_features,) if compensator is None else compensator.ends,
        SLICES=slices,
        SLICE=slice_size,
        BLOCK_C=step,
        BLOCK_W=power_of_two(width),
        ASM=compiled(),
        FENCE=needs_fence(),
        PDL=tile.overlap and compiled(),
        **options,
    )


def check(x: Tensor, weight: GpuWeight) -> None:
    """Refuses an input that the kernels cannot take.

    Raises:
        ValueError: Names the value and what is allowed.
    """
    if x.dtype not in DTYPES or x.ndim != 2 or x.shape[1] != weight.in_features:
        raise ValueError(
            f"x must be float16 or bfloat16 (M, {weight.in_features}); got {x.dtype} {tuple(x.shape)}"
        )
    if not x.is_contiguous() or x.data_ptr() % 16:
        raise ValueError(f"x must be contiguous and 16-byte aligned; got strides {x.stride()}: copy it")
    if x.device != weight.words.device:
        raise ValueError(f"x is on {x.device} and the weight on {weight.words.device}; move one of them")


def check_correction(
    x: Tensor, weight: GpuWeight, compensator: GpuCompensator | None, codes: Tensor | None
) -> None:
    """Refuses a compensator that does not fit the product, or codes that do not fit the compensator.

    Raises:
        ValueError: Names the value and what is allowed.
    """
    if (compensator is None) != (codes is None):
        raise ValueError("compensator and codes belong together; give both or neither")
    if compensator is None or codes is None:
        return
    check_compensator(x, weight, compensator)
    expected = (max(codes.shape[0], 1), x.shape[0], compensator.code_width)
    if codes.shape != expected or codes.dtype != torch.float32 or not codes.is_contiguous():
        raise ValueError(
            f"codes must be contiguous float32 {expected}; got {codes.dtype} {tuple(codes.shape)}"
        )


def check_compensator(x: Tensor, weight: GpuWeight, compensator: GpuCompensator) -> None:
    """Refuses a compensator that does not fit the product.

    Raises:
        ValueError: Names the value and what is allowed.
    """
    if compensator.b.shape[0] != weight.padded_outputs or compensator.b.dtype != x.dtype:
        raise ValueError(
            f"the compensator's b must be {x.dtype} ({weight.padded_outputs}, R); "
            f"got {compensator.b.dtype} {tuple(compensator.b.shape)}"
        )
