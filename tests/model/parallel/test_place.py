"""Which rank a process is."""

import pytest

from spearhead.errors import ConfigError
from spearhead.model.parallel.place import find_place
from spearhead.model.settings import ParallelSettings

TORCHRUN = {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "MASTER_ADDR": "host", "MASTER_PORT": "4000"}
POD = {"LWS_LEADER_ADDRESS": "group-0.group", "LWS_GROUP_SIZE": "2", "LWS_WORKER_INDEX": "1"}


def place(environment, size=8, launch="environment"):
    return find_place(ParallelSettings(tensor_parallel_size=size, launch=launch), environment)


def test_a_process_that_spawns_leads_and_starts_all_others_whatever_the_environment_says():
    found = place(TORCHRUN | POD, launch="spawn")
    assert (found.rank, found.size, found.starts) == (0, 8, range(1, 8))
    assert (found.address, found.port) == ("127.0.0.1", 0)


def test_torchrun_says_which_rank_this_is_and_starts_each_itself():
    found = place(TORCHRUN | POD)
    assert (found.rank, found.size, found.local_rank) == (5, 8, 1)
    assert (found.address, found.port, found.starts) == ("host", 4000, range(0))


def test_ranks_of_one_machine_stay_on_it_by_whatever_name_it_is_called():
    assert place(TORCHRUN | {"MASTER_ADDR": "localhost"}).address == "127.0.0.1"


def test_without_a_local_rank_the_rank_is_that_of_one_machine():
    assert place({name: value for name, value in TORCHRUN.items() if name != "LOCAL_RANK"}).local_rank == 5


def test_a_pod_of_a_group_has_consecutive_ranks_and_starts_all_but_its_first():
    found = place(POD)
    assert (found.rank, found.local_rank, found.starts) == (4, 0, range(5, 8))
    assert (found.address, found.port) == ("group-0.group", 29500)
    assert place(POD | {"LWS_WORKER_INDEX": "0"}).starts == range(1, 4)


def test_a_rank_that_is_started_beside_another_finds_the_place_that_it_was_given():
    first = place(POD)
    for rank in first.starts:
        found = place(POD | first.beside(rank, first.port))
        assert (found.rank, found.local_rank, found.size) == (rank, rank - 4, 8)
        assert (found.address, found.port, found.starts) == (first.address, first.port, range(0))


@pytest.mark.parametrize(
    ("environment", "size", "message"),
    [
        ({}, 2, r'neither RANK, .* nor LWS_.* are set; start this with torchrun, or set .* = "spawn"'),
        (TORCHRUN, 4, "tensor_parallel_size is 4, but WORLD_SIZE is 8"),
        (TORCHRUN | {"RANK": "8"}, 8, "RANK is 8; of 8 it must be 0 to 7"),
        (TORCHRUN | {"MASTER_PORT": "http"}, 8, "MASTER_PORT is 'http' in the environment"),
        (POD | {"LWS_GROUP_SIZE": "3"}, 8, "8, which 3 pods .* cannot share equally"),
        (POD | {"LWS_WORKER_INDEX": "2"}, 8, "LWS_WORKER_INDEX is 2; of 2"),
    ],
)
def test_a_place_that_does_not_exist_is_refused(environment, size, message):
    with pytest.raises(ConfigError, match=message):
        place(environment, size)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("tensor_parallel_size", 0),
        ("rendezvous_port", 0),
        ("lost_after_s", 0.0),
        ("collective_timeout_s", float("nan")),
    ],
)
def test_settings_out_of_range_are_refused_by_name(key, value):
    with pytest.raises(ValueError, match=key):
        ParallelSettings(**{key: value})
