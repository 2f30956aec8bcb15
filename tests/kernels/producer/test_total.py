"""Partial codes are added in one order, whoever adds them."""

import pytest
import torch

pytest.importorskip("triton")

from kernels.producer import total_codes
from kernels.producer.reference import total_codes as reference
from kernels.producer.total import launch


@pytest.mark.parametrize("shape", [(1, 3, 16), (5, 1, 48), (28, 33, 16), (3, 0, 16)])
def test_the_kernel_adds_as_the_law_does(device, shape):
    codes = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    assert torch.equal(launch(codes.to(device)).cpu(), reference(codes))
    assert torch.equal(total_codes(codes.to(device)).cpu(), reference(codes))


def test_other_types_are_refused(device):
    with pytest.raises(ValueError, match=r"codes is torch.float16; it must be torch.float32"):
        launch(torch.ones(2, 3, 16, dtype=torch.float16, device=device))
