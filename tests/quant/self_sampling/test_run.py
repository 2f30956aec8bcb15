from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from scipy import stats

from spearhead.errors import CalibrationError
from spearhead.model.checkpoint import open_checkpoint
from spearhead.quant.layers import ResidentLayers, StreamedLayers, final_hidden
from spearhead.quant.self_sampling import (
    SampledSequences,
    SamplingTokens,
    SelfSamplingConfig,
    repeated_shares,
    self_sample,
)

TOKENS = SamplingTokens(
    vocab_size=40,
    bos_token_id=1,
    eos_token_ids=(2,),
    control_token_ids=(0, 1, 2),
    chat_prefix_ids=(1, 5),
    chat_middle_ids=(2, 6),
)
CONFIG = SelfSamplingConfig(sequence_count=10, length=24, seed=3, batch_size=4, chat_fraction=0.25)


@pytest.fixture
def streamed(tiny_checkpoint: Callable[..., Path]) -> StreamedLayers:
    checkpoint = open_checkpoint(str(tiny_checkpoint("llama")))
    return StreamedLayers(checkpoint, dtype=torch.float32, device=torch.device("cpu"))


@pytest.fixture
def source(streamed: StreamedLayers) -> ResidentLayers:
    return ResidentLayers(streamed)


def sample(source: ResidentLayers | StreamedLayers, config: Any = CONFIG, **options: Any) -> SampledSequences:
    return self_sample(source, config, options.pop("tokens", TOKENS), revision="r", **options)


def test_the_same_seed_gives_the_same_sequences_resident_or_streamed(
    source: ResidentLayers, streamed: StreamedLayers
) -> None:
    first, second = sample(source), sample(streamed)
    assert torch.equal(first.token_ids, second.token_ids)
    assert torch.equal(first.document_starts, second.document_starts)
    assert not torch.equal(first.token_ids, sample(source, replace(CONFIG, seed=4)).token_ids)


def test_an_interrupted_run_ends_with_what_an_undisturbed_one_gives(
    source: ResidentLayers, tmp_path: Path
) -> None:
    calls = 0

    def interrupt(done: int, total: int) -> None:
        nonlocal calls
        calls += 1
        if calls == 2 * CONFIG.length - 3:  # within the second batch
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sample(source, work=tmp_path / "work", progress=interrupt)
    assert [path.name for path in (tmp_path / "work").iterdir()] == ["batch-00000.safetensors"]
    before = calls
    resumed = sample(source, work=tmp_path / "work", progress=interrupt)
    assert calls - before == 2 * CONFIG.length  # the first batch was not drawn again
    assert torch.equal(resumed.token_ids, sample(source).token_ids)


def test_the_batches_of_another_run_are_refused(source: ResidentLayers, tmp_path: Path) -> None:
    sample(source, work=tmp_path / "work")
    with pytest.raises(CalibrationError, match="seed is 3, wanted 4"):
        sample(source, replace(CONFIG, seed=4), work=tmp_path / "work")


def test_progress_ends_at_the_number_of_tokens(source: ResidentLayers) -> None:
    seen: list[tuple[int, int]] = []
    sample(source, progress=lambda done, total: seen.append((done, total)))
    assert seen == sorted(seen)
    assert seen[-1] == (240, 240)


def test_no_id_beyond_the_vocabulary_is_drawn(source: ResidentLayers) -> None:
    drawn = sample(source, replace(CONFIG, sequence_count=64, batch_size=64, chat_fraction=0.0))
    assert source.config.vocab_size > 40
    assert int(drawn.token_ids.max()) < 40
    assert len(drawn.token_ids.unique()) > 30


def test_drawn_tokens_follow_the_models_softmax(source: ResidentLayers) -> None:
    # False alarm: once in 10⁶ seeds; the seed is fixed.
    count, temperature = 20_000, 1.3
    config = SelfSamplingConfig(
        sequence_count=count, length=2, batch_size=count, start="bos", temperature=temperature, seed=1
    )
    drawn = sample(source, config).token_ids[:, 1]
    logits = (final_hidden(source, torch.tensor([[1]]))[0, 0] @ source.head[:40].T).double()
    expected = (logits / temperature).softmax(-1) * count
    common = expected >= 10
    seen = torch.bincount(drawn, minlength=40).double()
    pooled = [torch.cat([x[common], x[~common].sum()[None]]).numpy() for x in (seen, expected)]
    assert stats.chisquare(*pooled).pvalue > 1e-6


def test_later_tokens_are_drawn_given_the_ones_before(source: ResidentLayers) -> None:
    # At temperature 1e-4 the law is the arg max, which whole-sequence logits must reproduce.
    config = SelfSamplingConfig(
        sequence_count=6, length=20, start="vocabulary", temperature=1e-4, max_repeated_share=1.0
    )
    rows = sample(source, config, tokens=SamplingTokens(vocab_size=40, bos_token_id=None)).token_ids.long()
    greedy = (final_hidden(source, rows) @ source.head[:40].T).argmax(-1)
    assert torch.equal(rows[:, 1:], greedy[:, :-1])


@pytest.fixture
def parrot(streamed: StreamedLayers) -> ResidentLayers:
    """Each token makes itself the likeliest next one."""
    source = ResidentLayers(streamed)
    for index in range(source.config.layer_count):
        for name in ("self_attn.o_proj.weight", "mlp.down_proj.weight"):
            cast(dict[str, torch.Tensor], source.layer(index))[name].zero_()
    source.final_norm = torch.ones_like(source.final_norm)
    source.head = source.embedding
    return source


def test_sequences_that_repeat_themselves_are_replaced(parrot: ResidentLayers) -> None:
    lax = SelfSamplingConfig(
        sequence_count=40, length=64, start="vocabulary", temperature=1.6, max_repeated_share=1.0
    )
    unchecked = sample(parrot, lax)
    limit = sorted(repeated_shares(unchecked.token_ids))[20]
    drawn = sample(parrot, replace(lax, max_repeated_share=limit))
    assert unchecked.rejected == 0 < drawn.rejected
    assert len(drawn.token_ids) == 40
    assert max(repeated_shares(drawn.token_ids)) <= limit < max(repeated_shares(unchecked.token_ids))


def test_a_model_that_only_repeats_itself_is_an_error(parrot: ResidentLayers) -> None:
    config = SelfSamplingConfig(sequence_count=80, length=64, temperature=1e-3, batch_size=80)
    with pytest.raises(CalibrationError, match="80 of 80 sampled sequences repeat themselves"):
        sample(parrot, config, tokens=SamplingTokens(vocab_size=40, bos_token_id=1))


def test_what_cannot_fit_is_refused_before_work_starts(source: ResidentLayers) -> None:
    with pytest.raises(CalibrationError, match="of 300 tokens exceed the model's context of 256"):
        sample(source, replace(CONFIG, length=300))
    with pytest.raises(CalibrationError, match="tokenizer has 4000 ids"):
        sample(source, tokens=SamplingTokens(vocab_size=4000, bos_token_id=None))


def test_an_overflowing_model_is_an_error(streamed: StreamedLayers) -> None:
    source = ResidentLayers(streamed)
    source.embedding = source.embedding.clone()
    source.embedding[7] = float("inf")
    config = SelfSamplingConfig(sequence_count=64, length=16, start="vocabulary", batch_size=64)
    with pytest.raises(CalibrationError, match="final hidden state holds NaN or infinity in float32"):
        sample(source, config)
