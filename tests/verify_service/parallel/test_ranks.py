"""What ranks are configured with."""

import pytest

from spearhead.config import load
from spearhead.errors import ConfigError
from spearhead.model.parallel.place import RankPlace
from spearhead.model.settings import ModelSettings, ParallelSettings
from verify_service.config import VerifyConfig
from verify_service.ranks import of_rank


def config(size=2, **model):
    return VerifyConfig(
        model=ModelSettings(path="m", **model), parallel=ParallelSettings(tensor_parallel_size=size)
    )


def place(rank, local_rank, starts=range(0)):
    return RankPlace(rank=rank, size=4, local_rank=local_rank, address="host", port=1, starts=starts)


def test_each_rank_of_a_machine_has_its_own_gpu():
    assert of_rank(config(device="cuda"), place(5, 1)).model.device == "cuda:1"


def test_ranks_of_a_processor_share_its_threads():
    shared = of_rank(config(), place(0, 0, range(1, 1000))).model.threads
    assert shared == 1
    assert of_rank(config(threads=3), place(0, 0, range(1, 4))).model.threads == 3


def test_captured_steps_of_several_ranks_are_refused():
    with pytest.raises(ValueError, match=r"cuda_graphs is true and parallel.tensor_parallel_size 2"):
        config(device="cuda", cuda_graphs=True)
    assert config(size=1, device="cuda", cuda_graphs=True).model.cuda_graphs


def test_one_gpu_for_several_ranks_is_refused():
    with pytest.raises(ConfigError, match=r"'cuda:1', one GPU for 4 ranks; write \"cuda\""):
        of_rank(config(device="cuda:1"), place(0, 0))


@pytest.mark.parametrize("size", [1, 2])
def test_how_ranks_start_is_one_of_two_words(size):
    with pytest.raises(ConfigError, match=r"parallel.launch is 'mpi'; it must be one of spawn, environment"):
        load(
            VerifyConfig,
            overrides=[f"parallel.tensor_parallel_size={size}", "parallel.launch=mpi", "model.path=m"],
        )
