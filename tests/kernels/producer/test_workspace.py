"""A workspace holds what the largest launch needs, and a launch that needs more is refused by name."""

import pytest
import torch

from kernels.compensator.layout import MAX_SLICES, Factors, pack_compensators
from kernels.producer import code_workspace
from kernels.producer.workspace import code_constants, code_launch, program_size, slice_columns, step_columns

CPU = torch.device("cpu")


def packed(columns: int, *, gated: bool = True):
    gate = (torch.ones(5, 4), torch.ones(5), torch.ones(4, 5), torch.ones(4)) if gated else None
    one = Factors(a=torch.ones(4, columns), b=torch.ones(3, 4), gate=gate)
    return pack_compensators([one] * 2, torch.float32)


@pytest.mark.parametrize("slice_columns", [512, 1024])
@pytest.mark.parametrize("rows", [1, 17, 64])
def test_it_has_room_for_every_row(rows, slice_columns):
    compensator = packed(1100)
    workspace = code_workspace(rows, 1100, compensator.code_width, CPU)
    launched = code_launch(torch.ones(rows, 1100), 1100, slice_columns, compensator, workspace)
    assert launched.output.shape == (1, rows, 32)
    assert launched.constants["SLICES"] == -(-1100 // slice_columns)
    assert not workspace.arrivals.any()


@pytest.mark.parametrize(("columns", "code_width"), [(4096, 192), (14336, 16), (14336, 192), (100, 48)])
def test_the_workspace_of_the_largest_launch_serves_smaller_ones(columns, code_width):
    workspace = code_workspace(1, 14336, 192, CPU)
    slices = -(-columns // slice_columns(code_width, columns))
    assert len(workspace.partials) >= slices * code_width


def test_without_gates_every_slice_keeps_its_codes():
    launched = code_launch(torch.ones(17, 1100), 1100, 512, packed(1100, gated=False), None)
    assert launched.output.shape == (3, 17, 32)


def test_codes_fill_what_is_given():
    out = torch.empty(3, 17, 32)
    launched = code_launch(torch.ones(17, 1100), 1100, 512, packed(1100, gated=False), None, out)
    assert launched.output is out
    with pytest.raises(ValueError, match=r"codes has shape \(3, 17, 32\); it must be \(3, 1, 32\)"):
        code_launch(torch.ones(1, 1100), 1100, 512, packed(1100, gated=False), None, out)


@pytest.mark.parametrize(
    ("code_width", "columns", "slice_size"),
    [(16, 4096, 512), (64, 4096, 256), (128, 4096, 128), (768, 4096, 64), (16, 65536, 1024), (48, 576, 256)],
)
def test_a_program_holds_its_part_of_a_in_registers_and_slices_are_few(code_width, columns, slice_size):
    assert slice_columns(code_width, columns) == slice_size
    assert -(-columns // slice_size) <= MAX_SLICES


@pytest.mark.parametrize(
    ("code_width", "columns", "step", "steps"),
    [(192, 4096, 64, 1), (64, 14336, 256, 1), (64, 28672, 256, 2), (192, 8192, 64, 2), (768, 100, 16, 4)],
)
def test_a_slice_that_is_too_much_at_once_is_several_steps(code_width, columns, step, steps):
    assert step_columns(code_width, columns) == step
    assert slice_columns(code_width, columns) == step * steps


@pytest.mark.parametrize(
    ("rows", "gated", "size"),
    [
        (1, False, (1, 1)),
        (8, False, (1, 1)),
        (9, False, (16, 1)),
        (300, False, (16, 4)),
        (2048, False, (16, 9)),
        (2048, True, (1, 1)),
    ],
)
def test_many_rows_share_what_a_program_reads(rows, gated, size):
    assert program_size(rows, 9, gated=gated, few=8) == size


def test_without_a_compensator_there_is_nothing_to_compute():
    launched = code_launch(torch.ones(3, 8), 8, 512, None, None)
    assert launched.output is None and launched.constants == code_constants(None, 1)


def test_more_rows_than_planned_are_refused():
    compensator = packed(600)
    workspace = code_workspace(16, 600, compensator.code_width, CPU)
    with pytest.raises(ValueError, match="the workspace holds 1024 partial codes and 16 counters"):
        code_launch(torch.ones(17, 600), 600, 512, compensator, workspace)


@pytest.mark.parametrize(("dtype", "stages"), [(torch.float16, 3), (torch.bfloat16, 3), (torch.float32, 1)])
def test_shared_memory_has_room_for_one_step_of_float32(dtype, stages):
    a = torch.ones(16, 600, dtype=dtype)
    compensator = pack_compensators([Factors(a=a, b=a[:, :1].T)], dtype)
    launched = code_launch(torch.ones(300, 600, dtype=dtype), 600, 512, compensator, None)
    assert launched.program["num_stages"] == stages
