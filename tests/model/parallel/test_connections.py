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
    on_loss = (losses or queue.SimpleQueue()).put
    return Follower(LOOPBACK, leader.port, leader.secret, rank, lost_after_s=lost_after_s, on_loss=on_loss)


def hello(leader, words):
    """A connection that says who it is, and then nothing."""
    connection = FrameSocket(socket.create_connection((LOOPBACK, leader.port)), PATIENCE_S)
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


def test_strangers_and_ranks_that_nobody_awaits_are_not_let_in(lead):
    leader, _ = lead()
    strangers = [
        hello(leader, "wrong 1"),
        hello(leader, f"{leader.secret} 0"),
        hello(leader, f"{leader.secret} 2"),
        hello(leader, f"{leader.secret} one"),
        FrameSocket(socket.create_connection((LOOPBACK, leader.port)), PATIENCE_S),
    ]
    strangers[-1].send(Kind.BEAT)
    follower = join(leader, 1)
    leader.accept(PATIENCE_S)
    leader.send(b"work")
    assert next(follower.work(lambda: None)) == b"work"
    for stranger in strangers:
        with pytest.raises(OSError):
            list(stranger.read())


def test_ranks_that_do_not_come_are_named(lead):
    leader, _ = lead(size=4, lost_after_s=0.5)
    join(leader, 2)
    with pytest.raises(RankFailure, match=r"ranks \[1, 3\] of 4 did not come within 0.2 s"):
        leader.accept(0.2)


def test_waiting_ends_when_it_has_become_pointless(lead):
    leader, _ = lead()

    def check():
        raise RankFailure("rank 1 ended at start-up")

    with pytest.raises(RankFailure, match="ended at start-up"):
        leader.accept(PATIENCE_S, check)


def test_a_follower_that_is_gone_is_a_loss_and_takes_no_more_work(lead):
    leader, losses = lead(lost_after_s=2)
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


def test_idle_ranks_keep_each_other_alive(lead):
    leader, losses = lead(lost_after_s=0.5)
    own = queue.SimpleQueue()
    follower = join(leader, 1, own, lost_after_s=0.5)
    leader.accept(PATIENCE_S)
    idle = threading.Semaphore(0)

    def wait():
        for _ in follower.work(idle.release):
            pass

    waiting = threading.Thread(target=wait)
    waiting.start()
    for _ in range(3):  # each after half a second without work
        assert idle.acquire(timeout=PATIENCE_S)
    leader.close()
    waiting.join(PATIENCE_S)
    assert losses.empty()
    assert own.empty()


def test_a_leader_that_is_gone_or_silent_is_a_loss():
    for silent in (False, True):
        with socket.create_server((LOOPBACK, 0)) as listening:
            losses = queue.SimpleQueue()
            Follower(
                LOOPBACK, listening.getsockname()[1], "secret", 1, lost_after_s=0.5, on_loss=losses.put
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
        Follower(LOOPBACK, port, "", 1, lost_after_s=1, on_loss=lambda failure: None)
