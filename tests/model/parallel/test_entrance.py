"""Anybody may knock: strangers neither come in, nor hold up or break the start of those who are awaited."""

import select
import socket
import struct

import pytest

from spearhead.model.parallel.entrance import Entrance
from spearhead.model.parallel.place import LOOPBACK

PATIENCE_S = 20
HEADER = struct.Struct("<BI")  # kind, length
HELLO = 1


@pytest.fixture
def entrance():
    """Of a leader that awaits ranks 1 and 2."""
    opened = Entrance(LOOPBACK, 3, PATIENCE_S)
    yield opened
    opened.close()


@pytest.fixture
def knock(entrance):
    """``knock(bytes) -> socket`` that has sent them."""
    sockets = []

    def connect(words=b""):
        sockets.append(socket.create_connection((LOOPBACK, entrance.port), PATIENCE_S))
        sockets[-1].sendall(words)
        return sockets[-1]

    yield connect
    for one in sockets:
        one.close()


def hello(words):
    return HEADER.pack(HELLO, len(words)) + words


def admitted(entrance, until):
    """Ranks that come in, in order, until there are so many."""
    ranks = []
    while len(ranks) < until:
        for rank, frames in entrance.admit(PATIENCE_S):
            ranks.append(rank)
            frames.close()
    return ranks


def sent_away(connection):
    return connection.recv(1) == b""


def test_whoever_knows_the_secret_comes_in_once(entrance, knock):
    secret = entrance.secret.encode()
    knock(hello(secret + b" 2"))
    assert admitted(entrance, 1) == [2]
    again = knock(hello(secret + b" 2"))
    knock(hello(secret + b" 1"))
    assert admitted(entrance, 1) == [1]
    assert sent_away(again)


@pytest.mark.parametrize(
    "words",
    [
        hello(b"wrong 1"),
        hello("größe 1".encode()),
        hello(b"\xff\xfe 1"),
        hello(b""),
        HEADER.pack(HELLO, 2**32 - 1) + b"endless",
        HEADER.pack(77, 3) + b"abc",
        b"GET / HTTP/1.1\r\n\r\n",
    ],
    ids=["wrong", "not ASCII", "not UTF-8", "nothing", "too long", "no kind", "another protocol"],
)
def test_a_stranger_is_sent_away_whatever_it_says(words, entrance, knock):
    stranger = knock(words)
    knock(hello(entrance.secret.encode() + b" 1"))
    assert admitted(entrance, 1) == [1]
    while not select.select([stranger], [], [], 0)[0]:
        list(entrance.admit(0))
    assert sent_away(stranger)


@pytest.mark.parametrize("rank", [b"0", b"3", b"-1", b"one", b"", "²".encode(), b"9" * 99])
def test_a_rank_that_nobody_awaits_is_sent_away(rank, entrance, knock, caplog):
    stranger = knock(hello(entrance.secret.encode() + b" " + rank))
    while not select.select([stranger], [], [], 0)[0]:
        assert not list(entrance.admit(0))
    assert sent_away(stranger)
    assert "of 3 is not awaited" in caplog.text
    assert entrance.secret not in caplog.text


def test_nobody_waits_for_a_connection_that_says_nothing_or_half_of_it(entrance, knock):
    knock()
    late = knock(hello(entrance.secret.encode() + b" 1")[:9])
    knock(hello(entrance.secret.encode() + b" 2"))
    assert admitted(entrance, 1) == [2]
    late.sendall(hello(entrance.secret.encode() + b" 1")[9:])
    assert admitted(entrance, 1) == [1]


def test_a_connection_has_so_many_seconds_to_say_who_it_is():
    entrance = Entrance(LOOPBACK, 2, 0.1)
    with socket.create_connection((LOOPBACK, entrance.port), PATIENCE_S) as silent:
        while not select.select([silent], [], [], 0)[0]:
            assert not list(entrance.admit(0.1))
        assert sent_away(silent)
    entrance.close()


def test_of_many_connections_that_say_nothing_the_oldest_go(entrance, knock):
    crowd = [knock() for _ in range(70)]
    knock(hello(entrance.secret.encode() + b" 1"))
    assert admitted(entrance, 1) == [1]
    closed = select.select(crowd, [], [], PATIENCE_S)[0]
    assert closed
    assert closed == crowd[: len(closed)]
