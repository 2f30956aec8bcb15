"""What lives as long as the process is left out of collections; what does not is collected."""

import gc
import weakref

import pytest

from spearhead.rpc import spare_what_is_there


class Node:
    """May be part of a cycle."""

    def __init__(self) -> None:
        self.other: Node | None = None


def cycle() -> Node:
    first, second = Node(), Node()
    first.other, second.other = second, first
    return first


@pytest.fixture(autouse=True)
def _unfrozen():
    yield
    gc.unfreeze()


def test_objects_that_are_there_are_no_longer_looked_at():
    kept = cycle()
    spare_what_is_there()
    assert gc.get_freeze_count() > 10_000
    assert not any(one is kept for one in gc.get_objects())


def test_garbage_is_collected_before_and_after():
    before = weakref.ref(cycle())
    spare_what_is_there()
    assert before() is None
    after = weakref.ref(cycle())
    gc.collect()
    assert after() is None
