"""Drafters propose what their model would say, and forget what was rejected."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from draft_service.config import DraftConfig, DrafterSettings
from draft_service.drafter import DraftItem
from draft_service.loading import kept_layers, load
from draft_service.ngram_drafter import NgramDrafter, find_continuation
from spearhead.errors import CheckpointError
from spearhead.model.engine import Failure, FailureReason
from spearhead.model.quantization import QuantizationScheme
from spearhead.model.sampling import SamplingParameters
from spearhead.model.settings import KvCacheSettings, ModelSettings
from spearhead.quant import quantize_checkpoint


def law(**changes):
    return SamplingParameters(
        temperature=changes.get("temperature", 0.8),
        seed=changes.get("seed", 3),
        bias_token_ids=np.empty(0, np.int64),
        bias_values=np.empty(0, np.float32),
        suppressed_token_ids=np.empty(0, np.int64),
    )


def item(tokens, committed=0, count=4, key="a", epoch=0, limit=None, **changes):
    return DraftItem(
        key=key,
        epoch=epoch,
        committed_length=committed,
        token_ids=list(tokens),
        max_draft_tokens=count,
        max_compute_tokens=limit,
        sampling=law(**changes) if count else None,
    )


@pytest.fixture
def load_drafter(tiny_checkpoint):
    def make(kind="model", pages=64, **overrides):
        config = DraftConfig(
            model=ModelSettings(path=str(tiny_checkpoint("llama", **overrides)), dtype="float32"),
            drafter=DrafterSettings(kind=kind),
            kv_cache=KvCacheSettings(page_count=pages),
        )
        return load(config)

    return make


def propose(drafter, *items):
    return drafter.propose(items)[0]


PROMPT = [(5 * i) % 300 for i in range(30)]


def test_drafts_are_what_the_model_samples_one_by_one(load_drafter):
    drafter = load_drafter().drafter
    (run,) = propose(drafter, item(PROMPT, count=6))
    tokens, singles = list(PROMPT), []
    for _ in range(6):
        (one,) = propose(drafter, item(tokens, count=1, key=("single", len(tokens))))
        singles += one.draft_token_ids
        tokens += one.draft_token_ids
    assert list(run.draft_token_ids) == singles
    assert all(0 < confidence <= 1 for confidence in run.confidences)


def test_committed_length_makes_a_retry_and_a_rejection_the_same_thing(load_drafter):
    drafter = load_drafter().drafter
    (first,) = propose(drafter, item(PROMPT, count=5))
    assert first.computed_length == len(PROMPT) + 4
    (again,) = propose(drafter, item(PROMPT[-1:], committed=len(PROMPT) - 1, count=5))
    assert again.draft_token_ids == first.draft_token_ids
    (after,) = propose(drafter, item([299], committed=len(PROMPT), count=5))
    (fresh,) = propose(drafter, item([*PROMPT, 299], count=5, key="fresh"))
    assert after.draft_token_ids == fresh.draft_token_ids


def test_a_batch_drafts_what_each_would_alone_with_lengths_of_their_own(load_drafter):
    drafter = load_drafter().drafter
    items = [item(PROMPT[i:], count=i, key=i, seed=i) for i in range(5)]
    together = propose(drafter, *items)
    for index, outcome in enumerate(together):
        assert len(outcome.draft_token_ids) == index
        (alone,) = propose(drafter, item(PROMPT[index:], count=index, key=("alone", index), seed=index))
        assert alone.draft_token_ids == outcome.draft_token_ids


def test_catching_up_in_chunks_drafts_only_at_the_end(load_drafter):
    drafter = load_drafter().drafter
    (part,) = propose(drafter, item(PROMPT, count=3, limit=10))
    assert (part.computed_length, part.draft_token_ids) == (10, ())
    (rest,) = propose(drafter, item(PROMPT[10:], committed=10, count=3))
    (whole,) = propose(drafter, item(PROMPT, count=3, key="whole"))
    assert rest.draft_token_ids == whole.draft_token_ids


def test_running_out_of_pages_shortens_the_draft_and_fails_nobody(load_drafter):
    drafter = load_drafter(pages=9).drafter
    outcomes = propose(drafter, item([1] * 60, count=8, key=1), item([2] * 60, count=8, key=2))
    assert not any(isinstance(outcome, Failure) for outcome in outcomes)
    assert all(1 <= len(outcome.draft_token_ids) <= 8 for outcome in outcomes)


def test_a_drafter_that_does_not_hold_the_sequence_says_so(load_drafter):
    for drafter in (load_drafter().drafter, load_drafter("ngram").drafter):
        (missed,) = propose(drafter, item([1], committed=9))
        assert missed.reason is FailureReason.CACHE_MISS


def test_drafts_stop_at_the_end_of_the_context(load_drafter):
    drafter = load_drafter().drafter
    (outcome,) = propose(drafter, item([1] * 254, count=8))
    assert len(outcome.draft_token_ids) == 3  # positions 254, 255 and the one after


def test_layer_skip_keeps_first_and_last_and_drafts(load_drafter):
    assert kept_layers(30, 0.5)[0] == 0
    assert kept_layers(30, 0.5)[-1] == 29
    assert len(kept_layers(30, 0.5)) == 15
    loaded = load_drafter("layer_skip", num_hidden_layers=6)
    assert loaded.model.engine.decoder.config.layer_count == 3
    (outcome,) = propose(loaded.drafter, item(PROMPT))
    assert len(outcome.draft_token_ids) == 4


def test_a_quantised_checkpoint_is_refused_as_draft(tiny_checkpoint, tmp_path):
    artefact = tmp_path / "w4"
    quantize_checkpoint(str(tiny_checkpoint("llama")), artefact, QuantizationScheme.parse("group32"))
    (tmp_path / "llama-1").rename(tmp_path / "moved")  # its full-precision source cannot be found
    with pytest.raises(CheckpointError, match="full precision"):
        load(DraftConfig(model=ModelSettings(path=str(artefact))))


def test_the_draft_runs_in_the_type_that_it_reports(load_drafter):
    loaded = load_drafter(dtype="bfloat16")
    assert loaded.info.weight_dtype == "bfloat16"
    assert loaded.info.dtype == "float32"
    assert loaded.model.engine.variants["fp16"].layers[0].qkv.weight.dtype is torch.float32


def test_ngram_proposes_what_followed_last_time():
    tokens = [1, 2, 3, 4, 9, 1, 2, 3]
    assert find_continuation(tokens, longest=3, shortest=1, count=3) == [4, 9, 1]
    assert find_continuation([1, 2, 3], longest=3, shortest=1, count=3) == []


@given(st.lists(st.integers(0, 3), max_size=60), st.integers(1, 6))
def test_ngram_never_proposes_more_than_asked_or_anything_not_in_the_sequence(tokens, count):
    drafts = find_continuation(tokens, longest=4, shortest=1, count=count)
    assert len(drafts) <= count
    assert set(drafts) <= set(tokens)


def test_ngram_follows_committed_length_and_epochs():
    drafter = NgramDrafter(longest=3, shortest=1, context_length=100, vocab_size=300)
    (outcome,) = propose(drafter, item([7, 8, 9, 7, 8]))
    assert outcome.draft_token_ids == (9, 7, 8)
    (cut,) = propose(drafter, item([7], committed=3))
    assert (cut.computed_length, cut.draft_token_ids) == (4, (8, 9, 7))
    assert propose(drafter, item([1], committed=4, epoch=1))[0].reason is FailureReason.CACHE_MISS
    propose(drafter, item([1, 2], epoch=1))
    assert propose(drafter, item([1], committed=1))[0].reason is FailureReason.STALE_EPOCH
    drafter.release(["a"])
    assert drafter.live_keys() == []
