"""A capture is not disturbed by the garbage collector."""

import gc
import weakref

import pytest

from kernels.graph_capture import nothing_collected


class Cycle:
    def __init__(self) -> None:
        self.itself = self


def test_garbage_goes_before_a_capture_and_the_collector_rests_while_it_lasts() -> None:
    before = weakref.ref(Cycle())
    with nothing_collected():
        assert before() is None
        assert not gc.isenabled()
    assert gc.isenabled()


def test_a_failed_capture_lets_the_collector_work_again() -> None:
    with pytest.raises(RuntimeError), nothing_collected():
        raise RuntimeError
    assert gc.isenabled()


def test_a_collector_that_was_off_stays_off() -> None:
    gc.disable()
    try:
        with nothing_collected():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()
