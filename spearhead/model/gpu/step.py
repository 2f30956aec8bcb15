"""A step as the kernels read it: which rows, which positions, which slots and pages.

Pure functions over numbers; nothing here needs a GPU.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from spearhead.model.attention import Segment

MAX_ROWS = 2048
"""Rows of one pass; a larger step is several passes, which changes no bit."""

SHORT_ROWS = 17
"""A verified draft with its last token, at most; longer segments get attention launches of their own."""

_PAGE_GRANULE = 16  # page tables are as wide as a multiple of it, for which kernels are compiled once

Integers = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pass:
    """Rows that are computed together, and where they stand in the step.

    Attributes:
        segments: In the order in which they are computed: short ones, then long ones.
        rows: For each row of the pass, its row in the step.
        logit_places: Rows of the pass whose logits are wanted, in the order of the step's.
    """

    segments: tuple[Segment, ...]
    rows: tuple[int, ...]
    logit_places: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionTables:
    """Sequences that one attention launch serves: consecutive rows of a pass.

    Attributes:
        first_row: Of the pass.
        row_count: Rows.
        row_starts: ``(B + 1,)``, counted from ``first_row``.
        lengths: ``(B,)``, tokens of each sequence, the new ones included.
        page_table: ``(B, P)``.
        max_rows: Most rows of a sequence.
        max_length: Longest sequence.
    """

    first_row: int
    row_count: int
    row_starts: Integers
    lengths: Integers
    page_table: Integers
    max_rows: int
    max_length: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTables:
    """A pass in numbers.

    Attributes:
        token_ids: ``(N,)``.
        positions: ``(N,)``.
        slots: ``(N,)``, where keys and values go.
        logit_places: ``(L,)``.
        attention: One or two launches a layer.
    """

    token_ids: Integers
    positions: Integers
    slots: Integers
    logit_places: Integers
    attention: tuple[AttentionTables, ...]


def passes(segments: Sequence[Segment], logit_rows: Sequence[int], limit: int = MAX_ROWS) -> list[Pass]:
    """Cuts a step into passes of at most ``limit`` rows; a later part of a segment sees the earlier one's KV.

    Args:
        segments: All of the step.
        logit_rows: Rows of the step whose logits are wanted, rising.
        limit: Rows of a pass.
    """
    assert all(first < second for first, second in pairwise(logit_rows)), "logit rows must rise"
    parts: list[list[tuple[Segment, int]]] = [[]]
    room, row = limit, 0
    for segment in segments:
        done = 0
        while done < segment.count:
            if not room:
                parts.append([])
                room = limit
            count = min(segment.count - done, room)
            parts[-1].append((replace(segment, start=segment.start + done, count=count), row + done))
            done, room = done + count, room - count
        row += segment.count
    return [_pass(part, logit_rows) for part in parts if part]


def _pass(part: Sequence[tuple[Segment, int]], logit_rows: Sequence[int]) -> Pass:
    ordered = sorted(part, key=lambda entry: entry[0].count > SHORT_ROWS)  # stable
    rows = [row for segment, first in ordered for row in range(first, first + segment.count)]
    place = {row: index for index, row in enumerate(rows)}
    return Pass(
        segments=tuple(segment for segment, _ in ordered),
        rows=tuple(rows),
        logit_places=tuple(place[row] for row in logit_rows if row in place),
    )


def tables(part: Pass, token_ids: Sequence[int], page_size: int) -> StepTables:
    """The numbers of one pass.

    Args:
        part: The pass.
        token_ids: All tokens of the step.
        page_size: Tokens a page.
    """
    positions = np.concatenate([np.arange(s.start, s.start + s.count) for s in part.segments])
    slots = np.concatenate([_slots(segment, page_size) for segment in part.segments])
    short = [segment for segment in part.segments if segment.count <= SHORT_ROWS]
    long = [segment for segment in part.segments if segment.count > SHORT_ROWS]
    short_rows = sum(segment.count for segment in short)
    groups = [(short, 0), (long, short_rows)]
    return StepTables(
        token_ids=np.asarray(token_ids, np.int32)[list(part.rows)],
        positions=positions.astype(np.int32),
        slots=slots.astype(np.int32),
        logit_places=np.asarray(part.logit_places, np.int32),
        attention=tuple(_attention(members, first, page_size) for members, first in groups if members),
    )


def _slots(segment: Segment, page_size: int) -> npt.NDArray[np.int64]:
    places = np.arange(segment.start, segment.start + segment.count)
    return np.asarray(segment.pages, np.int64)[places // page_size] * page_size + places % page_size


def _attention(members: Sequence[Segment], first_row: int, page_size: int) -> AttentionTables:
    lengths = [segment.start + segment.count for segment in members]
    counts = [segment.count for segment in members]
    width = -(-max(lengths) // (page_size * _PAGE_GRANULE)) * _PAGE_GRANULE
    pages = np.zeros((len(members), width), np.int32)
    for row, (segment, length) in enumerate(zip(members, lengths, strict=True)):
        used = -(-length // page_size)
        pages[row, :used] = segment.pages[:used]
    return AttentionTables(
        first_row=first_row,
        row_count=sum(counts),
        row_starts=np.cumsum([0, *counts], dtype=np.int32),
        lengths=np.asarray(lengths, np.int32),
        page_table=pages,
        max_rows=max(counts),
        max_length=max(lengths),
    )
