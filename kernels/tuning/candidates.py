"""What the tuner tries: few candidates, since each costs one or two seconds of compilation."""

from kernels.w4a16.plan import FewTile, Tile, default_parts, possible_parts

ROW_LIMITS = (16, 32, 64, 128)
"""Row counts at which tiles change; each is tuned at its limit. Parts are chosen with a single row too, and
so is the first tile of layers that the kernel for few rows does not take."""

_TILES = {
    # rows: (outputs, warps, stages, registers). 128 registers let four programs of four warps run at once,
    # 72 let seven, of which the last ones to start are a smaller share.
    16: ((128, 4, 4, 128), (64, 4, 4, 72), (64, 4, 6, 0)),
    32: ((128, 4, 4, 168), (128, 4, 4, 0), (64, 4, 4, 0), (64, 4, 4, 168)),
    64: ((128, 4, 3, 0), (128, 8, 4, 0), (64, 4, 3, 0)),
    128: ((128, 8, 3, 0),),
}
FEW_ROWS = (8, 16)
"""Row counts up to which the kernel for few rows is tried."""
_FEWER_PROGRAMS = {16: (1,), 32: (1, 2), 64: (1, 2), 128: (2, 4)}
"""Up to 16 rows have small sums and take a program a part; the more rows, the more there is to exchange."""


def tiles(rows: int, padded_outputs: int, parts: int) -> list[Tile]:
    """Tiles of ``rows`` rows that divide the outputs.

    Args:
        rows: One of ``ROW_LIMITS``.
        padded_outputs: N, a multiple of 64.
        parts: Of K.
    """
    shapes = [shape for shape in _TILES[rows] if padded_outputs % shape[0] == 0] or [(64, 4, 4, 0)]
    return [
        Tile(rows=rows, outputs=outputs, warps=warps, stages=stages, registers=registers, split=split)
        for split in sorted({max(parts // fewer, 1) for fewer in _FEWER_PROGRAMS[rows]})
        for outputs, warps, stages, registers in shapes
    ]


def few_tiles(rows: int, padded_outputs: int) -> list[FewTile]:
    """Tiles of the kernel for few rows.

    Args:
        rows: 8 or 16.
        padded_outputs: N, a multiple of 64.
    """
    tried = (64, 4), (64, 6), (128, 3), (128, 4)
    shapes = [shape for shape in tried if padded_outputs % shape[0] == 0]
    return [
        FewTile(rows=rows, outputs=outputs, stages=stages, early=early)
        for outputs, stages in shapes
        for early in (False, True)
    ]


def parts_of(padded_outputs: int, in_features: int, multiprocessors: int) -> list[int]:
    """The default count of parts, half and twice it, as far as K allows."""
    default = default_parts(padded_outputs, in_features, multiprocessors)
    return [parts for parts in possible_parts(in_features) if parts in (default // 2, default, default * 2)]
