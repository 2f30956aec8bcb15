"""Keeps the garbage collector away from what lives as long as the process."""

import gc


def spare_what_is_there() -> None:
    """Collects once, and leaves what is left out of all later collections.

    A full collection goes through every object: the libraries and the model of a worker are 220,000, which
    held up each stream for 100 ms, once or twice a minute. Call it when a service has loaded all that it
    keeps, before it says that it is ready.
    """
    gc.collect()
    gc.freeze()
