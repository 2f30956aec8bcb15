"""What the leader tells the other ranks to compute: one forward pass, and the page edits before it."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from spearhead.model.attention import Segment
from spearhead.model.kv_cache import EditKind, PageEdit

_EDITS: tuple[EditKind, ...] = ("copy", "clear", "cut")


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """One forward pass. Logits are the leader's alone: it samples.

    Attributes:
        variant: Weights to use.
        edits: To be made before, in order.
        segments: New tokens of each sequence, with the pages of the sequence.
        token_ids: All new tokens, segment after segment.
    """

    variant: str
    edits: Sequence[PageEdit]
    segments: Sequence[Segment]
    token_ids: Sequence[int]

    def encode(self) -> bytes:
        """As bytes: little-endian int32, then the variant's name."""
        numbers = [len(self.edits), len(self.segments), len(self.token_ids)]
        for edit in self.edits:
            numbers += (_EDITS.index(edit.kind), edit.page, edit.to)
        for segment in self.segments:
            numbers += (segment.start, segment.count, len(segment.pages), *segment.pages)
        numbers += self.token_ids
        return np.asarray([len(numbers), *numbers], "<i4").tobytes() + self.variant.encode()

    @classmethod
    def decode(cls, data: bytes) -> "Work":
        """The inverse of :meth:`encode`."""
        (count,) = np.frombuffer(data, "<i4", 1).tolist()
        numbers = iter(np.frombuffer(data, "<i4", count, 4).tolist())
        edit_count, segment_count, token_count = _take(numbers, 3)
        edits = [_edit(*_take(numbers, 3)) for _ in range(edit_count)]
        segments = [_segment(numbers, *_take(numbers, 3)) for _ in range(segment_count)]
        return cls(
            variant=data[4 * (count + 1) :].decode(),
            edits=edits,
            segments=segments,
            token_ids=_take(numbers, token_count),
        )


def _take(numbers: Iterator[int], count: int) -> list[int]:
    return [next(numbers) for _ in range(count)]


def _edit(kind: int, page: int, to: int) -> PageEdit:
    return PageEdit(kind=_EDITS[kind], page=page, to=to)


def _segment(numbers: Iterator[int], start: int, count: int, page_count: int) -> Segment:
    return Segment(pages=_take(numbers, page_count), start=start, count=count)
