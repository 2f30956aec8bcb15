import pytest
import torch

from spearhead.quant.device import free_memory_bytes, give_back_memory


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device: its memory was not counted")
def test_what_torch_keeps_of_tensors_that_are_gone_is_free_before_and_after_it_is_given_back() -> None:
    device = torch.device("cuda")
    size, slack = 256 << 20, 8 << 20
    before = free_memory_bytes(device)
    tensor = torch.empty(size, dtype=torch.uint8, device=device)
    assert abs(before - size - free_memory_bytes(device)) < slack
    del tensor
    assert abs(before - free_memory_bytes(device)) < slack
    give_back_memory(device)
    assert torch.cuda.mem_get_info(device)[0] >= before - slack


def test_a_processor_has_nothing_to_give_back() -> None:
    give_back_memory(torch.device("cpu"))
    assert free_memory_bytes(torch.device("cpu")) > 0
