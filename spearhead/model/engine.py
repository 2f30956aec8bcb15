"""Sequences over one decoder: truncate to the committed length, append, compute.

Both workers are this engine plus a way to use the logits. An item that cannot be computed fails alone and
changes nothing; everything else in the batch goes on.
"""

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

import numpy as np
import numpy.typing as npt
from torch import Tensor

from spearhead.model.attention import Segment
from spearhead.model.forward import ForwardPass
from spearhead.model.kv_cache import CachedSequence, OutOfPages, PageTable
from spearhead.model.weights import ModelWeights, byte_count


class FailureReason(Enum):
    """Why an item could not be computed."""

    CACHE_MISS = "cache miss"
    STALE_EPOCH = "stale epoch"
    OUT_OF_PAGES = "out of pages"
    INVALID = "invalid"
    NON_FINITE = "non-finite logits"
    PRECISION_UNAVAILABLE = "precision unavailable"


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """An item that could not be computed; its sequence holds at most the committed tokens it named.

    Attributes:
        reason: What a program decides by.
        message: What a person reads.
    """

    reason: FailureReason
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Advance:
    """New tokens of one sequence.

    Attributes:
        key: The sequence.
        epoch: Goes up when the caller restarts the sequence.
        committed_length: Tokens whose KV must be held; the sequence is truncated to it.
        token_ids: Tokens from there on, at least one.
        logit_count: Logits wanted for this many trailing tokens.
        max_compute_tokens: Compute at most this many beyond the cached prefix; ``None`` = no limit.
        variant: Weights to use.
    """

    key: Hashable
    epoch: int
    committed_length: int
    token_ids: Sequence[int]
    logit_count: int
    max_compute_tokens: int | None
    variant: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Advanced:
    """What became of an :class:`Advance`.

    Attributes:
        computed_length: Tokens held now.
        cached_token_count: Of these, taken from the prefix cache just now.
        rows: Logits where the decoder computes, ``(logit_count, vocabulary)`` float32; no rows when
            ``max_compute_tokens`` cut the item short.
    """

    computed_length: int
    cached_token_count: int
    rows: Tensor

    @property
    def logits(self) -> npt.NDArray[np.float32]:
        """The rows for the processor: the same memory, or a copy of a GPU's."""
        array: npt.NDArray[np.float32] = self.rows.numpy(force=True)
        return array


@dataclass(slots=True)
class _Live:
    epoch: int
    cache: CachedSequence


@dataclass(frozen=True, slots=True, kw_only=True)
class _Admitted:
    index: int
    live: _Live
    start: int
    cached: int
    token_ids: Sequence[int]
    logit_count: int


class SequenceEngine:
    """Owns the sequences of a worker; not thread-safe, used from one model thread.

    Args:
        decoder: Computes.
        pages: Page table of the decoder's storage.
        variants: Weights by name.
        vocab_size: Token ids that may occur; logits are cut to it.
        context_length: Longest sequence in tokens.
        max_rows: Most tokens that one item may add in one step; more are left for the next.
    """

    def __init__(
        self,
        decoder: ForwardPass,
        pages: PageTable,
        variants: Mapping[str, ModelWeights],
        *,
        vocab_size: int,
        context_length: int,
        max_rows: int = 1024,
    ) -> None:
        self.decoder = decoder
        self.pages = pages
        self.variants = dict(variants)
        self.vocab_size = vocab_size
        self.context_length = context_length
        self.max_rows = max_rows
        self._live: dict[Hashable, _Live] = {}

    @property
    def weight_bytes(self) -> int:
        """Bytes of weights in memory; what variants share counts once."""
        return byte_count(tensor for weights in self.variants.values() for tensor in weights.tensors())

    @property
    def sequence_count(self) -> int:
        """Sequences that hold pages."""
        return len(self._live)

    def advance(self, items: Sequence[Advance]) -> list[Advanced | Failure]:
        """Computes one step; results in the order of ``items``. Items of a variant share a forward pass."""
        results: list[Advanced | Failure | None] = [None] * len(items)
        admitted: dict[str, list[_Admitted]] = {}
        seen: set[Hashable] = set()
        for index, item in enumerate(items):
            if item.key in seen:
                results[index] = _failure("INVALID", "the step has two items of this sequence; send one")
                continue
            seen.add(item.key)
            outcome = self._admit(index, item)
            if isinstance(outcome, Failure):
                results[index] = outcome
            else:
                admitted.setdefault(item.variant, []).append(outcome)
        for variant, batch in admitted.items():
            for entry, advanced in zip(batch, self._forward(variant, batch), strict=True):
                results[entry.index] = advanced if advanced is not None else self._discard(entry)
        return [result for result in results if result is not None]

    def keep(self, key: Hashable, length: int, *, publish: bool) -> None:
        """Truncates a sequence to its verified ``length`` and offers its full pages as prefix if wanted."""
        cache = self._live[key].cache
        self.pages.truncate(cache, length)
        if publish:
            self.pages.publish(cache, length)

    def tokens(self, key: Hashable) -> list[int]:
        """The tokens that a sequence holds; do not modify."""
        return self._live[key].cache.token_ids

    def release(self, key: Hashable) -> None:
        """Frees a sequence; an unknown one is no error."""
        live = self._live.pop(key, None)
        if live is not None:
            self.pages.release(live.cache)

    def release_where(self, keys: Iterable[Hashable]) -> None:
        """Frees many sequences."""
        for key in keys:
            self.release(key)

    def live_keys(self) -> list[Hashable]:
        """All live sequences."""
        return list(self._live)

    def check_integrity(self) -> None:
        """Proves the page table's invariants against the live sequences."""
        self.pages.check_integrity(live.cache for live in self._live.values())

    def _admit(self, index: int, item: Advance) -> _Admitted | Failure:
        """Checks an item, then truncates, attaches and allocates."""
        live = self._live.get(item.key)
        failure = self._check(item, live)
        if failure is not None:
            return failure
        if live is None or live.epoch < item.epoch or live.cache.variant != item.variant:
            self.release(item.key)
            live = _Live(epoch=item.epoch, cache=CachedSequence(variant=item.variant))
            self._live[item.key] = live
        return self._allocate(index, item, live)

    def _allocate(self, index: int, item: Advance, live: _Live) -> _Admitted | Failure:
        cache = live.cache
        self.pages.truncate(cache, item.committed_length)
        cached = 0
        if item.committed_length == 0:
            cached = self.pages.attach_prefix(cache, list(item.token_ids), leave=max(1, item.logit_count))
        remaining = item.token_ids[cached:]
        limit = self.max_rows if item.max_compute_tokens is None else item.max_compute_tokens
        chunk = remaining[: min(limit, self.max_rows)]
        start, held = cache.length, len(cache.pages)
        try:
            copies = self.pages.extend(cache, chunk)
        except OutOfPages:
            if not item.committed_length:
                self.release(item.key)
            return Failure(
                reason=FailureReason.OUT_OF_PAGES,
                message=f"{len(chunk)} tokens need more than the {self.pages.free_page_count} free KV pages "
                f"of {self.pages.page_size} tokens; release or preempt a sequence and send the item again",
            )
        for source, destination in copies:
            self.decoder.storage.copy_page(source, destination)
        if len(cache.pages) > held:
            self.decoder.storage.clear_pages(cache.pages[held:])
        return _Admitted(
            index=index,
            live=live,
            start=start,
            cached=cached,
            token_ids=chunk,
            logit_count=item.logit_count if len(chunk) == len(remaining) else 0,
        )

    def _check(self, item: Advance, live: _Live | None) -> Failure | None:
        end = item.committed_length + len(item.token_ids)
        if item.variant not in self.variants:
            held = ", ".join(self.variants)
            return _failure("PRECISION_UNAVAILABLE", f"no {item.variant} weights are loaded; held: {held}")
        if live is not None and item.epoch < live.epoch:
            return _failure("STALE_EPOCH", f"epoch {item.epoch} is older than {live.epoch}; drop the item")
        if not item.token_ids:
            return _failure("INVALID", "no token ids; send at least one")
        if item.max_compute_tokens == 0:
            return _failure("INVALID", "max_compute_tokens is 0; it must be at least 1, or unset for all")
        if end > self.context_length:
            return _failure("INVALID", f"{end} tokens exceed the context of {self.context_length}")
        worst = max(item.token_ids)
        if worst >= self.vocab_size:
            return _failure("INVALID", f"token id {worst} is not below the vocabulary size {self.vocab_size}")
        current = live is not None and live.epoch == item.epoch and live.cache.variant == item.variant
        held_length = live.cache.length if live is not None and current else 0
        if item.committed_length > held_length:
            return _failure(
                "CACHE_MISS",
                f"committed length {item.committed_length} exceeds the {held_length} tokens held; send the "
                "sequence again from 0",
            )
        return None

    def _forward(self, variant: str, batch: Sequence[_Admitted]) -> list[Advanced | None]:
        """Computes a batch; ``None`` for an item with a number that is not finite."""
        segments: list[Segment] = []
        token_ids: list[int] = []
        logit_rows: list[int] = []
        for entry in batch:
            count = len(entry.token_ids)
            segments.append(Segment(pages=entry.live.cache.pages, start=entry.start, count=count))
            token_ids.extend(entry.token_ids)
            logit_rows.extend(range(len(token_ids) - entry.logit_count, len(token_ids)))
        result = self.decoder.forward(self.variants[variant], segments, token_ids, logit_rows)
        logits = result.logits[:, : self.vocab_size].contiguous()
        outcomes: list[Advanced | None] = []
        first_row = first_logit = 0
        for entry in batch:
            end_row, end_logit = first_row + len(entry.token_ids), first_logit + entry.logit_count
            advanced = Advanced(
                computed_length=entry.live.cache.length,
                cached_token_count=entry.cached,
                rows=logits[first_logit:end_logit],
            )
            outcomes.append(advanced if all(result.finite[first_row:end_row]) else None)
            first_row, first_logit = end_row, end_logit
        return outcomes

    def _discard(self, entry: _Admitted) -> Failure:
        """Forgets what an item computed, down to the bits: they would spread to whoever reads the page."""
        cache, size = entry.live.cache, self.pages.page_size
        self.pages.truncate(cache, entry.start)
        if entry.start % size:
            self.decoder.storage.clear_after(cache.pages[-1], entry.start % size)
        return _failure(
            "NON_FINITE",
            f"computing {len(entry.token_ids)} tokens from position {entry.start} gave NaN or infinity; the "
            "weights or the compute type do not fit this input, try model.dtype = 'float32'",
        )


def _failure(reason: str, message: str) -> Failure:
    return Failure(reason=FailureReason[reason], message=message)
