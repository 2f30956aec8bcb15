"""How a W4 product is cut into programs: pure rules, and what a table may say.

The parts of K belong to a layer, tiles to a row count. Tiles never change a bit of a result
(:mod:`kernels.w4a16.kernel`), however many programs share the parts; the parts do, so nothing here lets them
depend on rows.
"""

from dataclasses import dataclass

from kernels.compensator.layout import GpuCompensator
from kernels.w4a16.layout import TILE_INPUTS, TILE_OUTPUTS

MAX_PARTS = 16
SPLITS = (1, 2, 4, 8, 16)
OWN_CODE_ROWS = 64
"""Rows up to which a product computes the codes of its compensators itself."""
PARTIAL_BYTES = 64 << 20
"""Bound of the partial sums of one launch; more rows are several launches."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tile:
    """One way to cut a product.

    Attributes:
        rows: BM, a power of two from 16; 8 falls off the wgmma path on Triton 3.6.
        outputs: BN: 64, 128 or 256.
        warps: 4 or 8.
        stages: Depth of the software pipeline.
        split: Programs that share the parts of K; a power of two that divides them.
        registers: Most that a thread may use; 0 = as many as the compiler likes.
        overlap: Start under the kernel in front of it (programmatic dependent launch).
    """

    rows: int
    outputs: int
    warps: int
    stages: int
    split: int
    registers: int = 0
    overlap: bool = False

    def __post_init__(self) -> None:
        if self.rows not in (16, 32, 64, 128) or self.outputs not in (64, 128, 256):
            raise ValueError(f"{self}: rows must be 16, 32, 64 or 128, and outputs 64, 128 or 256")
        if self.registers and not 32 <= self.registers <= 255:
            raise ValueError(f"{self}: registers must be 0 or 32 to 255")
        if self.warps not in (4, 8) or not 1 <= self.stages <= 8:
            raise ValueError(f"{self}: warps must be 4 or 8, and stages 1 to 8")
        if self.split not in SPLITS:
            raise ValueError(f"{self}: split must be one of {SPLITS}")


@dataclass(frozen=True, slots=True, kw_only=True)
class FewTile:
    """One way to cut a product of few rows (:mod:`kernels.w4a16.few_rows`), a program a part of K.

    Attributes:
        rows: BM, 8 or 16.
        outputs: BN, 64 or 128.
        stages: Depth of the software pipeline.
        early: Let the next kernel start at once, rather than after the last chunk; pays where programs spread
            evenly over the multiprocessors.
    """

    rows: int
    outputs: int
    stages: int
    early: bool = False

    def __post_init__(self) -> None:
        if self.rows not in (8, 16) or self.outputs not in (64, 128) or not 2 <= self.stages <= 8:
            raise ValueError(f"{self}: rows must be 8 or 16, outputs 64 or 128, and stages 2 to 8")


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerPlan:
    """What is fixed for one layer on one GPU.

    Attributes:
        parts: Of K, a power of two; each is summed apart, and then their sums as a balanced tree.
        tiles: ``(largest row count, tile)``, rising; the last one also serves all larger counts.
        dense_from: Prefill with at least so many rows dequantises and calls the dense library;
            ``None`` = never.
        few: Tiles of the kernel for few rows, rising in rows; row counts beyond them take ``tiles``.
    """

    parts: int
    tiles: tuple[tuple[int, Tile], ...]
    dense_from: int | None
    few: tuple[FewTile, ...] = ()

    def __post_init__(self) -> None:
        limits = [limit for limit, _ in self.tiles]
        if not limits or limits != sorted(set(limits)):
            raise ValueError(f"row limits must rise, at least one; got {limits}")
        if [tile.rows for tile in self.few] != sorted({tile.rows for tile in self.few}):
            raise ValueError(f"the rows of tiles for few rows must rise; got {self.few}")
        if self.parts not in SPLITS:
            raise ValueError(f"parts must be one of {SPLITS}; got {self.parts}")
        if any(self.parts % tile.split for _, tile in self.tiles):
            raise ValueError(f"the split of every tile must divide the {self.parts} parts; got {self.tiles}")

    def tile(self, rows: int) -> Tile:
        """The tile for a row count."""
        return next((tile for limit, tile in self.tiles if rows <= limit), self.tiles[-1][1])


def computes_codes(compensator: GpuCompensator | None, rows: int) -> bool:
    """Whether a product of so many rows computes the codes of its compensator itself, with the bits that they
    have from kernels in front of it. Gates wait for a sum of their own."""
    return compensator is not None and compensator.gate is None and rows <= OWN_CODE_ROWS


def launch_rows(rows: int, parts: int, padded_outputs: int, tile: Tile) -> int:
    """The rows of one launch, so that its partial sums stay within ``PARTIAL_BYTES``."""
    if parts == 1:
        return rows
    fitting = PARTIAL_BYTES // (4 * parts * padded_outputs) // tile.rows * tile.rows
    return min(rows, max(fitting, tile.rows))


def possible_parts(in_features: int) -> list[int]:
    """Powers of two up to the chunks of K: few compilations, and parts of equal length for most K."""
    limit = min(MAX_PARTS, -(-in_features // TILE_INPUTS))
    return [1 << power for power in range(limit.bit_length())]


def default_parts(padded_outputs: int, in_features: int, multiprocessors: int) -> int:
    """The fewest parts with programs for every multiprocessor and few of them in a wave of their own.

    Args:
        padded_outputs: N, a multiple of 64.
        in_features: K.
        multiprocessors: Of the GPU.
    """
    tiles = padded_outputs // _widest(padded_outputs, 128)
    candidates = possible_parts(in_features)

    def balance(split: int) -> float:
        waves = tiles * split / multiprocessors
        return waves / -(-tiles * split // multiprocessors)

    enough = [split for split in candidates if 2 * tiles * split >= 3 * multiprocessors]
    if not enough:
        return candidates[-1]
    return next((split for split in enough if balance(split) >= 0.9), max(enough, key=balance))


def default_plan(padded_outputs: int, in_features: int, multiprocessors: int) -> LayerPlan:
    """The plan of a layer that no table lists; right everywhere, tuned nowhere."""
    parts = default_parts(padded_outputs, in_features, multiprocessors)

    def tile(rows: int, outputs: int, warps: int, stages: int, split: int, registers: int = 0) -> Tile:
        fitting = _widest(padded_outputs, outputs)
        narrow = fitting == TILE_OUTPUTS
        return Tile(
            rows=rows,
            outputs=fitting,
            warps=4 if narrow else warps,
            stages=stages,
            split=max(split, 1),
            registers=0 if narrow else registers,
        )

    return LayerPlan(
        parts=parts,
        tiles=(
            (16, tile(16, 128, 4, 4, parts, 128)),  # four programs a multiprocessor, without spills
            (32, tile(32, 128, 4, 4, parts // 2, 168)),  # more rows, more to exchange: fewer programs
            (64, tile(64, 128, 4, 3, parts // 2)),
            (128, tile(128, 128, 8, 3, parts // 4)),
        ),
        dense_from=256,
        few=(FewTile(rows=8, outputs=TILE_OUTPUTS, stages=4),),
    )


def _widest(padded_outputs: int, limit: int) -> int:
    """The widest tile up to a limit that divides N."""
    width = limit
    while padded_outputs % width:
        width //= 2
    return max(width, TILE_OUTPUTS)
