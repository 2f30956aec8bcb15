"""Zeros that are given out once."""

import pytest
import torch

from kernels.compensator.layout import Factors, pack_compensators
from kernels.w4a16 import Rooms, room_words


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


@pytest.mark.parametrize(("rows", "first"), [(17, 16), (64, 16), (64, 32)])
def test_parts_of_a_launch_find_room_behind_each_other(rows, first):
    compensator = pack_compensators([Factors(a=torch.ones(3, 8), b=torch.ones(5, 3))], torch.float16)
    parts = room_words(compensator, first) + room_words(compensator, rows - first)
    assert parts == room_words(compensator, rows)
    assert room_words(compensator, first) % 4 == 0


def test_copies_of_a_product_share_what_the_first_one_made():
    rooms = Rooms(torch.device("cpu"))
    compensator = pack_compensators([Factors(a=torch.ones(3, 8), b=torch.ones(5, 3))], torch.float16)
    found = [rooms.of_copy(copy, [compensator] * 3, 20) for copy in range(3)]
    for one in found:
        assert not bool(one.any())
        one.fill_(1)
    assert rooms.of_copy(1, [compensator] * 3, 20) is None
