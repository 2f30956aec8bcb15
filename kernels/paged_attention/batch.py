"""Which rows attend to which pages: a batch of sequences, and how a launch cuts it up."""

from dataclasses import dataclass

from torch import Tensor

from kernels.tensor_checks import power_of_two


@dataclass(frozen=True, slots=True, kw_only=True)
class PagedBatch:
    """New tokens of B sequences, N rows in all; those of a sequence are consecutive rows and positions.

    Attributes:
        page_table: int32 ``(B, P)``, pages of each sequence in order; entries beyond its length are not read.
        row_starts: int32 ``(B + 1,)``, first row of each sequence, then their end. A sequence may have none.
        lengths: int32 ``(B,)``, tokens of each sequence, the new ones included.
        positions: int32 or int64 ``(N,)``, position of each row in its sequence; -1 = of no sequence.
        page_size: Tokens a page.
        max_rows: No sequence has more rows. Fixes the grid, so graphs replay with any smaller count.
        max_length: No sequence is longer. Likewise.
    """

    page_table: Tensor
    row_starts: Tensor
    lengths: Tensor
    positions: Tensor
    page_size: int
    max_rows: int
    max_length: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionConfig:
    """How a launch is cut up.

    Under one configuration results have equal bits whatever the batch, and whether pieces are attended to by
    one program or by many.

    Attributes:
        tile_rows: Query heads times rows that share one read of keys and values; a power of two from 16.
        piece_tokens: Context is cut into pieces of this many tokens, counted from its beginning.
        block_keys: Keys a step; divides ``piece_tokens``.
        num_warps: Warps a program.
        num_stages: Steps in flight.
    """

    tile_rows: int
    piece_tokens: int = 256
    block_keys: int = 64
    num_warps: int = 4
    num_stages: int = 3

    def __post_init__(self) -> None:
        if self.tile_rows < 16 or self.tile_rows != power_of_two(self.tile_rows):
            raise ValueError(f"tile_rows is {self.tile_rows}; it must be a power of two, 16 or more")
        if self.block_keys < 16 or self.block_keys != power_of_two(self.block_keys):
            raise ValueError(f"block_keys is {self.block_keys}; it must be a power of two, 16 or more")
        if self.piece_tokens <= 0 or self.piece_tokens % self.block_keys:
            raise ValueError(
                f"piece_tokens is {self.piece_tokens}; block_keys = {self.block_keys} must divide it"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Attended:
    """What attention yields.

    Attributes:
        y: ``(N, H D)`` in the type of the query; zeros for rows of no sequence.
        codes: float32 ``(P, N, S R)``, partial codes of ``y``; ``None`` without a compensator.
    """

    y: Tensor
    codes: Tensor | None


def default_config(heads_per_kv_head: int) -> AttentionConfig:
    """A tile takes five rows of a verified draft, at most 64 query heads."""
    tile_rows = min(max(power_of_two(5 * heads_per_kv_head), 16), 64)
    return AttentionConfig(tile_rows=tile_rows, num_warps=8 if tile_rows == 64 else 4)
