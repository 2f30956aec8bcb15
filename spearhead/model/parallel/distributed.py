"""Ranks that are processes: the one place that knows ``torch.distributed``."""

import datetime
import os
import socket
import sys
import time
from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from spearhead.errors import RankFailure
from spearhead.model.parallel.place import LOOPBACK, RankPlace

_PAUSE_S = 0.05

DAY_S = 86_400.0
"""Longer than a wait that another part of the process ends."""


class MeetingPoint:
    """Where ranks learn of each other: a small table of words at the leader's address.

    Under torchrun its agent keeps the table, else the leader does.

    Args:
        place: Of this rank.
        timeout_s: Wait so many seconds for the leader.

    Raises:
        RankFailure: The leader is not there, or this is the leader and its port is taken.
    """

    def __init__(self, place: RankPlace, timeout_s: float) -> None:
        by_agent = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
        keeps = place.rank == 0 and not by_agent
        self._where = f"{place.address}:{place.port}"
        try:
            listening = _loopback_listener(place.port) if keeps and place.address == LOOPBACK else None
            store = dist.TCPStore(  # type: ignore[attr-defined]  # documented; torch's stubs do not say so
                place.address,
                place.port if listening is None else listening.getsockname()[1],
                is_master=keeps,
                timeout=datetime.timedelta(seconds=timeout_s),
                wait_for_workers=False,
                master_listen_fd=None if listening is None else listening.detach(),
            )
        except (OSError, RuntimeError) as error:
            raise RankFailure(_no_meeting(place, keeps, error)) from error
        attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") if by_agent else "0"
        self.port = store.port
        self.store = dist.PrefixStore(f"spearhead/{attempt}", store)  # type: ignore[attr-defined]

    def say(self, name: str, word: str) -> None:
        """Writes a word."""
        self.store.set(name, word)

    def hear(self, name: str, timeout_s: float, check: Callable[[], None] = lambda: None) -> str:
        """Reads a word, waiting for it.

        Args:
            name: Of the word.
            timeout_s: Longest wait, seconds; the leader's end is noticed in any case.
            check: Called now and then; raises what makes waiting pointless.

        Raises:
            RankFailure: Nobody says it.
        """
        deadline = time.monotonic() + timeout_s
        try:
            while not self.store.check([name]):
                check()
                if time.monotonic() > deadline:
                    raise RankFailure(f"the leader at {self._where} said nothing within {timeout_s:g} s")
                time.sleep(_PAUSE_S)  # the table can only be asked; its own wait asks nobody else
            return bytes(self.store.get(name)).decode()
        except RuntimeError as error:
            raise RankFailure(f"the leader at {self._where} is gone: {error}") from error

    def meet(self, name: str, rank: int, size: int) -> None:
        """Waits until all ranks have called it, as long as they live: the end of one ends the others.

        Args:
            name: Of the meeting.
            rank: This one.
            size: Number of ranks.

        Raises:
            RankFailure: The leader is gone.
        """
        self.say(f"{name} {rank}", "here")
        for other in range(size):
            self.hear(f"{name} {other}", DAY_S)


class DistributedRanks:
    """Exchanges tensors through gloo on processors, through NCCL on CUDA devices.

    Sums are not the library's: it adds in an order of its own, which changes with size and algorithm, so that
    a row's bits would depend on its batch. Here parts are gathered, and every rank adds them in one order.

    Args:
        meeting: All ranks are on their way to it.
        place: Of this rank.
        device: Of the tensors that are exchanged.
        timeout_s: Longest exchange, seconds.

    Raises:
        RankFailure: The others did not come.
    """

    def __init__(
        self, meeting: MeetingPoint, place: RankPlace, *, device: torch.device, timeout_s: float
    ) -> None:
        self.rank = place.rank
        self.size = place.size
        self._meeting = meeting
        self._times_met = 0
        self._device = device
        self._timeout_s = timeout_s
        if place.address == LOOPBACK and sys.platform == "linux":
            # Left alone, gloo listens on whatever address the machine's own name stands for.
            os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        cuda = device.type == "cuda"
        if cuda:
            torch.cuda.set_device(device)  # of this thread, the only one that computes
        try:
            dist.init_process_group(
                "nccl" if cuda else "gloo",
                store=meeting.store,
                rank=self.rank,
                world_size=self.size,
                timeout=datetime.timedelta(seconds=timeout_s),
                device_id=device if cuda else None,
            )
        except RuntimeError as error:
            raise RankFailure(f"rank {self.rank} of {self.size} did not meet the others: {error}") from error

    def meet(self) -> None:
        """See :class:`spearhead.model.parallel.Ranks`."""
        self._times_met += 1
        self._meeting.meet(f"met {self._times_met}", self.rank, self.size)

    def gather(self, tensor: Tensor) -> Sequence[Tensor]:
        """See :class:`spearhead.model.parallel.Ranks`."""
        sent = tensor.contiguous().view(torch.uint8)  # bytes: every backend takes them, whatever they mean
        received = [torch.empty_like(sent) for _ in range(self.size)]
        try:
            dist.all_gather(received, sent)
        except RuntimeError as error:
            raise RankFailure(
                f"rank {self.rank} of {self.size} could not exchange {sent.nbytes} bytes with the others "
                f"within {self._timeout_s:g} s: {error}"
            ) from error
        return [part.view(tensor.dtype) for part in received]

    def agree(self, proposal: bool) -> bool:
        """See :class:`spearhead.model.parallel.Ranks`."""
        mine = torch.tensor([proposal], dtype=torch.uint8, device=self._device)
        return all(bool(answer.item()) for answer in self.gather(mine))


def _no_meeting(place: RankPlace, keeps: bool, error: Exception) -> str:
    where = f"{place.address}:{place.port}"
    if keeps:
        return (
            f"rank 0 cannot let the others meet at {where}: {error}; choose a port that is free "
            "(parallel.rendezvous_port, or torchrun's --master-port)"
        )
    return (
        f"rank {place.rank} of {place.size} cannot reach the leader at {where}: {error}; look at the log of "
        "rank 0"
    )


def _loopback_listener(port: int) -> socket.socket:
    """The table has no password, so that ranks of one machine meet where no other machine can."""
    listening = socket.socket()
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listening.bind((LOOPBACK, port))
    listening.listen()
    return listening
