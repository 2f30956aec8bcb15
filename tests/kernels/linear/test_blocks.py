"""Dense products in blocks of rows."""

import pytest
import torch

from kernels.linear import BLOCK_ROWS, multiply_blocks
from kernels.linear.reference import linear as reference

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@pytest.mark.parametrize("rows", [0, 1, 17, BLOCK_ROWS, BLOCK_ROWS + 1, 300])
@pytest.mark.parametrize("biased", [False, True])
def test_blocks_follow_the_law(rows, biased):
    x, weight = torch.randn(rows, 100, device=DEVICE), torch.randn(63, 100, device=DEVICE)
    bias = torch.randn(63, device=DEVICE) if biased else None
    y = multiply_blocks(x, weight, bias)
    torch.testing.assert_close(y, reference(x, weight, bias), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize(("outputs", "inputs"), [(960, 576), (63, 100), (576, 1536)])
def test_a_row_has_the_same_bits_whatever_the_row_count(dtype, outputs, inputs):
    x = torch.randn(300, inputs, device=DEVICE).to(dtype)
    weight, bias = (
        torch.randn(outputs, inputs, device=DEVICE).to(dtype),
        torch.randn(outputs, device=DEVICE).to(dtype),
    )
    whole = multiply_blocks(x, weight, bias)
    for first, last in ((0, 1), (5, 22), (100, 300), (299, 300), (64, 192)):
        assert torch.equal(multiply_blocks(x[first:last].clone(), weight, bias), whole[first:last])
