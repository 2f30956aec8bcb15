"""Pages of every rank hold what one process holds, for the rank's heads."""

import queue
import threading

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from spearhead.errors import RankFailure
from spearhead.model.attention import Segment
from spearhead.model.checkpoint import open_checkpoint
from spearhead.model.engine import Advance, Advanced, FailureReason, SequenceEngine
from spearhead.model.kv_cache import PageEdit, PageTable
from spearhead.model.parallel.lockstep import LeadingDecoder, follow
from spearhead.model.parallel.work import Work

PROMPT = [(31 * i + 7) % 300 for i in range(40)]
numbers = st.integers(0, 2**31 - 1)
edits = st.builds(PageEdit, kind=st.sampled_from(["copy", "clear", "cut"]), page=numbers, to=numbers)
segments = st.builds(
    Segment, pages=st.lists(numbers, max_size=4), start=numbers, count=st.integers(1, 9)
)  # fmt: skip


@given(
    st.builds(
        Work,
        variant=st.sampled_from(["fp16", "w4", "w4+ec"]),
        edits=st.lists(edits, max_size=4),
        segments=st.lists(segments, max_size=4),
        token_ids=st.lists(numbers, max_size=9),
    )
)
def test_work_is_read_as_it_was_written(work):
    assert Work.decode(work.encode()) == work


def advance(key, tokens, committed=0, logits=1, epoch=0):
    return Advance(
        key=key, epoch=epoch, committed_length=committed, token_ids=tokens, logit_count=logits,
        max_compute_tokens=None, variant="fp16",
    )  # fmt: skip


def drive(decoder, weights):
    """Prompts, a prefix hit, truncation inside a shared page, numbers that are not finite; all logits."""
    engine = SequenceEngine(decoder, PageTable(16, 16), {"fp16": weights}, vocab_size=328, context_length=128)
    logits = []

    def step(*items):
        results = engine.advance(items)
        engine.check_integrity()
        logits.extend(result.rows for result in results if isinstance(result, Advanced))
        return results

    step(advance("a", PROMPT, logits=3), advance("b", PROMPT[5:20]))
    engine.keep("a", 38, publish=True)
    (hit,) = step(advance("c", PROMPT[:39]))
    assert isinstance(hit, Advanced)
    assert hit.cached_token_count == 32
    step(advance("c", [7, 8], committed=20))  # writes into a page that "a" shares: a copy is made first
    saved = weights.embedding[9].clone()
    weights.embedding[9] = float("nan")
    (broken,) = step(advance("b", [3, 9], committed=15))
    assert broken.reason is FailureReason.NON_FINITE
    weights.embedding[9] = saved
    step(advance("b", [3, 4], committed=15))
    engine.release("a")
    step(advance("d", PROMPT[::-1], logits=2))
    return torch.cat(logits), [layer.clone() for layer in decoder.storage.layers]


def test_every_page_and_every_logit_is_that_of_one_process(tiny_checkpoint, part_decoder, ranked):
    shape = {"hidden_size": 96, "num_attention_heads": 6, "num_key_value_heads": 3}
    checkpoint = open_checkpoint(str(tiny_checkpoint("llama", **shape)))
    (whole,) = ranked(1, lambda ranks: part_decoder(checkpoint, ranks, ("fp16",)))
    logits, layers = drive(whole.decoder, whole.weights["fp16"])
    channels = [queue.SimpleQueue() for _ in range(2)]

    def compute(ranks):
        part = part_decoder(checkpoint, ranks, ("fp16",))
        heads = part.shard.kv_heads
        if ranks.rank:
            pieces = iter(channels[ranks.rank].get, None)
            follow(part.decoder, part.weights, pieces)
            return heads, None, part.decoder.storage.layers
        leading = LeadingDecoder(part.decoder, tell=channels[1].put, lose=RankFailure)
        try:
            return heads, *drive(leading, part.weights["fp16"])
        finally:
            channels[1].put(None)

    results = ranked(2, compute)
    assert (results[0][1] - logits).abs().max() <= 1e-5 * logits.abs().max()
    for heads, _, own in results:
        for mine, all_heads in zip(own, layers, strict=True):
            expected = all_heads[:, :, heads.start : heads.stop]
            assert torch.allclose(mine, expected, rtol=1e-4, atol=1e-5)
            assert torch.equal(mine == 0, expected == 0)  # cleared slots, too


def test_a_step_that_breaks_on_the_leader_gives_the_ranks_up(tiny_checkpoint, part_decoder, ranked):
    checkpoint = open_checkpoint(str(tiny_checkpoint("llama")))
    (part,) = ranked(1, lambda ranks: part_decoder(checkpoint, ranks, ("fp16",)))
    told, lost = queue.SimpleQueue(), threading.Event()

    def lose(why):
        lost.set()
        return RankFailure(why)

    leading = LeadingDecoder(part.decoder, tell=told.put, lose=lose)
    beyond = Segment(pages=[99], start=0, count=1)
    with pytest.raises(RankFailure, match="a step of all ranks failed on rank 0"):
        leading.forward(part.weights["fp16"], [beyond], [1], [0])
    assert lost.is_set()
    assert told.get_nowait()
