import pytest
import torch

from spearhead.quant.head_logits import head_logits


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_logits_are_not_rounded_to_the_models_dtype(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(2)
    hidden, head = (torch.randn(rows, 48, generator=generator).to(dtype) for rows in (5, 33))
    logits = head_logits(hidden, head)
    assert logits.dtype == torch.float32
    torch.testing.assert_close(logits.double(), hidden.double() @ head.double().T, rtol=1e-5, atol=1e-5)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device: the 16-bit product was not tried")
def test_the_product_of_16_bit_tensors_on_a_gpu_is_not_rounded_either() -> None:
    generator = torch.Generator().manual_seed(2)
    hidden, head = (torch.randn(rows, 48, generator=generator).bfloat16() for rows in (5, 33))
    logits = head_logits(hidden.cuda(), head.cuda()).cpu()
    torch.testing.assert_close(logits.double(), hidden.double() @ head.double().T, rtol=1e-5, atol=1e-5)
