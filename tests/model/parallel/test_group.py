"""How processes become ranks."""

import queue
import sys

import pytest
import torch

from spearhead.errors import RankFailure
from spearhead.model.parallel.children import Children
from spearhead.model.parallel.distributed import MeetingPoint
from spearhead.model.parallel.group import FollowerGroup, LeaderGroup
from spearhead.model.parallel.leader import Leader
from spearhead.model.parallel.place import LOOPBACK, RankPlace
from spearhead.model.settings import ParallelSettings

PATIENCE_S = 20.0
SETTINGS = ParallelSettings(
    tensor_parallel_size=3, start_timeout_s=10 * PATIENCE_S, lost_after_s=2.0
)  # fmt: skip
CPU = torch.device("cpu")


def place(rank, port, starts):
    return RankPlace(rank=rank, size=3, local_rank=0, address=LOOPBACK, port=port, starts=starts)


def broken_children():
    """Each ends as it starts."""
    return Children([sys.executable, "-S", "-c", "raise SystemExit(2)"])


def test_a_leader_does_not_wait_for_a_rank_that_ended_at_start_up():
    group = LeaderGroup(SETTINGS, place(0, 0, range(1, 3)), broken_children(), queue.SimpleQueue().put)
    with pytest.raises(RankFailure, match="rank 1 ended at start-up with code 2"):
        group.join(CPU)
    group.close()


def test_another_pod_does_not_either():
    leader = Leader(LOOPBACK, 3, lost_after_s=PATIENCE_S, on_loss=queue.SimpleQueue().put)
    meeting = MeetingPoint(place(0, 0, range(0)), PATIENCE_S)
    meeting.say("leader", f"{leader.port} {leader.secret}")
    pod = place(1, meeting.port, range(2, 3))
    group = FollowerGroup(SETTINGS, pod, broken_children(), queue.SimpleQueue().put)
    with pytest.raises(RankFailure, match="rank 2 ended at start-up with code 2"):
        group.join(CPU)
    leader.close()
