import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from spearhead.errors import CalibrationError
from spearhead.model.weights import PlacedCompensator
from spearhead.quant.evaluation import (
    AcceptancePlan,
    AcceptanceSettings,
    EvaluatedModel,
    EvaluationText,
    Measurement,
    ReferenceTokens,
    TextProtocol,
    VariantTokens,
    compare,
    compensated_linear,
    cut_text,
    evaluate_variants,
    measure_text,
    score_text,
    text_from_sequences,
)
from spearhead.quant.evaluation.evaluate import check_self
from spearhead.quant.evaluation.presentation import columns, text_rows
from spearhead.quant.evaluation.scores import Spread
from spearhead.tokenizer import Tokenizer

Make = Callable[..., EvaluatedModel]


@pytest.fixture
def text(folder: Path) -> EvaluationText:
    words = "The rain falls on the hills while a fox verifies drafts. " * 40
    return cut_text("rain", words, Tokenizer.load(folder), TextProtocol(length=48, max_segments=6))


@pytest.fixture
def models(make_model: Make) -> list[EvaluatedModel]:
    """Full precision, 4 bits, and 4 bits with half of one layer's error given back."""
    full, w4 = make_model("fp16"), make_model("w4", quantised=True)
    placed = {}
    for name, weight in full.source.layer(1).items():
        if name.endswith("_proj.weight"):
            error = weight - w4.source.layer(1)[name]
            placed[f"model.layers.1.{name.removesuffix('.weight')}"] = PlacedCompensator(
                row_offset=0, row_count=len(error), a=torch.eye(error.shape[1]), b=error, gate=None
            )
    compensated = EvaluatedModel(
        name="w4+ec",
        source=w4.source,
        linear=compensated_linear(placed),
        quantization="w4 symmetric, group 32, absmax/7.5 + 7 compensators",
        served_bytes=1_000_000,
        baseline="w4",
    )
    return [full, w4, compensated]


def test_a_spread_leaves_out_what_is_not_scored() -> None:
    values = np.array([[1, 2, 3, 4], [np.nan, np.nan, np.nan, 10]], np.float32)
    found = Spread.of(values)
    assert (found.mean, found.median, found.maximum) == (4, 3, 10)
    assert found.p99 == pytest.approx(np.percentile([1, 2, 3, 4, 10], 99))


def test_acceptance_that_cannot_be_measured_is_refused_before_texts_are(
    make_model: Make, text: EvaluationText
) -> None:
    plan = AcceptancePlan(
        drafters=[], prompts=text.segments[:, :8], settings=AcceptanceSettings(), vocab_size=320
    )
    done: list[str] = []
    with pytest.raises(CalibrationError, match="layers of fp16 do not fit in memory"):
        evaluate_variants(
            make_model("fp16", streamed=True),
            [],
            [text],
            acceptance=plan,
            report=lambda label, *_: done.append(label),
        )
    assert not done


def test_two_texts_of_one_name_are_refused(models: list[EvaluatedModel], text: EvaluationText) -> None:
    with pytest.raises(CalibrationError, match="two texts are called rain; rename a file"):
        evaluate_variants(models[0], models[1:], [text, text])


def test_segments_beyond_the_context_are_refused(models: list[EvaluatedModel]) -> None:
    long = text_from_sequences("long", [[5] * 513])
    with pytest.raises(CalibrationError, match="513 tokens of text long exceed the context of fp16, 512 tok"):
        evaluate_variants(models[0], models[1:], [long])


def test_every_number_follows_from_the_tokens(models: list[EvaluatedModel], text: EvaluationText) -> None:
    measured = measure_text(models[0], models[1:], text)
    (scores,) = evaluate_variants(models[0], models[1:], [text]).texts
    full, w4, ec = scores.scores
    for score in (full, w4, ec):
        tokens = measured.variants[score.variant]
        assert score.perplexity.value == pytest.approx(np.exp(tokens.nll.mean(dtype=np.float64)))
        assert score.kl.mean == pytest.approx(score.kl_mean.value)
        assert score.agreement.value == pytest.approx(tokens.agrees.mean())
        assert sum(one.tokens for one in score.flips) == scores.scored_token_count
        flipped = sum(one.tokens * one.flipped for one in score.flips)
        assert flipped == pytest.approx((1 - tokens.agrees).sum())
    assert (full.kl.maximum, full.agreement.value) == (pytest.approx(0, abs=1e-6), 1)
    assert full.gap_closed_percent is None and w4.gap_closed_percent is None
    assert ec.kl_closed_percent is not None and 0 < ec.kl_closed_percent.value < 100
    assert ec.kl_closed_percent.value == pytest.approx(100 * (1 - ec.kl.mean / w4.kl.mean))


def invented(nll: dict[str, float], kl: float = 0.0) -> Measurement:
    """Two segments of two tokens, on which each variant has one perplexity and all have one KL."""
    text = text_from_sequences("invented", [[1, 2, 3], [4, 5, 6]])

    def tokens(value: float) -> VariantTokens:
        full, same = np.full((2, 2), value, np.float32), np.full((2, 2), kl, np.float32)
        return VariantTokens(
            nll=full, kl=same, reverse_kl=same, total_variation=same, agrees=np.ones((2, 2), np.float32)
        )

    return Measurement(
        text=text,
        reference=ReferenceTokens(nll=np.zeros((2, 2), np.float32), margin=np.ones((2, 2), np.float32)),
        variants={name: tokens(value) for name, value in nll.items()},
    )


def test_the_gap_closed_is_that_of_perplexities(models: list[EvaluatedModel]) -> None:
    found = score_text(invented({"fp16": np.log(20), "w4": np.log(60), "w4+ec": np.log(30)}), models)
    closed = found.scores[2].gap_closed_percent
    assert closed is not None and closed.value == pytest.approx(75, rel=1e-5)
    assert found.scores[2].kl_closed_percent is None  # there is no KL to close


def test_no_share_of_a_gap_is_told_that_four_bits_did_not_open(models: list[EvaluatedModel]) -> None:
    found = score_text(invented({"fp16": 3.0, "w4": 2.9, "w4+ec": 2.8}), models)
    assert found.scores[2].gap_closed_percent is None
    assert dict(zip(*text_rows(found)[::3], strict=True))["gap closed"] == "-"


def test_a_reference_that_differs_from_itself_is_an_error(models: list[EvaluatedModel]) -> None:
    check_self(score_text(invented({"fp16": 3.0}, kl=9e-7), models[:1]))
    with pytest.raises(CalibrationError, match="full precision differs from itself on invented: KL 2e-06"):
        check_self(score_text(invented({"fp16": 3.0}, kl=2e-6), models[:1]))


def test_flips_happen_where_the_margin_is_small(models: list[EvaluatedModel], text: EvaluationText) -> None:
    (scores,) = evaluate_variants(models[0], models[1:], [text]).texts
    flips = [one for one in scores.scores[1].flips if one.tokens]
    assert flips[0].flipped > flips[-1].flipped


def test_any_two_variants_can_be_compared(models: list[EvaluatedModel], text: EvaluationText) -> None:
    measured = measure_text(models[0], models[1:], text)
    forth, back = compare(measured, "w4+ec", "w4"), compare(measured, "w4", "w4+ec")
    assert forth.delta_kl.value == pytest.approx(-back.delta_kl.value)
    assert forth.delta_kl.high is not None and forth.delta_kl.high < 0
    assert forth.perplexity_ratio.value == pytest.approx(1 / back.perplexity_ratio.value)
    assert forth.perplexity_ratio.value == pytest.approx(np.exp(forth.delta_nll.value))


def test_a_percentage_stands_beside_what_it_hides(models: list[EvaluatedModel], text: EvaluationText) -> None:
    evaluation = evaluate_variants(models[0], models[1:], [text])
    head, _, _, row = text_rows(evaluation.texts[0])
    shown = dict(zip(head, row, strict=True))
    score = evaluation.texts[0].scores[2]
    assert shown["perplexity"] == f"{score.perplexity.value:.3f}"
    assert shown["KL mean"] == f"{score.kl.mean:.4f}"
    assert shown["quantiser"] == "w4 symmetric, group 32, absmax/7.5 + 7 compensators"
    assert shown["gap closed"] == "-" or shown["gap closed"].endswith("%")
    assert shown["MB"] == "1.0"


def test_columns_without_speculation_emit_one_token_a_step(
    models: list[EvaluatedModel], text: EvaluationText
) -> None:
    found = columns(evaluate_variants(models[0], models[1:], [text]))
    assert [column.name for column in found] == ["FP16", "W4", "W4+EC"]
    assert {column.tokens_per_step for column in found} == {1}


def test_an_evaluation_is_json(models: list[EvaluatedModel], text: EvaluationText) -> None:
    evaluation = evaluate_variants(models[0], models[1:], [text])
    document = json.loads(json.dumps(evaluation.as_json(), allow_nan=False))
    assert document["reference"] == "fp16" and document["dtype"] == "float32"
    (one,) = document["texts"]
    assert (one["length"], one["segment_count"], one["sha256"]) == (48, 6, text.sha256)
    assert [score["variant"] for score in one["scores"]] == ["fp16", "w4", "w4+ec"]


def test_a_baseline_that_is_not_evaluated_is_refused(
    models: list[EvaluatedModel], text: EvaluationText
) -> None:
    with pytest.raises(CalibrationError, match=r"w4\+ec is measured from w4, which is not evaluated"):
        evaluate_variants(models[0], models[2:], [text])


def test_progress_is_told_for_every_text(models: list[EvaluatedModel], text: EvaluationText) -> None:
    told: list[tuple[str, int, int]] = []
    evaluate_variants(models[0], [], [text], tokens_at_once=96, report=lambda *one: told.append(one))
    assert told == [("rain", done, 12) for done in (0, 2, 4, 6, 8, 10, 12)]
