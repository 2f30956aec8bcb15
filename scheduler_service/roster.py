"""The numbers of every living request that each step reads, as columns, so that a plan reads them at once."""

import math
from array import array
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from scheduler_service.decode_batch import Ints
from scheduler_service.request import Request
from scheduler_service.step_cost import Floats


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RunningColumns:
    """The running requests at one moment, in order of admission; a copy, shape (B,) each.

    Attributes:
        sequence_ids: Their names towards the workers, length B.
        rows: Their rows in the roster.
        prompt_lengths: Tokens of the prompt.
        max_lengths: Longest that prompt and output can become.
        draft_caps: Most drafts a step.
        itl_slo_s: Wanted time between tokens; NaN = no wish.
        lengths: Tokens of the sequence.
        target_lengths: Leading tokens whose KV the target holds.
        draft_lengths: Leading tokens whose KV the drafter holds.
        last_token_s: Monotonic time of the last token; NaN before the first.
    """

    sequence_ids: tuple[int, ...]
    rows: Ints
    prompt_lengths: Ints
    max_lengths: Ints
    draft_caps: Ints
    itl_slo_s: Floats
    lengths: Ints
    target_lengths: Ints
    draft_lengths: Ints
    last_token_s: Floats


class Roster:
    """One row for each request, from its arrival to its end.

    How far the workers are with a request is kept here alone. What else changes while it runs is repeated
    here by the method that changes it.
    """

    def __init__(self) -> None:
        # An array takes a number three times faster than numpy does, and numpy reads it in place.
        self._prompt_lengths = array("q")
        self._max_lengths = array("q")
        self._draft_caps = array("q")
        self._lengths = array("q")
        self._target_lengths = array("q")
        self._draft_lengths = array("q")
        self._itl_slo_s = array("d")
        self._last_token_s = array("d")
        self._free: list[int] = []

    def enter(self, request: Request) -> None:
        """Gives a request its row."""
        if not self._free:
            self._free.append(len(self._lengths))
            for column in self._columns():
                column.append(0)
        row = request.row = self._free.pop()
        slo_s = request.spec.itl_slo_s
        self._prompt_lengths[row] = request.prompt_length
        self._max_lengths[row] = request.max_length
        self._draft_caps[row] = request.draft_cap
        self._lengths[row] = len(request.token_ids)
        self._itl_slo_s[row] = math.nan if slo_s is None else slo_s
        self._last_token_s[row] = math.nan
        request.verify.keep_length_in(self._target_lengths, row)
        request.draft.keep_length_in(self._draft_lengths, row)

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
        self._lengths[request.row] = len(request.token_ids)
        self._last_token_s[request.row] = now_s

    def refuse_drafts(self, request: Request) -> None:
        """The target could not compute a step with drafts of this request; it gets no more."""
        request.draft_cap = self._draft_caps[request.row] = 0

    def columns(self, sequence_ids: tuple[int, ...], rows: Sequence[int]) -> RunningColumns:
        """The numbers of some requests.

        Args:
            sequence_ids: Their names towards the workers.
            rows: Their rows.
        """
        index = np.array(rows, dtype=np.int64)
        return RunningColumns(
            sequence_ids=sequence_ids,
            rows=index,
            prompt_lengths=_ints(self._prompt_lengths)[index],
            max_lengths=_ints(self._max_lengths)[index],
            draft_caps=_ints(self._draft_caps)[index],
            itl_slo_s=_floats(self._itl_slo_s)[index],
            lengths=_ints(self._lengths)[index],
            target_lengths=_ints(self._target_lengths)[index],
            draft_lengths=_ints(self._draft_lengths)[index],
            last_token_s=_floats(self._last_token_s)[index],
        )

    def check_integrity(self, living: Sequence[Request]) -> None:
        """Checks that every living request has a row of its own, with its numbers."""
        rows = {request.row for request in living}
        assert len(rows) == len(living), "two requests share a row"
        assert not rows & set(self._free), "a living request has a free row"
        assert len(rows) + len(self._free) == len(self._lengths), "a row is lost"
        for request in living:
            kept = (self._lengths[request.row], self._draft_caps[request.row])
            assert kept == (len(request.token_ids), request.draft_cap), f"{request.request_id}: {kept}"

    def _columns(self) -> "tuple[array[int] | array[float], ...]":
        return (
            self._prompt_lengths, self._max_lengths, self._draft_caps, self._lengths, self._target_lengths,
            self._draft_lengths, self._itl_slo_s, self._last_token_s,
        )  # fmt: skip


def _ints(column: "array[int]") -> Ints:
    return np.frombuffer(column, dtype=np.int64)


def _floats(column: "array[float]") -> Floats:
    return np.frombuffer(column, dtype=np.float64)
