"""Which rank this process is, where the ranks meet, and which other ranks it starts."""

from collections.abc import Mapping
from dataclasses import dataclass

from spearhead.errors import ConfigError
from spearhead.model.settings import ParallelSettings

LOOPBACK = "127.0.0.1"

_TORCHRUN = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_LEADER_WORKER_SET = ("LWS_LEADER_ADDRESS", "LWS_GROUP_SIZE", "LWS_WORKER_INDEX")


@dataclass(frozen=True, slots=True, kw_only=True)
class RankPlace:
    """One rank's place among all.

    Attributes:
        rank: From 0, which leads.
        size: Number of ranks.
        local_rank: Number within this machine: the index of its GPU.
        address: Host of the leader.
        port: Where ranks meet there; 0 = any free one, which the leader tells the ranks that it starts.
        starts: Further ranks of this machine that this process starts; they follow it in number.
    """

    rank: int
    size: int
    local_rank: int
    address: str
    port: int
    starts: range

    def beside(self, rank: int, port: int) -> dict[str, str]:
        """The environment of a rank that this one starts.

        Args:
            rank: One of ``starts``.
            port: Where ranks meet.
        """
        return {
            "RANK": str(rank),
            "WORLD_SIZE": str(self.size),
            "LOCAL_RANK": str(self.local_rank + rank - self.rank),
            "MASTER_ADDR": self.address,
            "MASTER_PORT": str(port),
        }


def find_place(settings: ParallelSettings, environment: Mapping[str, str]) -> RankPlace:
    """The place of this process.

    Args:
        settings: Section ``[parallel]``.
        environment: Variables of torchrun, or of a LeaderWorkerSet with one process a pod.

    Raises:
        ConfigError: The environment says nothing, or another number of ranks than the settings.
    """
    size = settings.tensor_parallel_size
    if settings.launch == "spawn":
        return RankPlace(
            rank=0, size=size, local_rank=0, address=LOOPBACK, port=0, starts=range(1, size)
        )  # fmt: skip
    if all(name in environment for name in _TORCHRUN):
        return _of_torchrun(size, environment)
    if all(name in environment for name in _LEADER_WORKER_SET):
        return _of_leader_worker_set(settings, environment)
    raise ConfigError(
        'parallel.launch is "environment", but neither '
        f"{', '.join(_TORCHRUN)} (torchrun) nor {', '.join(_LEADER_WORKER_SET)} (LeaderWorkerSet) are set; "
        'start this with torchrun, or set parallel.launch = "spawn"'
    )


def _of_torchrun(size: int, environment: Mapping[str, str]) -> RankPlace:
    rank = _number(environment, "RANK")
    _check_size(size, _number(environment, "WORLD_SIZE"), "WORLD_SIZE")
    _check_rank(rank, size, "RANK")
    return RankPlace(
        rank=rank,
        size=size,
        local_rank=_number(environment, "LOCAL_RANK") if "LOCAL_RANK" in environment else rank,
        address=LOOPBACK if environment["MASTER_ADDR"] == "localhost" else environment["MASTER_ADDR"],
        port=_number(environment, "MASTER_PORT"),
        starts=range(0),
    )


def _of_leader_worker_set(settings: ParallelSettings, environment: Mapping[str, str]) -> RankPlace:
    size, pods = settings.tensor_parallel_size, _number(environment, "LWS_GROUP_SIZE")
    pod = _number(environment, "LWS_WORKER_INDEX")
    if pods < 1 or size % pods:
        raise ConfigError(
            f"parallel.tensor_parallel_size is {size}, which {pods} pods (LWS_GROUP_SIZE) cannot share "
            "equally; make it a multiple of the group's size"
        )
    _check_rank(pod, pods, "LWS_WORKER_INDEX")
    first, each = pod * (size // pods), size // pods
    return RankPlace(
        rank=first,
        size=size,
        local_rank=0,
        address=environment["LWS_LEADER_ADDRESS"],
        port=settings.rendezvous_port,
        starts=range(first + 1, first + each),
    )


def _number(environment: Mapping[str, str], name: str) -> int:
    value = environment[name]
    if not value.isdecimal():
        raise ConfigError(f"{name} is {value!r} in the environment; it must be a number")
    return int(value)


def _check_size(size: int, found: int, name: str) -> None:
    if size != found:
        raise ConfigError(
            f"parallel.tensor_parallel_size is {size}, but {name} is {found}; start as many processes as "
            "there are ranks"
        )


def _check_rank(rank: int, size: int, name: str) -> None:
    if rank >= size:
        raise ConfigError(f"{name} is {rank}; of {size} it must be 0 to {size - 1}")
