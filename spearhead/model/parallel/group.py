"""How processes become ranks, and stop being any: what the leader does, and what every other rank does."""

from collections.abc import Callable, Mapping

import torch

from spearhead.errors import RankFailure
from spearhead.model.forward import ForwardPass
from spearhead.model.parallel.children import Children
from spearhead.model.parallel.distributed import DAY_S, DistributedRanks, MeetingPoint
from spearhead.model.parallel.follower import Follower
from spearhead.model.parallel.leader import Leader
from spearhead.model.parallel.lockstep import LeadingDecoder, follow
from spearhead.model.parallel.place import RankPlace
from spearhead.model.parallel.ranks import Ranks
from spearhead.model.settings import ParallelSettings
from spearhead.model.weights import ModelWeights

_LEADER, _COMPLETE = "leader", "complete"

OnLoss = Callable[[RankFailure], None]
OnEnd = Callable[[RankFailure | None], None]


class LeaderGroup:
    """Rank 0's ties to the others.

    Args:
        settings: Section ``[parallel]``.
        place: Of rank 0.
        children: Starts ranks of this machine.
        on_loss: Called once, from any thread, when a rank is lost.
    """

    def __init__(
        self, settings: ParallelSettings, place: RankPlace, children: Children, on_loss: OnLoss
    ) -> None:
        self._settings, self._place, self._children = settings, place, children
        self._leader = Leader(
            place.address, place.size, lost_after_s=settings.lost_after_s, on_loss=on_loss
        )  # fmt: skip

    def join(self, device: torch.device) -> Ranks:
        """Starts what this process has to start, and waits for all ranks.

        Args:
            device: Of this rank.

        Raises:
            RankFailure: Not all came.
        """
        settings, place = self._settings, self._place
        meeting = MeetingPoint(place, settings.start_timeout_s)
        meeting.say(_LEADER, f"{self._leader.port} {self._leader.secret}")
        _start_beside(place, self._children, meeting.port)
        self._leader.accept(settings.start_timeout_s, self._children.check)
        meeting.say(_COMPLETE, str(place.size))
        return DistributedRanks(meeting, place, device=device, timeout_s=settings.collective_timeout_s)

    def lead(self, decoder: ForwardPass) -> ForwardPass:
        """The same decoder, whose steps all ranks compute from now on."""
        return LeadingDecoder(decoder, tell=self._leader.send, lose=self._leader.lose)

    def abandon(self) -> None:
        """Ends the ranks of this machine at once; the others see that this process is gone."""
        self._children.kill()

    def close(self) -> None:
        """Ends the other ranks, and waits for those of this machine."""
        self._leader.close()
        self._children.wait(self._settings.lost_after_s)


class FollowerGroup:
    """Any other rank's ties to the leader.

    Args:
        settings: Section ``[parallel]``.
        place: Of this rank.
        children: Starts ranks of this machine.
        on_end: Called once, from another thread, when the leader is lost, or stops: ``None``.
    """

    def __init__(
        self, settings: ParallelSettings, place: RankPlace, children: Children, on_end: OnEnd
    ) -> None:
        self._settings, self._place, self._children, self._on_end = settings, place, children, on_end
        self._follower: Follower | None = None

    def join(self, device: torch.device) -> Ranks:
        """Waits for the leader, then for all ranks.

        Args:
            device: Of this rank.

        Raises:
            RankFailure: Not all came.
        """
        settings, place, children = self._settings, self._place, self._children
        meeting = MeetingPoint(place, settings.start_timeout_s)
        _start_beside(place, children, place.port)
        port, _, secret = meeting.hear(_LEADER, settings.start_timeout_s).partition(" ")
        self._follower = Follower(
            place.address,
            int(port),
            secret,
            place.rank,
            lost_after_s=settings.lost_after_s,
            on_end=self._on_end,
        )
        # The leader does not wait for ever, and its end is seen. Only then does the time of exchanges count.
        meeting.hear(_COMPLETE, DAY_S, children.check)
        return DistributedRanks(meeting, place, device=device, timeout_s=settings.collective_timeout_s)

    def follow(
        self, decoder: ForwardPass, variants: Mapping[str, ModelWeights], on_progress: Callable[[], None]
    ) -> None:
        """Computes the leader's steps until it stops; after :meth:`join`.

        Args:
            decoder: Of this rank's part.
            variants: The same ones as the leader's.
            on_progress: Called now and then.

        Raises:
            RankFailure: Another rank is lost or stuck.
        """
        assert self._follower is not None, "a rank joins before it follows"
        follow(decoder, variants, self._follower.work(on_progress))


def _start_beside(place: RankPlace, children: Children, port: int) -> None:
    for rank in place.starts:
        children.start(rank, place.beside(rank, port))
