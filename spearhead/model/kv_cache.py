"""Paged KV cache with a prefix cache over verified full pages.

Storage is one tensor of slots a layer for K and one for V; a page is ``page_size`` consecutive slots. A
sequence owns a list of pages. Full pages of *verified* tokens are published in a tree keyed by (variant,
parent node, token ids); keys are compared exactly, so that no hash collision can mix sequences up.

Invariant: a page is free, or held by sequences (reference count), or cached (published with reference
count 0, evictable). :meth:`PageTable.check_integrity` proves it.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch

from spearhead.model.architecture import ModelConfig

EditKind = Literal["copy", "clear", "cut"]


class OutOfPages(Exception):
    """No page is free and none can be evicted. The caller decides what to do about it."""


@dataclass(eq=False, slots=True)
class _Node:
    """A published page: position in the prefix tree."""

    page: int
    parent: "_Node | None"
    key: tuple[str, int, tuple[int, ...]]
    child_count: int = 0


@dataclass(slots=True)
class CachedSequence:
    """The cache state of one sequence.

    Attributes:
        variant: Weights that computed the KV.
        token_ids: Tokens whose KV is (being) computed, in order.
        pages: Pages in order; page i holds tokens i * page_size ….
        nodes: Published nodes of the leading pages.
    """

    variant: str
    token_ids: list[int] = field(default_factory=list)
    pages: list[int] = field(default_factory=list)
    nodes: list[_Node] = field(default_factory=list)

    @property
    def length(self) -> int:
        """Tokens held."""
        return len(self.token_ids)


class PageTable:
    """Owns pages, reference counts and the prefix tree; knows no tensors.

    Args:
        page_count: Pages in all.
        page_size: Tokens a page.
    """

    def __init__(self, page_count: int, page_size: int) -> None:
        self.page_count = page_count
        self.page_size = page_size
        self._free = list(range(page_count - 1, -1, -1))
        self._references = [0] * page_count
        self._nodes: dict[tuple[str, int, tuple[int, ...]], _Node] = {}
        self._node_of_page: dict[int, _Node] = {}
        self._evictable: dict[int, None] = {}  # pages with a node and no reference, oldest first

    @property
    def free_page_count(self) -> int:
        """Pages that could be allocated now, evictable prefix pages included."""
        return len(self._free) + len(self._evictable)

    @property
    def held_page_count(self) -> int:
        """Pages that sequences hold."""
        return self.page_count - self.free_page_count

    def attach_prefix(self, sequence: CachedSequence, token_ids: list[int], leave: int = 1) -> int:
        """Gives an empty sequence the longest published prefix of ``token_ids``.

        At least ``leave`` tokens are left to compute, so that there are logits to sample from.

        Returns:
            Tokens attached, a multiple of the page size.
        """
        size = self.page_size
        parent: _Node | None = None
        for start in range(0, (len(token_ids) - leave) // size * size, size):
            key = self._key(sequence.variant, parent, token_ids[start : start + size])
            node = self._nodes.get(key)
            if node is None:
                break
            self._hold(node.page)
            sequence.pages.append(node.page)
            sequence.nodes.append(node)
            parent = node
        attached = len(sequence.pages) * size
        sequence.token_ids.extend(token_ids[:attached])
        return attached

    def extend(self, sequence: CachedSequence, token_ids: Iterable[int]) -> list[tuple[int, int]]:
        """Appends tokens and the pages they need.

        Returns:
            Page copies (from, to) that must be made before KV is written: a last page that others share
            and that would be written to.

        Raises:
            OutOfPages: Nothing changed.
        """
        new = list(token_ids)
        needed = -(-(sequence.length + len(new)) // self.page_size) - len(sequence.pages)
        private = len(sequence.nodes) * self.page_size > sequence.length  # truncated inside a published page
        if needed + private > self.free_page_count:
            raise OutOfPages
        copies = [self._replace_last_page(sequence)] if private else []
        sequence.pages.extend(self._allocate() for _ in range(needed))
        sequence.token_ids.extend(new)
        return copies

    def truncate(self, sequence: CachedSequence, length: int) -> None:
        """Forgets all tokens from ``length`` on and lets their pages go."""
        keep = -(-length // self.page_size)
        for page in reversed(sequence.pages[keep:]):
            self._drop(page)
        del sequence.pages[keep:]
        del sequence.nodes[keep:]
        del sequence.token_ids[length:]

    def publish(self, sequence: CachedSequence, verified_length: int) -> None:
        """Offers the full pages of the first ``verified_length`` tokens to other sequences.

        When another sequence published the same tokens first, its page takes the place of ours: the
        content is equal by batch invariance, and one page becomes free.
        """
        size = self.page_size
        for index in range(len(sequence.nodes), verified_length // size):
            parent = sequence.nodes[-1] if sequence.nodes else None
            tokens = sequence.token_ids[index * size : (index + 1) * size]
            key = self._key(sequence.variant, parent, tokens)
            node = self._nodes.get(key)
            if node is None:
                node = _Node(page=sequence.pages[index], parent=parent, key=key)
                self._nodes[key] = node
                self._node_of_page[node.page] = node
                if parent is not None:
                    parent.child_count += 1
            elif node.page != sequence.pages[index]:
                self._hold(node.page)
                self._drop(sequence.pages[index])
                sequence.pages[index] = node.page
            sequence.nodes.append(node)

    def release(self, sequence: CachedSequence) -> None:
        """Lets all pages of a sequence go; published ones stay reusable."""
        self.truncate(sequence, 0)

    def check_integrity(self, sequences: Iterable[CachedSequence]) -> None:
        """Proves the invariants against all live sequences; raises AssertionError with the page at fault."""
        held: dict[int, int] = {}
        for sequence in sequences:
            assert len(sequence.pages) == -(-sequence.length // self.page_size), "page count of a sequence"
            for page in sequence.pages:
                held[page] = held.get(page, 0) + 1
        for page in range(self.page_count):
            assert self._references[page] == held.get(page, 0), f"reference count of page {page}"
        free = set(self._free)
        assert len(free) == len(self._free), "a page is free twice"
        assert not free & set(held) and not free & set(self._evictable), "a free page is in use"
        assert not set(self._evictable) & set(held), "an evictable page is in use"
        assert len(free) + len(self._evictable) + len(held) == self.page_count, "a page is lost"
        for page, node in self._node_of_page.items():
            assert node.page == page and self._nodes[node.key] is node, f"prefix node of page {page}"

    def _key(
        self, variant: str, parent: _Node | None, token_ids: list[int]
    ) -> tuple[str, int, tuple[int, ...]]:
        return variant, -1 if parent is None else id(parent), tuple(token_ids)

    def _allocate(self) -> int:
        if not self._free:
            self._evict()
        page = self._free.pop()
        self._references[page] = 1
        return page

    def _hold(self, page: int) -> None:
        self._references[page] += 1
        self._evictable.pop(page, None)

    def _drop(self, page: int) -> None:
        self._references[page] -= 1
        if self._references[page] == 0:
            if page in self._node_of_page:
                self._evictable[page] = None
            else:
                self._free.append(page)

    def _replace_last_page(self, sequence: CachedSequence) -> tuple[int, int]:
        shared = sequence.pages[-1]
        own = self._allocate()
        sequence.pages[-1] = own
        sequence.nodes.pop()
        self._drop(shared)
        return shared, own

    def _evict(self) -> None:
        """Frees the least recently used published page that has no published child."""
        page = next(page for page in self._evictable if self._node_of_page[page].child_count == 0)
        del self._evictable[page]
        node = self._node_of_page.pop(page)
        del self._nodes[node.key]
        if node.parent is not None:
            node.parent.child_count -= 1
        self._free.append(page)


@dataclass(frozen=True, slots=True, kw_only=True)
class PageEdit:
    """A change of pages in every layer that no forward pass makes.

    Attributes:
        kind: ``copy`` page ``page`` to page ``to``, ``clear`` it, or clear it from slot ``to`` on (``cut``).
        page: Which.
        to: See ``kind``; 0 for ``clear``.
    """

    kind: EditKind
    page: int
    to: int = 0


class KvStorage:
    """The tensors behind the pages: per layer keys and values, ``(page_count * page_size, 2, KV, head_dim)``.

    Args:
        config: Shapes.
        page_count: Pages in all.
        page_size: Tokens a page.
        dtype: Of the stored values.
        device: Where they live.

    Attributes:
        journal: Set where other ranks have to repeat every edit: those since it was last emptied.
    """

    def __init__(
        self, config: ModelConfig, page_count: int, page_size: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        shape = (page_count * page_size, 2, config.kv_head_count, config.head_dim)
        self.page_count = page_count
        self.page_size = page_size
        # One tensor, so that what concerns a page in all layers is one operation.
        self._all = torch.zeros((config.layer_count, *shape), dtype=dtype, device=device)
        self.layers = list(self._all.unbind(0))
        self.journal: list[PageEdit] | None = None

    def clear_pages(self, pages: Sequence[int]) -> None:
        """Zeroes pages, so that nothing of an earlier sequence, NaN least of all, reaches the next one."""
        self._note(*(PageEdit(kind="clear", page=page) for page in pages))
        index = torch.tensor(pages, device=self._all.device)
        self._all.view(len(self.layers), self.page_count, -1).index_fill_(1, index, 0)

    def clear_after(self, page: int, slot: int) -> None:
        """Zeroes the slots of one page from ``slot`` on."""
        self._note(PageEdit(kind="cut", page=page, to=slot))
        self._all[:, page * self.page_size + slot : (page + 1) * self.page_size] = 0

    @property
    def byte_count(self) -> int:
        """Bytes over all layers."""
        return self._all.nbytes

    def copy_page(self, source: int, destination: int) -> None:
        """Copies one page in every layer."""
        self._note(PageEdit(kind="copy", page=source, to=destination))
        pages = self._all.view(len(self.layers), self.page_count, -1)
        pages[:, destination] = pages[:, source]

    def repeat(self, edit: PageEdit) -> None:
        """Makes an edit of another rank's journal."""
        if edit.kind == "copy":
            self.copy_page(edit.page, edit.to)
        elif edit.kind == "clear":
            self.clear_pages([edit.page])
        else:
            self.clear_after(edit.page, edit.to)

    def _note(self, *edits: PageEdit) -> None:
        if self.journal is not None:
            self.journal += edits
