"""Ranks that are threads of one process, and the parts of tiny models that they compute."""

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from spearhead.model.attention import Segment
from spearhead.model.checkpoint import Checkpoint, load_variants, open_checkpoint
from spearhead.model.decoder import Decoder, RowBlocks
from spearhead.model.forward import ForwardPass
from spearhead.model.kv_cache import KvStorage
from spearhead.model.parallel import ALONE, Ranks, Shard, plan_shards
from spearhead.model.quantization import QuantizationScheme
from spearhead.model.weights import ModelWeights

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """On a busy machine threads of a tiny product wait longer for each other than they compute."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class ThreadRank:
    """One of several threads; a thread that fails ends the others too."""

    def __init__(self, rank: int, board: list[Tensor | None], barrier: threading.Barrier) -> None:
        self.rank = rank
        self.size = len(board)
        self._board, self._barrier = board, barrier

    def meet(self) -> None:
        self._barrier.wait(timeout=30)

    def gather(self, tensor: Tensor) -> Sequence[Tensor]:
        self._board[self.rank] = tensor.clone()
        self._barrier.wait(timeout=30)
        parts = [part for part in self._board if part is not None]
        self._barrier.wait(timeout=30)
        assert len({(part.shape, part.dtype) for part in parts}) == 1, "ranks exchange tensors of one shape"
        return parts

    def agree(self, proposal: bool) -> bool:
        return all(bool(part) for part in self.gather(torch.tensor(proposal)))


def on_ranks(size: int, compute: Callable[[Ranks], Any]) -> list[Any]:
    """What each of several ranks computes."""
    if size == 1:
        return [compute(ALONE)]
    barrier, board = threading.Barrier(size), [None] * size

    def run(rank: int) -> Any:
        try:
            return compute(ThreadRank(rank, board, barrier))
        except BaseException:
            barrier.abort()
            raise

    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(run, range(size)))


class PartDecoder:
    """One rank's decoder and weights of a checkpoint."""

    def __init__(self, checkpoint: Checkpoint, ranks: Ranks, variants: Sequence[str], **options: Any) -> None:
        self.shard = shard_of(checkpoint, ranks)
        shape = checkpoint.config if self.shard is None else self.shard.shape(checkpoint.config)
        self.weights: Mapping[str, ModelWeights] = load_variants(
            checkpoint, variants=variants, dtype=torch.float32, device=CPU, shard=self.shard, **options
        )
        storage = KvStorage(shape, 16, 16, torch.float32, CPU)
        self.decoder: ForwardPass = Decoder(
            shape, storage, context_length=128, row_blocks=RowBlocks(), device=CPU, ranks=ranks
        )

    def logits(self, variant: str, tokens: Sequence[int]) -> Tensor:
        """Of every token of one prompt."""
        segment = Segment(pages=range(-(-len(tokens) // 16)), start=0, count=len(tokens))
        return self.decoder.forward(self.weights[variant], [segment], tokens, range(len(tokens))).logits


def shard_of(checkpoint: Checkpoint, ranks: Ranks) -> Shard | None:
    """The part of one rank; ``None`` = it is the only one."""
    if ranks.size == 1:
        return None
    return plan_shards(checkpoint.config, checkpoint.input_groups, ranks.size)[ranks.rank]


@pytest.fixture
def part_decoder() -> type[PartDecoder]:
    """``part_decoder(checkpoint, ranks, variants, …)``."""
    return PartDecoder


@pytest.fixture
def ranked() -> Callable[..., list[Any]]:
    """``ranked(size, compute) -> [compute(rank) for each]``, at the same time."""
    return on_ranks


@pytest.fixture
def logits_of(tiny_checkpoint: Callable[..., Path]) -> Callable[..., list[Tensor]]:
    """``logits_of(path, size, variant, tokens, scheme="") -> logits of each rank``."""

    def compute(
        path: Path, size: int, variant: str, tokens: Sequence[int], *, scheme: str = "", **options: Any
    ) -> list[Tensor]:
        checkpoint = open_checkpoint(str(path))
        if scheme:
            options["quantization"] = QuantizationScheme.parse(scheme)
        return on_ranks(
            size, lambda ranks: PartDecoder(checkpoint, ranks, (variant,), **options).logits(variant, tokens)
        )

    return compute
