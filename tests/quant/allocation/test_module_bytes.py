import pytest

from spearhead.model.checkpoint.factor_codec import FactorBits
from spearhead.quant.allocation import ModuleShape, compensator_bytes, device_bytes

COLUMN = ModuleShape(name="up", outputs=1536, inputs=576, row_parallel=False)
ROW = ModuleShape(name="down", outputs=576, inputs=1537, row_parallel=True)


@pytest.mark.parametrize(
    ("bits", "expected"),
    [
        (16, 3 * 2 * (576 + 1537)),
        (8, 3 * (576 + 1537) + 2 * 3 * 4),  # codes, then one scale a component of A and of B
        (4, 3 * 4 * (72 + 193) + 2 * 3 * 4),  # 1537 codes need 193 words
    ],
)
def test_factors_take_what_their_format_says(bits: FactorBits, expected: int) -> None:
    assert compensator_bytes(ROW, 3, factor_bits=bits, gated=False) == expected


@pytest.mark.parametrize(("rank", "hidden"), [(1, 4), (16, 4), (17, 8), (64, 16)])
def test_a_gate_takes_its_four_tensors(rank: int, hidden: int) -> None:
    gate = compensator_bytes(ROW, rank, factor_bits=8, gated=True) - compensator_bytes(
        ROW, rank, factor_bits=8, gated=False
    )
    assert gate == 2 * (2 * rank * hidden + hidden + rank)


def test_no_rank_takes_no_bytes() -> None:
    assert compensator_bytes(ROW, 0, factor_bits=4, gated=True) == 0


def test_a_device_holds_the_uncut_factor_whole() -> None:
    def held(module: ModuleShape, size: int) -> int:
        return device_bytes(module, 4, factor_bits=16, gated=False, tensor_parallel_size=size)

    assert held(COLUMN, 1) == compensator_bytes(COLUMN, 4, factor_bits=16, gated=False)
    assert held(COLUMN, 2) == 4 * 2 * (576 + 768)  # B is cut by rows
    assert held(ROW, 2) == 4 * (2 * 576 + 1537)  # A is cut by columns
