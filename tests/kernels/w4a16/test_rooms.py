"""Zeros that are given out once."""

import pytest
import torch

from kernels.w4a16 import Rooms


def test_zeros_are_given_out_piece_by_piece_until_they_are_used_up():
    rooms = Rooms(torch.device("cpu"))
    assert rooms.take(4) is None
    rooms.start(12)
    first, second = rooms.take(4), rooms.take(8)
    first.fill_(7)
    assert len(second) == 8 and not bool(second.any())
    assert rooms.take(4) is None
    rooms.start(4)
    assert not bool(rooms.take(4).any())


@pytest.mark.parametrize("rows", [1, 16, 17, 64])
def test_parts_of_a_launch_find_room_behind_each_other(rows):
    from kernels.compensator.layout import Factors, pack_compensators
    from kernels.w4a16 import room_words

    compensator = pack_compensators([Factors(a=torch.ones(3, 8), b=torch.ones(5, 3))], torch.float16)
    first = min(16, rows)
    parts = room_words(compensator, first) + room_words(compensator, rows - first)
    assert parts == room_words(compensator, rows)
    assert room_words(compensator, first) % 4 == 0
