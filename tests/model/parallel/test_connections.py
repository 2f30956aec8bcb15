"""The leader and its followers: work arrives in order, and no end stays unnoticed."""

import queue
import socket
import threading

import pytest

from spearhead.errors import RankFailure
from spearhead.model.parallel.follower import Follower
from spearhead.model.parallel.frames import FrameSocket, Kind
from spearhead.model.parallel.leader import Leader
from spearhead.model.parallel.place import LOOPBACK

PATIENCE_S = 20


@pytest.fixture
def lead():
    """``lead(size=2, lost_after_s=…) -> (leader, losses)``."""
    leaders = []

    def make(size=2, lost_after_s=PATIENCE_S):
        losses = queue.SimpleQueue()
        leader = Leader(LOOPBACK, size, lost_after_s=lost_after_s, on_loss=losses.put)
        leaders.append(leader)
        return leader, losses

    yield make
    for leader in leaders:
        leader.close()


def join(leader, rank, losses=None, lost_after_s=PATIENCE_S):
    on_end = (losses or queue.SimpleQueue()).put
    return Follower(LOOPBACK, leader.port, leader.secret, rank, lost_after_s=lost_after_s, on_end=on_end)


def hello(leader, words):
    """A connection that says who it is, and then nothing."""
    connected = socket.create_connection((LOOPBACK, leader.port))
    connection = FrameSocket(connected, PATIENCE_S, longest_bytes=99)
    connection.send(Kind.HELLO, words.encode())
    return connection


def test_work_comes_to_every_follower_in_order_until_the_leader_stops(lead):
    leader, losses = lead(size=3)
    followers = [join(leader, rank) for rank in (2, 1)]
    leader.accept(PATIENCE_S)
    pieces = [bytes([number]) * (1 + 70_000 * (number == 3)) for number in range(9)]
    for piece in pieces:
        leader.send(piece)
    leader.close()
    for follower in followers:
        assert list(follower.work(lambda: None)) == pieces
    assert losses.empty()


def test_a_stranger_that_says_nothing_holds_nobody_up(lead):
    leader, _ = lead()
    with socket.create_connection((LOOPBACK, leader.port)):
        follower = join(leader, 1)
        leader.accept(PATIENCE_S / 2)  # half of what the stranger has
        leader.send(b"work")
        assert next(follower.work(lambda: None)) == b"work"


def test_ranks_that_do_not_come_are_named(lead):
    leader, _ = lead(size=4)
    join(leader, 2)
    with pytest.raises(RankFailure, match=r"ranks \[1, 3\] of 4 did not come within 0.4 s"):
        leader.accept(0.4)


def test_waiting_ends_when_it_has_become_pointless(lead):
    leader, _ = lead()

    def check():
        raise RankFailure("rank 1 ended at start-up")

    with pytest.raises(RankFailure, match="ended at start-up"):
        leader.accept(PATIENCE_S, check)


def test_a_follower_that_is_gone_is_a_loss_and_takes_no_more_work(lead):
    leader, losses = lead()
    connection = hello(leader, f"{leader.secret} 1")
    leader.accept(PATIENCE_S)
    connection.close()
    failure = losses.get(timeout=PATIENCE_S)
    assert "rank 1 of 2 is gone" in failure.message
    with pytest.raises(RankFailure, match="rank 1 of 2 is gone"):
        leader.send(b"work")


def test_a_follower_that_is_silent_is_a_loss(lead):
    leader, losses = lead(lost_after_s=0.5)
    connection = hello(leader, f"{leader.secret} 1")
    leader.accept(PATIENCE_S)
    assert "rank 1 of 2 has been silent" in losses.get(timeout=PATIENCE_S).message
    connection.close()


def test_a_follower_that_sends_no_frames_is_a_loss(lead):
    leader, losses = lead()
    connection = hello(leader, f"{leader.secret} 1")
    leader.accept(PATIENCE_S)
    connection.send(Kind.WORK, bytes(300))
    failure = losses.get(timeout=PATIENCE_S)
    assert "rank 1 of 2 is gone: a frame of 300 bytes came; at most 256 are taken" in failure.message
    connection.close()


def wait_idle(follower, idle):
    """A thread that awaits work, and counts the times that it was told to show a sign of life."""

    def wait():
        for _ in follower.work(idle.release):
            pass

    waiting = threading.Thread(target=wait)
    waiting.start()
    return waiting


def test_idle_ranks_keep_each_other_alive(lead):
    leader, losses = lead(lost_after_s=2)
    own, idle = queue.SimpleQueue(), threading.Semaphore(0)
    waiting = wait_idle(join(leader, 1, own, lost_after_s=2), idle)
    leader.accept(PATIENCE_S)
    for _ in range(3):  # a second each, so that together they are longer than a rank may be silent
        assert idle.acquire(timeout=PATIENCE_S)
    leader.close()
    waiting.join(PATIENCE_S)
    assert losses.empty()
    assert own.get(timeout=PATIENCE_S) is None


def test_an_idle_follower_shows_a_sign_of_life_however_patient_it_is_with_its_leader(lead):
    leader, _ = lead(lost_after_s=10 * PATIENCE_S)
    idle = threading.Semaphore(0)
    waiting = wait_idle(join(leader, 1, lost_after_s=10 * PATIENCE_S), idle)
    assert idle.acquire(timeout=PATIENCE_S)
    leader.accept(PATIENCE_S)
    leader.close()
    waiting.join(PATIENCE_S)


def test_a_follower_is_told_that_its_leader_stops_whether_it_awaits_work_or_not(lead):
    leader, _ = lead()
    ends = queue.SimpleQueue()
    join(leader, 1, ends)
    leader.accept(PATIENCE_S)
    leader.close()
    assert ends.get(timeout=PATIENCE_S) is None


def test_a_leader_that_is_gone_or_silent_is_a_loss():
    for silent in (False, True):
        with socket.create_server((LOOPBACK, 0)) as listening:
            losses = queue.SimpleQueue()
            Follower(
                LOOPBACK, listening.getsockname()[1], "secret", 1, lost_after_s=0.5, on_end=losses.put
            )  # fmt: skip
            connection, _ = listening.accept()
            if not silent:
                connection.close()
            assert "rank 0, which leads, is lost" in losses.get(timeout=PATIENCE_S).message
            connection.close()


def test_a_leader_that_nobody_can_reach_is_said_to_be(lead):
    leader, _ = lead()
    port = leader.port
    leader.close()
    with pytest.raises(RankFailure, match=f"rank 1 cannot reach the leader at {LOOPBACK}:{port}"):
        Follower(LOOPBACK, port, "", 1, lost_after_s=1, on_end=lambda failure: None)
