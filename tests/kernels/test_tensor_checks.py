"""What a kernel would misread is named, with what it must be."""

import pytest
import torch

from kernels.tensor_checks import power_of_two, require

GIVEN = {"shape": (2, None), "dtypes": (torch.float16, torch.float32), "device": torch.device("cpu")}


@pytest.mark.parametrize(
    ("tensor", "message"),
    [
        (torch.ones(3, 4), r"x has shape \(3, 4\); it must be \(2, any\)"),
        (torch.ones(2), r"x has shape \(2,\); it must be \(2, any\)"),
        (torch.ones(2, 4).double(), "x is torch.float64; it must be torch.float16 or torch.float32"),
        (torch.ones(2, 4, device="meta"), "x is on meta; move it to cpu"),
        (torch.ones(4, 2).T, r"x has strides \(1, 2\); call contiguous"),
        (torch.ones(2, 8)[:, :4], r"x has strides \(8, 1\); call contiguous"),
    ],
)
def test_a_wrong_tensor_is_refused(tensor, message):
    with pytest.raises(ValueError, match=message):
        require("x", tensor, **GIVEN)


def test_rows_may_be_apart_where_the_kernel_takes_a_stride():
    require("x", torch.ones(2, 8)[:, :4], rows_contiguous=True, **GIVEN)
    with pytest.raises(ValueError, match="the last must be 1"):
        require("x", torch.ones(4, 2).T, rows_contiguous=True, **GIVEN)


@pytest.mark.parametrize(("count", "power"), [(0, 1), (1, 1), (2, 2), (3, 4), (64, 64), (65, 128)])
def test_powers_of_two_are_rounded_up(count, power):
    assert power_of_two(count) == power
