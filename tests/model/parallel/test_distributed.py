"""Two processes exchange through gloo, and none waits for ever."""

import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from spearhead.errors import RankFailure
from spearhead.model.parallel.distributed import MeetingPoint
from spearhead.model.parallel.place import LOOPBACK, RankPlace

SCRIPT = Path(__file__).with_name("meeting_rank.py")
ROOT = SCRIPT.parents[3]


def start(rank: int, port: str) -> subprocess.Popen:
    words, pipe = [sys.executable, str(SCRIPT), str(rank), port], subprocess.PIPE
    environment = {"PYTHONPATH": str(ROOT)}
    return subprocess.Popen(
        words, cwd=ROOT, env=environment, text=True, stdin=pipe, stdout=pipe, stderr=pipe
    )  # fmt: skip


def test_processes_exchange_in_order_and_give_a_rank_up_that_does_not_come():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    ranks = [start(rank, port) for rank in range(2)]
    try:
        first, errors = ranks[0].communicate(timeout=120)
        second, _ = ranks[1].communicate("leave\n", timeout=120)
    finally:
        for process in ranks:
            process.kill()
            process.wait()
    exchanged, failure = first.splitlines() or [errors, ""]
    assert exchanged == "[[[0.5]], [[1.5]]] True False"
    assert second == exchanged + "\n"
    assert failure.startswith("rank 0 of 2 could not exchange 12 bytes with the others within 2 s")


def place(rank: int, port: int) -> RankPlace:
    return RankPlace(rank=rank, size=2, local_rank=rank, address=LOOPBACK, port=port, starts=range(0))


def test_a_word_is_heard_when_it_is_said_and_not_waited_for_in_vain():
    meeting = MeetingPoint(place(0, 0), 20.0)
    other = MeetingPoint(place(1, meeting.port), 20.0)
    meeting.say("leader", "port and secret")
    assert other.hear("leader", 20.0) == "port and secret"
    with pytest.raises(RankFailure, match=r"the leader at .* said nothing within 0.1 s"):
        other.hear("complete", 0.1)


def test_ranks_that_meet_go_on_when_the_last_one_has_come():
    meetings = [MeetingPoint(place(0, 0), 20.0)]
    meetings += [MeetingPoint(place(1, meetings[0].port), 20.0)]
    came = []

    def meet(rank: int) -> None:
        meetings[rank].meet("weights", rank, 2)
        came.append(rank)

    first = threading.Thread(target=meet, args=(0,))
    first.start()
    assert meetings[1].hear("weights 0", 20.0) == "here"
    assert came == []
    meet(1)
    first.join(20)
    assert sorted(came) == [0, 1]


def test_a_leader_whose_port_is_taken_says_so():
    with socket.create_server((LOOPBACK, 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(
            RankFailure, match=rf"rank 0 cannot let the others meet at 127.0.0.1:{port}: .*choose a port"
        ):
            MeetingPoint(place(0, port), 20.0)


def test_a_leader_that_is_not_there_is_not_waited_for_for_ever():
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        with pytest.raises(RankFailure, match=r"rank 1 of 2 cannot reach the leader at 127\.0\.0\.1"):
            MeetingPoint(place(1, probe.getsockname()[1]), 0.2)
