"""Whether two measures put modules into the same order."""

import math
from collections.abc import Sequence


def spearman(first: Sequence[float], second: Sequence[float]) -> float | None:
    """Spearman's rank correlation, -1 to 1; equal values share their mean rank.

    Args:
        first: Values of some items.
        second: Other values of the same items.

    Returns:
        ``None`` where it is not defined: fewer than two items, or all of one measure equal.
    """
    x, y = _centred_ranks(first), _centred_ranks(second)
    spread = math.fsum(a * a for a in x) * math.fsum(b * b for b in y)
    if not spread:
        return None
    return math.fsum(a * b for a, b in zip(x, y, strict=True)) / math.sqrt(spread)


def _centred_ranks(values: Sequence[float]) -> list[float]:
    order = sorted(range(len(values)), key=values.__getitem__)
    ranks = [0.0] * len(values)
    start = 0
    while start < len(order):
        stop = start
        while stop < len(order) and values[order[stop]] == values[order[start]]:
            stop += 1
        for place in order[start:stop]:
            ranks[place] = (start + stop - 1) / 2 - (len(values) - 1) / 2
        start = stop
    return ranks
