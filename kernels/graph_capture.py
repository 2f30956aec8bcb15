"""What every capture of a CUDA graph needs, whoever captures."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def nothing_collected() -> Iterator[None]:
    """Collects garbage before a capture and none while it lasts.

    Memory or an earlier graph that the collector freed during a capture would spoil it.
    """
    gc.collect()
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
