"""Sequences over a decoder: committed length, epochs, isolation of failures, batch invariance."""

import numpy as np
import pytest

from spearhead.model.engine import Advance, Advanced, Failure, FailureReason


def advance(key="a", committed=0, tokens=(1, 2, 3), logits=1, epoch=0, limit=None, variant="fp16"):
    return Advance(
        key=key,
        epoch=epoch,
        committed_length=committed,
        token_ids=list(tokens),
        logit_count=logits,
        max_compute_tokens=limit,
        variant=variant,
    )


def only(engine, item):
    (outcome,) = engine.advance([item])
    return outcome


def test_a_repeated_step_returns_the_same_bits(tiny_engine):
    engine = tiny_engine()
    only(engine, advance(tokens=range(40)))
    first = only(engine, advance(committed=40, tokens=[7, 8, 9], logits=3))
    again = only(engine, advance(committed=40, tokens=[7, 8, 9], logits=3))
    np.testing.assert_array_equal(first.logits, again.logits)


def test_truncating_forgets_rejected_tokens(tiny_engine):
    engine = tiny_engine()
    only(engine, advance(tokens=range(20)))
    clean = only(engine, advance(committed=20, tokens=[5])).logits.copy()
    only(engine, advance(committed=20, tokens=[9, 9, 9, 9]))
    np.testing.assert_array_equal(only(engine, advance(committed=20, tokens=[5])).logits, clean)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3", "mistral"])
def test_a_rows_logits_do_not_depend_on_chunks_or_neighbours(tiny_engine, architecture, dtype):
    engine = tiny_engine(architecture, dtype=dtype)
    prompt = [(7 * i) % 300 for i in range(50)]
    whole = only(engine, advance(key="whole", tokens=prompt, logits=5)).logits
    for cut in (1, 16, 33, 45):
        only(engine, advance(key=cut, tokens=prompt[:cut], logits=0))
        others = [advance(key=("n", cut, i), tokens=[i + 1] * (i * 5 + 1)) for i in range(4)]
        outcomes = engine.advance(
            [*others[:2], advance(key=cut, committed=cut, tokens=prompt[cut:], logits=5), *others[2:]]
        )
        np.testing.assert_array_equal(outcomes[2].logits, whole)


def test_a_cached_prefix_changes_no_bit(tiny_engine):
    engine = tiny_engine()
    prompt = list(range(60))
    first = only(engine, advance(tokens=prompt))
    engine.keep("a", 60, publish=True)
    second = only(engine, advance(key="b", tokens=prompt))
    assert second.cached_token_count == 48
    np.testing.assert_array_equal(first.logits, second.logits)


def test_a_bound_on_computed_tokens_stops_short_without_logits(tiny_engine):
    engine = tiny_engine()
    outcome = only(engine, advance(tokens=range(40), limit=24))
    assert (outcome.computed_length, len(outcome.logits)) == (24, 0)
    rest = only(engine, advance(committed=24, tokens=range(24, 40)))
    whole = only(engine, advance(key="b", tokens=range(40)))
    np.testing.assert_array_equal(rest.logits, whole.logits)


@pytest.mark.parametrize(
    ("item", "reason"),
    [
        (advance(key="new", committed=5), FailureReason.CACHE_MISS),
        (advance(epoch=1, committed=12), FailureReason.CACHE_MISS),
        (advance(epoch=0, committed=3), FailureReason.STALE_EPOCH),
        (advance(epoch=1, tokens=()), FailureReason.INVALID),
        (advance(epoch=1, limit=0), FailureReason.INVALID),
        (advance(epoch=1, tokens=[10**6]), FailureReason.INVALID),
        (advance(epoch=1, tokens=[1] * 300), FailureReason.INVALID),
        (advance(epoch=1, variant="w4"), FailureReason.PRECISION_UNAVAILABLE),
    ],
)
def test_a_bad_item_fails_alone(tiny_engine, item, reason):
    engine = tiny_engine()
    only(engine, advance(epoch=1, tokens=range(10)))
    before = only(engine, advance(epoch=1, committed=10, tokens=[3])).logits.copy()
    good, bad = engine.advance([advance(key="other", tokens=range(12)), item])
    assert isinstance(good, Advanced)
    assert isinstance(bad, Failure)
    assert bad.reason is reason
    np.testing.assert_array_equal(only(engine, advance(epoch=1, committed=10, tokens=[3])).logits, before)
    engine.check_integrity()


def test_out_of_pages_fails_the_item_and_loses_no_page(tiny_engine):
    engine = tiny_engine(pages=9)
    outcomes = engine.advance([advance(key=i, tokens=range(64)) for i in range(3)])
    assert [isinstance(outcome, Failure) for outcome in outcomes] == [False, False, True]
    assert outcomes[2].reason is FailureReason.OUT_OF_PAGES
    engine.check_integrity()
    engine.release(0)
    assert isinstance(only(engine, advance(key=2, tokens=range(64))), Advanced)


def test_a_newer_epoch_starts_over(tiny_engine):
    engine = tiny_engine()
    only(engine, advance(tokens=range(30)))
    assert only(engine, advance(epoch=1, committed=30, tokens=[1])).reason is FailureReason.CACHE_MISS
    assert isinstance(only(engine, advance(epoch=1, tokens=range(30))), Advanced)


def test_another_variant_never_uses_kept_kv(tiny_engine):
    engine = tiny_engine(variants=("fp16", "w4"))
    only(engine, advance(tokens=range(30)))
    engine.keep("a", 30, publish=True)
    missed = only(engine, advance(committed=30, tokens=[1], variant="w4"))
    assert missed.reason is FailureReason.CACHE_MISS
    assert only(engine, advance(tokens=range(30), variant="w4")).cached_token_count == 0


def test_releasing_everything_frees_every_page(tiny_engine):
    engine = tiny_engine()
    engine.advance([advance(key=i, tokens=range(20 + i)) for i in range(5)])
    engine.release_where(engine.live_keys())
    assert engine.pages.free_page_count == engine.pages.page_count
    engine.check_integrity()


def test_a_repeat_with_more_logits_than_the_cache_leaves_is_computed_again(tiny_engine):
    engine = tiny_engine()
    first = only(engine, advance(tokens=range(33), logits=17))
    engine.keep("a", 33, publish=True)
    again = only(engine, advance(key="b", tokens=range(33), logits=17))
    assert again.cached_token_count == 16
    np.testing.assert_array_equal(first.logits, again.logits)


def test_two_items_of_one_sequence_are_refused(tiny_engine):
    engine = tiny_engine()
    good, bad = engine.advance([advance(tokens=range(5)), advance(tokens=range(5))])
    assert isinstance(good, Advanced)
    assert bad.reason is FailureReason.INVALID


def test_numbers_that_are_not_finite_stay_with_their_sequence(tiny_engine):
    engine = tiny_engine(pages=9)
    healthy = only(engine, advance(key="healthy", tokens=range(20))).logits.copy()
    engine.release("healthy")
    embedding = engine.variants["fp16"].embedding
    saved = embedding[7].clone()
    embedding[7] = float("nan")
    sick, neighbour = engine.advance(
        [advance(key="sick", tokens=[7] * 40), advance(key="neighbour", tokens=range(100, 120))]
    )
    embedding[7] = saved
    assert sick.reason is FailureReason.NON_FINITE
    assert isinstance(neighbour, Advanced)
    engine.release("neighbour")
    engine.release("sick")
    for attempt in range(4):  # the pool is small: these use every page that was poisoned
        again = only(engine, advance(key=attempt, tokens=range(20)))
        np.testing.assert_array_equal(again.logits, healthy)
    engine.check_integrity()


def test_a_sequence_goes_on_after_a_part_that_was_not_finite(tiny_engine):
    engine = tiny_engine()
    only(engine, advance(tokens=range(20)))
    expected = only(engine, advance(committed=20, tokens=[9])).logits.copy()
    embedding = engine.variants["fp16"].embedding
    saved = embedding[7].clone()
    embedding[7] = float("inf")
    assert only(engine, advance(committed=20, tokens=[7, 7, 7], logits=0)).reason is FailureReason.NON_FINITE
    embedding[7] = saved
    np.testing.assert_array_equal(only(engine, advance(committed=20, tokens=[9])).logits, expected)


@pytest.mark.parametrize("dtype", ["float16"])
def test_half_precision_is_computed_too(tiny_engine, dtype):
    engine = tiny_engine(dtype=dtype)
    outcome = only(engine, advance(tokens=range(40), logits=3))
    assert np.isfinite(outcome.logits).all()
