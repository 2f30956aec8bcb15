from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from draft_service.config import DraftConfig
from draft_service.drafter import DraftItem, Proposal
from draft_service.loading import load as load_drafter
from draft_service.ngram_drafter import find_continuation
from spearhead.errors import CalibrationError
from spearhead.model.settings import KvCacheSettings, ModelSettings
from spearhead.quant.evaluation import (
    Acceptance,
    AcceptanceScore,
    AcceptanceSettings,
    EvaluatedModel,
    LookupDrafter,
    ModelDrafter,
    Replay,
    measure_acceptance,
)
from spearhead.quant.evaluation.sampling_law import SamplingLaw, continue_prompts, picks_along
from spearhead.tokenizer import Tokenizer
from verify_service.config import VariantSettings, VerifyConfig
from verify_service.loading import load as load_verifier
from verify_service.verifier import Verified, Verifier, VerifyItem

Make = Callable[..., EvaluatedModel]
PROMPTS = torch.tensor([[5, 17, 40, 41, 42], [7, 8, 9, 7, 8], [100, 3, 77, 15, 60]])
COUNT, DRAFTS, SEED = 24, 4, 11


@pytest.fixture
def vocab_size(folder: Path) -> int:
    return Tokenizer.load(folder).vocab_size


def settings(temperature: float = 1.0) -> AcceptanceSettings:
    return AcceptanceSettings(
        draft_tokens=DRAFTS, temperature=temperature, seed=SEED, output_tokens=COUNT, tokens_at_once=64
    )


def look_up(tokens: list[int], count: int) -> list[int]:
    return find_continuation(tokens, longest=4, shortest=1, count=count)


def measured(make_model: Make, vocab_size: int, temperature: float = 1.0) -> Acceptance:
    reference, w4 = make_model("fp16"), make_model("w4", quantised=True)
    drafters = [
        ModelDrafter(name="self", model=reference, tokens_at_once=64),
        LookupDrafter(name="ngram", lookup=look_up),
    ]
    return measure_acceptance(
        reference, [w4], drafters, PROMPTS, settings(temperature), vocab_size=vocab_size
    )


def score(acceptance: Acceptance, drafter: str, variant: str) -> AcceptanceScore:
    (found,) = (s for s in acceptance.scores if (s.drafter, s.variant) == (drafter, variant))
    return found


@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.0])
def test_every_draft_is_accepted_when_drafter_and_verifier_are_one(
    make_model: Make, vocab_size: int, temperature: float
) -> None:
    found = score(measured(make_model, vocab_size, temperature), "self", "fp16")
    assert found.draft_acceptance == 1
    # Rounds of DRAFTS + 1 tokens, the last one shorter.
    assert found.acceptance_length.value == pytest.approx(COUNT / -(-COUNT // (DRAFTS + 1)))
    assert found.length_ratio.value == 1


def test_quantised_verification_loses_drafts_within_the_bound(make_model: Make, vocab_size: int) -> None:
    acceptance = measured(make_model, vocab_size)
    w4 = score(acceptance, "self", "w4")
    assert w4.shared is not None and w4.shared.within_bound
    assert w4.shared.reference_acceptance == 1 > w4.shared.acceptance
    assert 0 < w4.shared.total_variation < w4.shared.bound < 1
    assert w4.length_ratio.value < 1
    assert w4.length_ratio.high is not None and w4.length_ratio.value <= w4.length_ratio.high


def test_the_greedy_match_ends_at_the_first_divergence(make_model: Make, vocab_size: int) -> None:
    reference, w4 = make_model("fp16"), make_model("w4", quantised=True)
    greedy = SamplingLaw(temperature=0, seed=0, vocab_size=vocab_size)
    one, other = (continue_prompts(m, PROMPTS, COUNT, greedy)[:, PROMPTS.shape[1] :] for m in (reference, w4))
    lengths = [(row.cumprod(0)).sum().item() for row in (one == other).long()]
    (found,) = measured(make_model, vocab_size).greedy
    assert found.tokens.value == pytest.approx(sum(lengths) / len(lengths))
    assert found.limit == COUNT and found.identical == sum(n == COUNT for n in lengths) / len(lengths)


def test_what_is_written_is_what_is_picked_along_it(make_model: Make, vocab_size: int) -> None:
    model, law = make_model("w4", quantised=True), SamplingLaw(temperature=1, seed=3, vocab_size=vocab_size)
    written = continue_prompts(model, PROMPTS, COUNT, law)
    picks = picks_along(model, written, PROMPTS.shape[1], law, tokens_at_once=29)
    assert torch.equal(picks, written[:, PROMPTS.shape[1] :])
    assert int(picks.max()) < vocab_size


def test_a_prompt_is_continued_alike_whatever_is_beside_it_but_with_the_seed_of_its_row(
    make_model: Make, vocab_size: int
) -> None:
    model, law = make_model("fp16"), SamplingLaw(temperature=1, seed=3, vocab_size=vocab_size)
    together = continue_prompts(model, PROMPTS, COUNT, law)
    alone = continue_prompts(model, PROMPTS[1:2], COUNT, replace(law, seed=4))
    assert torch.equal(together[1:2], alone)


def test_streamed_layers_and_long_prompts_are_refused(make_model: Make, vocab_size: int) -> None:
    streamed = make_model("fp16", streamed=True)
    with pytest.raises(CalibrationError, match="layers of fp16 do not fit in memory"):
        measure_acceptance(streamed, [], [], PROMPTS, settings(), vocab_size=vocab_size)
    long = replace(settings(), output_tokens=600)
    with pytest.raises(CalibrationError, match="exceed the context of fp16, 512 tokens"):
        measure_acceptance(make_model("fp16"), [], [], PROMPTS, long, vocab_size=vocab_size)


class Served:
    """The real draft and verify engines, in rounds, as the scheduler runs them."""

    def __init__(self, folder: Path, variant: str, drafter: str) -> None:
        model = ModelSettings(path=str(folder), dtype="float32")
        cache = KvCacheSettings(page_count=128)
        loaded, _ = load_verifier(
            VerifyConfig(model=model, kv_cache=cache, variants=VariantSettings(quantization="group32"))
        )
        self.verifier = Verifier(loaded.engine, variant)
        kind = DraftConfig(model=model, kv_cache=cache).drafter
        kind = replace(kind, kind="ngram" if drafter == "ngram" else "model", ngram_shortest=1)
        self.drafter = load_drafter(DraftConfig(model=model, kv_cache=cache, drafter=kind)).drafter

    def generate(self, row: int, prompt: list[int], temperature: float) -> tuple[list[int], Replay]:
        law = SamplingLaw(temperature=temperature, seed=SEED, vocab_size=1).parameters(row)
        tokens, computed, drafted_for = list(prompt), 0, 0
        rounds = drafted = accepted = 0
        while len(tokens) - len(prompt) < COUNT:
            room = min(DRAFTS, COUNT - (len(tokens) - len(prompt)) - 1)
            (proposal,), _ = self.drafter.propose(
                [
                    DraftItem(
                        key=row,
                        epoch=0,
                        committed_length=drafted_for,
                        token_ids=tokens[drafted_for:],
                        max_draft_tokens=room,
                        max_compute_tokens=None,
                        sampling=law,
                    )
                ]
            )
            assert isinstance(proposal, Proposal)
            drafts = list(proposal.draft_token_ids)
            item = VerifyItem(
                key=row,
                epoch=0,
                committed_length=computed,
                token_ids=tokens[computed:] + drafts,
                draft_count=len(drafts),
                max_compute_tokens=None,
                sampling=law,
                full_precision=False,
                logprob_count=None,
            )
            (outcome,) = self.verifier.step([item]).outcomes
            assert isinstance(outcome, Verified)
            # The drafter holds the committed tokens up to its own last draft that was accepted.
            drafted_for = min(len(tokens) + outcome.accepted_count, proposal.computed_length)
            computed = outcome.computed_length
            tokens += outcome.emitted
            rounds, drafted = rounds + 1, drafted + len(drafts)
            accepted += outcome.accepted_count
        return tokens, Replay(tokens=COUNT, rounds=rounds, drafted=drafted, accepted=accepted)


@pytest.mark.parametrize("drafter", ["self", "ngram"])
@pytest.mark.parametrize("variant", ["fp16", "w4"])
def test_acceptance_is_what_the_real_engines_give(
    folder: Path, make_model: Make, vocab_size: int, variant: str, drafter: str
) -> None:
    served = Served(folder, variant, drafter)
    parts = [served.generate(row, prompt, 1.0)[1] for row, prompt in enumerate(PROMPTS.tolist())]
    found = score(measured(make_model, vocab_size), drafter, variant)
    assert found.totals == Replay(
        tokens=sum(part.tokens for part in parts),
        rounds=sum(part.rounds for part in parts),
        drafted=sum(part.drafted for part in parts),
        accepted=sum(part.accepted for part in parts),
    )


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_what_is_written_is_what_the_real_verifier_emits(
    folder: Path, make_model: Make, vocab_size: int, temperature: float
) -> None:
    served = Served(folder, "w4", "ngram")
    law = SamplingLaw(temperature=temperature, seed=SEED, vocab_size=vocab_size)
    written = continue_prompts(make_model("w4", quantised=True), PROMPTS, COUNT, law)
    for row, prompt in enumerate(PROMPTS.tolist()):
        assert served.generate(row, prompt, temperature)[0] == written[row].tolist()
