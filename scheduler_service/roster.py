"""The numbers of every living request that each step reads, as columns, so that a plan reads them at once."""

import math
from array import array
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from scheduler_service.decode_batch import Ints
from scheduler_service.request import Request
from scheduler_service.step_cost import Floats

# Places in a row.
_SEQUENCE_ID, _PROMPT_LENGTH, _MAX_LENGTH, _DRAFT_CAP, _LENGTH, _TARGET_LENGTH, _DRAFT_LENGTH = range(7)
_WHOLE = 7
_ITL_SLO, _LAST_TOKEN = range(2)
_SECONDS = 2


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DecodingColumns:
    """The decoding requests at one moment, in order of admission; a copy, shape (B,) each.

    Attributes:
        rows: Their rows in the roster.
        sequence_ids: Their names towards the workers.
        lengths: Tokens of the sequence.
        max_lengths: Longest that prompt and output can become.
        target_lengths: Leading tokens whose KV the target holds: all but one.
        draft_lengths: Leading tokens whose KV the drafter holds.
        draft_caps: Most drafts a step.
        itl_slo_s: Wanted time between tokens; NaN = no wish.
        last_token_s: Monotonic time of the last token.
    """

    rows: Ints
    sequence_ids: Ints
    lengths: Ints
    max_lengths: Ints
    target_lengths: Ints
    draft_lengths: Ints
    draft_caps: Ints
    itl_slo_s: Floats
    last_token_s: Floats


class Roster:
    """One row for each request, from its arrival to its end.

    How far the workers are with a request is kept here alone. What else changes while it runs is repeated
    here by the method that changes it.
    """

    def __init__(self) -> None:
        # An array takes a number three times faster than numpy does, and numpy reads it in place.
        self._whole = array("q")  # Row after row, _WHOLE numbers each.
        self._seconds = array("d")  # Likewise, _SECONDS numbers each.
        self._free: list[int] = []

    def enter(self, request: Request) -> None:
        """Gives a request its row."""
        if not self._free:
            self._free.append(len(self._seconds) // _SECONDS)
            self._whole.extend([0] * _WHOLE)
            self._seconds.extend([0.0] * _SECONDS)
        row = request.row = self._free.pop()
        whole, seconds = row * _WHOLE, row * _SECONDS
        slo_s = request.spec.itl_slo_s
        self._whole[whole + _SEQUENCE_ID] = request.sequence_id
        self._whole[whole + _PROMPT_LENGTH] = request.prompt_length
        self._whole[whole + _MAX_LENGTH] = request.max_length
        self._whole[whole + _DRAFT_CAP] = request.draft_cap
        self._whole[whole + _LENGTH] = len(request.token_ids)
        self._seconds[seconds + _ITL_SLO] = math.nan if slo_s is None else slo_s
        self._seconds[seconds + _LAST_TOKEN] = math.nan
        request.verify.keep_length_in(self._whole, whole + _TARGET_LENGTH)
        request.draft.keep_length_in(self._whole, whole + _DRAFT_LENGTH)

    def leave(self, request: Request) -> None:
        """Takes the row back; the request keeps its numbers for itself."""
        request.verify.keep_length_in(array("q", [0]), 0)
        request.draft.keep_length_in(array("q", [0]), 0)
        self._free.append(request.row)
        request.row = -1

    def commit(self, request: Request, token_ids: Sequence[int], now_s: float) -> None:
        """Appends tokens to the sequence of a request.

        Args:
            request: One that has a row.
            token_ids: Tokens of its output.
            now_s: Monotonic time.
        """
        request.token_ids.extend(token_ids)
        self._whole[request.row * _WHOLE + _LENGTH] = len(request.token_ids)
        self._seconds[request.row * _SECONDS + _LAST_TOKEN] = now_s

    def refuse_drafts(self, request: Request) -> None:
        """The target could not compute a step with drafts of this request; it gets no more."""
        request.draft_cap = self._whole[request.row * _WHOLE + _DRAFT_CAP] = 0

    def decoding(self, rows: Sequence[int]) -> tuple[DecodingColumns, list[int]]:
        """The numbers of those that only have their last sampled token pending.

        Args:
            rows: Of some requests.

        Returns:
            The columns, and the indices of the others in ``rows``.
        """
        index = np.array(rows, dtype=np.int64)
        # Taking whole rows is several times faster than indexing.
        whole = np.frombuffer(self._whole, dtype=np.int64).reshape(-1, _WHOLE).take(index, axis=0)
        mask = whole[:, _LENGTH] - whole[:, _TARGET_LENGTH] == 1
        mask &= whole[:, _TARGET_LENGTH] >= whole[:, _PROMPT_LENGTH]
        kept = mask.nonzero()[0]
        others: list[int] = []
        if len(kept) < len(index):
            others = (~mask).nonzero()[0].tolist()
            index, whole = index.take(kept), whole.take(kept, axis=0)
        columns = np.ascontiguousarray(whole.T)
        seconds = np.frombuffer(self._seconds, dtype=np.float64).reshape(-1, _SECONDS).take(index, axis=0)
        decoding = DecodingColumns(
            rows=index,
            sequence_ids=columns[_SEQUENCE_ID],
            lengths=columns[_LENGTH],
            max_lengths=columns[_MAX_LENGTH],
            target_lengths=columns[_TARGET_LENGTH],
            draft_lengths=columns[_DRAFT_LENGTH],
            draft_caps=columns[_DRAFT_CAP],
            itl_slo_s=seconds[:, _ITL_SLO],
            last_token_s=seconds[:, _LAST_TOKEN],
        )
        return decoding, others

    def check_integrity(self, living: Sequence[Request]) -> None:
        """Checks that every living request has a row of its own, with its numbers."""
        rows = {request.row for request in living}
        assert len(rows) == len(living), "two requests share a row"
        assert not rows & set(self._free), "a living request has a free row"
        assert len(rows) + len(self._free) == len(self._seconds) // _SECONDS, "a row is lost"
        for request in living:
            row = request.row * _WHOLE
            kept = (self._whole[row + _LENGTH], self._whole[row + _DRAFT_CAP])
            assert kept == (len(request.token_ids), request.draft_cap), f"{request.request_id}: {kept}"
