"""Two processes exchange through gloo, and none waits for ever."""

import socket
import subprocess
import sys
from pathlib import Path

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
        first, errors = ranks[0].communicate(timeout=60)
        second, _ = ranks[1].communicate("leave\n", timeout=60)
    finally:
        for process in ranks:
            process.kill()
            process.wait()
    exchanged, failure = first.splitlines() or [errors, ""]
    assert exchanged == "[[[0.5]], [[1.5]]] True False"
    assert second == exchanged + "\n"
    assert failure.startswith("rank 0 of 2 could not exchange 12 bytes with the others within 1 s")
