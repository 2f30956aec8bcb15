"""A workspace holds what the largest launch needs, and a launch that needs more is refused by name."""

import pytest
import torch

from kernels.compensator.layout import Factors, pack_compensators
from kernels.producer import code_workspace
from kernels.producer.workspace import code_constants, code_launch, slice_columns

CPU = torch.device("cpu")


def packed(columns: int, *, gated: bool = True):
    gate = (torch.ones(5, 4), torch.ones(5), torch.ones(4, 5), torch.ones(4)) if gated else None
    one = Factors(a=torch.ones(4, columns), b=torch.ones(3, 4), gate=gate)
    return pack_compensators([one] * 2, torch.float32)


@pytest.mark.parametrize(("tile_rows", "slice_columns"), [(1, 512), (16, 1024)])
@pytest.mark.parametrize("rows", [1, 17, 64])
def test_it_has_room_for_every_tile(rows, tile_rows, slice_columns):
    compensator = packed(1100)
    workspace = code_workspace(rows, 1100, compensator.code_width, CPU)
    launched = code_launch(torch.ones(rows, 1100), 1100, tile_rows, slice_columns, compensator, workspace)
    assert launched.output.shape == (1, rows, 32)
    assert launched.constants["SLICES"] == -(-1100 // slice_columns)
    assert not workspace.arrivals.any()


def test_without_gates_every_slice_keeps_its_codes():
    compensator = packed(1100, gated=False)
    nothing = code_workspace(0, 1, 1, CPU)
    launched = code_launch(torch.ones(17, 1100), 1100, 1, 512, compensator, nothing)
    assert launched.output.shape == (3, 17, 32)


@pytest.mark.parametrize(("code_width", "columns"), [(16, 1024), (32, 512), (48, 256), (64, 256), (768, 128)])
def test_a_program_holds_its_part_of_a_in_registers(code_width, columns):
    assert slice_columns(code_width) == columns


def test_without_a_compensator_there_is_nothing_to_compute():
    launched = code_launch(torch.ones(3, 8), 8, 1, 512, None, None)
    assert launched.output is None and launched.constants == code_constants(None, 1, 1)


def test_more_rows_than_planned_are_refused():
    compensator = packed(600)
    workspace = code_workspace(16, 600, compensator.code_width, CPU)
    with pytest.raises(ValueError, match="the workspace holds 1024 partial codes and 16 counters"):
        code_launch(torch.ones(17, 600), 600, 1, 512, compensator, workspace)
