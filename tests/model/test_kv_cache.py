"""The page table keeps its invariants under any order of operations."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from spearhead.model.kv_cache import CachedSequence, OutOfPages, PageTable

SIZE = 4


def filled(table, tokens, variant="w4"):
    sequence = CachedSequence(variant=variant)
    table.extend(sequence, tokens)
    return sequence


def test_a_full_pool_refuses_and_changes_nothing():
    table = PageTable(2, SIZE)
    sequence = filled(table, [1] * 8)
    with pytest.raises(OutOfPages):
        table.extend(sequence, [2])
    assert sequence.length == 8
    table.check_integrity([sequence])


def test_only_full_verified_pages_are_published():
    table = PageTable(8, SIZE)
    first = filled(table, range(11))
    table.publish(first, 7)  # one full page of verified tokens
    second = CachedSequence(variant="w4")
    assert table.attach_prefix(second, list(range(11))) == 4
    assert second.pages == first.pages[:1]
    table.check_integrity([first, second])


def test_a_wholly_cached_prompt_leaves_one_token_to_compute():
    table = PageTable(8, SIZE)
    first = filled(table, range(8))
    table.publish(first, 8)
    assert table.attach_prefix(CachedSequence(variant="w4"), list(range(8))) == 4


def test_prefixes_of_another_variant_are_never_used():
    table = PageTable(8, SIZE)
    table.publish(filled(table, range(8)), 8)
    assert table.attach_prefix(CachedSequence(variant="fp16"), list(range(9))) == 0


def test_published_pages_survive_their_sequence_until_they_are_needed():
    table = PageTable(3, SIZE)
    first = filled(table, range(8))
    table.publish(first, 8)
    table.release(first)
    assert table.free_page_count == 3
    again = CachedSequence(variant="w4")
    assert table.attach_prefix(again, list(range(9))) == 8
    table.release(again)
    other = filled(table, [50] * 12)  # needs all three pages, evicts both
    assert table.attach_prefix(CachedSequence(variant="w4"), list(range(9))) == 0
    table.check_integrity([other])


def test_writing_into_a_shared_page_copies_it_first():
    table = PageTable(4, SIZE)
    first = filled(table, range(8))
    table.publish(first, 8)
    shared = first.pages[1]
    table.truncate(first, 6)
    copies = table.extend(first, [99])
    assert copies == [(shared, first.pages[1])]
    assert first.pages[1] != shared
    second = CachedSequence(variant="w4")
    assert table.attach_prefix(second, list(range(9))) == 8  # the published content is untouched
    table.check_integrity([first, second])


def test_publishing_the_same_tokens_twice_shares_one_page():
    table = PageTable(8, SIZE)
    first, second = filled(table, range(4)), filled(table, range(4))
    table.publish(first, 4)
    table.publish(second, 4)
    assert second.pages == first.pages
    assert table.held_page_count == 1
    table.check_integrity([first, second])


class PageTableMachine(RuleBasedStateMachine):
    """Random sequences over few tokens, so that prefixes collide; a tiny pool, so that pages run out."""

    def __init__(self):
        super().__init__()
        self.table = PageTable(12, SIZE)
        self.sequences = []

    @rule(
        tokens=st.lists(st.integers(0, 1), min_size=1, max_size=14), variant=st.sampled_from(["w4", "fp16"])
    )
    def start(self, tokens, variant):
        sequence = CachedSequence(variant=variant)
        attached = self.table.attach_prefix(sequence, tokens)
        assert attached < len(tokens)
        try:
            self.table.extend(sequence, tokens[attached:])
            self.sequences.append(sequence)
        except OutOfPages:
            self.table.release(sequence)

    @precondition(lambda self: self.sequences)
    @rule(data=st.data(), tokens=st.lists(st.integers(0, 1), min_size=1, max_size=6))
    def grow(self, data, tokens):
        sequence = data.draw(st.sampled_from(self.sequences))
        before = list(sequence.token_ids)
        try:
            self.table.extend(sequence, tokens)
            assert sequence.token_ids == before + tokens
        except OutOfPages:
            assert sequence.token_ids == before

    @precondition(lambda self: self.sequences)
    @rule(data=st.data())
    def truncate(self, data):
        sequence = data.draw(st.sampled_from(self.sequences))
        self.table.truncate(sequence, data.draw(st.integers(0, sequence.length)))

    @precondition(lambda self: self.sequences)
    @rule(data=st.data())
    def publish(self, data):
        sequence = data.draw(st.sampled_from(self.sequences))
        self.table.publish(sequence, data.draw(st.integers(0, sequence.length)))

    @precondition(lambda self: self.sequences)
    @rule(data=st.data())
    def release(self, data):
        sequence = data.draw(st.sampled_from(self.sequences))
        self.sequences.remove(sequence)
        self.table.release(sequence)

    @invariant()
    def holds(self):
        self.table.check_integrity(self.sequences)


PageTableMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestPageTable = PageTableMachine.TestCase
