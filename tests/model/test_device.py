"""Devices that nothing computes on are refused with what to do about it."""

import pytest
import torch

from spearhead.errors import ConfigError
from spearhead.model.device import check_capability, check_vocabulary, compute_device, compute_dtypes
from spearhead.model.settings import ModelSettings

CPU, CUDA = torch.device("cpu"), torch.device("cuda", 0)


@pytest.mark.parametrize(
    ("device", "message"),
    [("teapot", "no device"), ("meta", "cpu, cuda or cuda:<index>"), ("mps", "cpu, cuda or cuda:<index>")],
)
def test_other_devices_are_refused(device, message):
    with pytest.raises(ConfigError, match=message):
        compute_device(ModelSettings(path="m", device=device))


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device here")
def test_a_gpu_that_is_not_there_is_refused_with_the_remedy():
    with pytest.raises(ConfigError, match=r"finds no CUDA device.*set model.device = 'cpu'"):
        compute_device(ModelSettings(path="m", device="cuda"))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device here")
def test_an_index_beyond_the_last_gpu_is_refused():
    assert compute_device(ModelSettings(path="m", device="cuda")).index is not None
    with pytest.raises(ConfigError, match="CUDA devices, counted from 0"):
        compute_device(ModelSettings(path="m", device="cuda:99"))


def test_gpus_from_before_hopper_are_refused():
    check_capability("NVIDIA H200", (9, 0))
    with pytest.raises(ConfigError, match=r"NVIDIA A100 has compute capability 8.0; .* need 9.0"):
        check_capability("NVIDIA A100", (8, 0))


def test_vocabularies_that_cannot_be_sampled_on_a_gpu_are_refused_there_only():
    check_vocabulary(1 << 18, CUDA)
    check_vocabulary((1 << 18) + 1, CPU)
    with pytest.raises(ConfigError, match="262145 tokens"):
        check_vocabulary((1 << 18) + 1, CUDA)


def test_a_gpu_computes_in_bfloat16_unless_told_otherwise():
    assert compute_dtypes(ModelSettings(path="m"), CUDA) == (torch.bfloat16,)
    assert compute_dtypes(ModelSettings(path="m", dtype="float16"), CUDA) == (torch.float16,)
    assert compute_dtypes(ModelSettings(path="m"), CPU)[-1] is torch.float32


def test_graphs_without_a_gpu_are_refused_by_name() -> None:
    with pytest.raises(ValueError, match='cuda_graphs is true and device "cpu"; set device to "cuda"'):
        ModelSettings(cuda_graphs=True)
    assert ModelSettings(cuda_graphs=True, device="cuda:1").cuda_graphs
