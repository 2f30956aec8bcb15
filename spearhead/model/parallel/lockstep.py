"""One engine, several decoders: the leader decides, and all ranks compute the same steps in the same order.

The leader's page table, sequences and sampling stay what they are with one process. Its decoder tells the
other ranks each forward pass just before computing its own part, together with the edits of pages since the
last one; so their pages always hold what the leader's hold, for their heads.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence

from spearhead.errors import RankFailure
from spearhead.model.attention import Segment
from spearhead.model.forward import Forward, ForwardPass
from spearhead.model.kv_cache import PageEdit
from spearhead.model.parallel.work import Work
from spearhead.model.weights import ModelWeights

Tell = Callable[[bytes], None]
Lose = Callable[[str], RankFailure]


class LeadingDecoder:
    """The leader's decoder, whose steps all ranks compute.

    Args:
        own: Computes the leader's part; from now on its page edits are noted.
        tell: Gives work to every other rank.
        lose: Gives the ranks up: they would wait for a step that the leader did not end.
    """

    def __init__(self, own: ForwardPass, *, tell: Tell, lose: Lose) -> None:
        self.own = own
        self.config = own.config
        self.storage = own.storage
        self.context_length = own.context_length
        self._tell, self._lose = tell, lose
        self._edits: list[PageEdit] = []
        self.storage.journal = self._edits

    def forward(
        self,
        weights: ModelWeights,
        segments: Sequence[Segment],
        token_ids: Sequence[int],
        logit_rows: Sequence[int],
    ) -> Forward:
        """See :class:`spearhead.model.forward.ForwardPass`.

        Raises:
            RankFailure: A rank is lost or stuck.
        """
        work = Work(variant=weights.variant, edits=self._edits, segments=segments, token_ids=token_ids)
        self._tell(work.encode())
        self._edits.clear()
        try:
            return self.own.forward(weights, segments, token_ids, logit_rows)
        except Exception as error:
            raise self._lose(f"a step of all ranks failed on rank 0: {error}") from error


def follow(decoder: ForwardPass, variants: Mapping[str, ModelWeights], pieces: Iterable[bytes]) -> None:
    """Computes the leader's steps on another rank, until there are no more.

    Args:
        decoder: Of this rank's part.
        variants: The same ones as the leader's.
        pieces: Encoded :class:`Work`.

    Raises:
        RankFailure: Another rank is lost or stuck.
    """
    for piece in pieces:
        work = Work.decode(piece)
        for edit in work.edits:
            decoder.storage.repeat(edit)
        decoder.forward(variants[work.variant], work.segments, work.token_ids, ())
