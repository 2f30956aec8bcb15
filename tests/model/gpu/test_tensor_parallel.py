"""The GPU's decoder over several ranks, through the references of its kernels."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from spearhead.model.attention import Segment
from spearhead.model.checkpoint import load_variants, open_checkpoint
from spearhead.model.gpu.decoder import GpuDecoder
from spearhead.model.gpu.weights import prepared
from spearhead.model.kv_cache import KvStorage
from spearhead.model.parallel import plan_shards

CPU = torch.device("cpu")
TOKENS = [(37 * i) % 320 for i in range(60)]
LAYER = "model.layers.{}."
COMPENSATED = {
    LAYER.format(0) + "self_attn.q_proj": (64, 64, 4, 6),
    LAYER.format(0) + "self_attn.v_proj": (32, 64, 18, 0),
    LAYER.format(0) + "self_attn.o_proj": (64, 64, 8, 5),
    LAYER.format(1) + "mlp.up_proj": (96, 64, 16, 3),
    LAYER.format(1) + "mlp.down_proj": (64, 96, 4, 6),
}


class TwoThreads:
    """Rank 0 or 1 of two threads."""

    size = 2

    def __init__(self, rank, board, barrier):
        self.rank, self._board, self._barrier = rank, board, barrier

    def meet(self):
        self._barrier.wait(30)

    def gather(self, tensor):
        self._board[self.rank] = tensor.clone()
        self._barrier.wait(30)
        parts = list(self._board)
        self._barrier.wait(30)
        return parts

    def agree(self, proposal):
        return all(bool(part) for part in self.gather(torch.tensor(proposal)))


def logits(checkpoint, variant, linears, ranks=None):
    """float32 logits of TOKENS, by one rank's decoder."""
    shard = None if ranks is None else plan_shards(checkpoint.config, checkpoint.input_groups, 2)[ranks.rank]
    shape = checkpoint.config if shard is None else shard.shape(checkpoint.config)
    weights = load_variants(
        checkpoint, variants=(variant,), dtype=torch.float32, device=CPU, shard=shard
    )  # fmt: skip
    options = {} if ranks is None else {"ranks": ranks}
    decoder = GpuDecoder(
        shape, KvStorage(shape, 8, 16, torch.float32, CPU), linears, context_length=128, **options
    )
    own = prepared(weights, torch.float32)[variant]
    segment = Segment(pages=(7, 2, 5, 3), start=0, count=len(TOKENS))
    return decoder.forward(own, [segment], TOKENS, range(len(TOKENS))).logits


@pytest.mark.parametrize("variant", ["w4", "w4+ec"])
def test_logits_of_two_ranks_are_those_of_one(
    variant, tiny_checkpoint, tiny_artefact, add_compensators, reference_linears
):
    artefact = tiny_artefact(tiny_checkpoint("llama", attention_bias=True))
    add_compensators(artefact, COMPENSATED)
    checkpoint = open_checkpoint(str(artefact))
    whole = logits(checkpoint, variant, reference_linears)
    board, barrier = [None, None], threading.Barrier(2)
    with ThreadPoolExecutor(2) as pool:
        ranks = [TwoThreads(rank, board, barrier) for rank in range(2)]
        first, second = pool.map(
            lambda rank: logits(checkpoint, variant, type(reference_linears)(), rank), ranks
        )
    assert torch.equal(first, second)
    assert (first - whole).abs().max() <= 1e-5 * whole.abs().max()
