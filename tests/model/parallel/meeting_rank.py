"""One rank of two that exchange through gloo: meeting_rank.py RANK PORT. Rank 1 then stays away."""

import sys

import torch

from spearhead.errors import RankFailure
from spearhead.model.parallel.distributed import DistributedRanks, MeetingPoint
from spearhead.model.parallel.place import LOOPBACK, RankPlace


def main(rank: int, port: int) -> None:
    place = RankPlace(rank=rank, size=2, local_rank=rank, address=LOOPBACK, port=port, starts=range(0))
    meeting = MeetingPoint(place, 120.0)
    meeting.say(f"started {rank}", "yes")
    meeting.hear(f"started {1 - rank}", 120.0)  # from now on none is slow for want of a processor
    ranks = DistributedRanks(meeting, place, device=torch.device("cpu"), timeout_s=2.0)
    parts = ranks.gather(torch.tensor([[rank + 0.5]], dtype=torch.bfloat16))
    print([part.tolist() for part in parts], ranks.agree(True), ranks.agree(rank == 0), flush=True)
    if rank:
        sys.stdin.readline()
        return
    try:
        ranks.gather(torch.zeros(3))
    except RankFailure as failure:
        print(failure.message.splitlines()[0], flush=True)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
