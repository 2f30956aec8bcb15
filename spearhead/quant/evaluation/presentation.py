"""Rows of tables for people, and the columns that a speed benchmark has too; pure."""

from collections.abc import Sequence
from dataclasses import dataclass

from spearhead.quant.evaluation.acceptance import Acceptance, AcceptanceScore
from spearhead.quant.evaluation.bootstrap import Interval
from spearhead.quant.evaluation.evaluate import Evaluation
from spearhead.quant.evaluation.scores import TextScores, VariantScore

Rows = list[list[str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One way to serve: a verifier, alone or with speculation.

    Attributes:
        name: ``FP16``, ``FP16+spec``, ``W4``, ``W4+spec``, ``W4+EC+spec``; the quality half of the columns
            whose speed a benchmark measures.
        perplexity: On the first text.
        kl: Mean KL(full precision‖variant) on the first text, nats a token.
        agreement: Share of tokens with full precision's best token, first text.
        tokens_per_step: Tokens a verification step emits: 1 without speculation.
        draft_acceptance: Accepted drafts over drafts sent; ``None`` without speculation.
    """

    name: str
    perplexity: float
    kl: float
    agreement: float
    tokens_per_step: float
    draft_acceptance: float | None


def text_rows(text: TextScores) -> Rows:
    """Every model on one text, with all that a percentage would hide beside it."""
    head = [
        "model",
        "MB",
        "perplexity",
        "95%",
        "of full",
        "gap closed",
        "KL mean",
        "median",
        "p99",
        "p99.9",
        "max",
    ]
    head += ["KL reverse", "TV", "top-1", "quantiser"]
    return [head, *(_text_row(score) for score in text.scores)]


def protocol_line(text: TextScores) -> str:
    """What makes the numbers of a text comparable."""
    return (
        f"{text.text}: {text.segment_count} segments of {text.length} tokens, stride {text.stride}, "
        f"{text.scored_token_count} of {text.token_count} tokens scored, beginning token: {text.bos}, first "
        f"ids {list(text.first_token_ids)}, sha256 {text.sha256[:16]}"
    )


def acceptance_rows(acceptance: Acceptance) -> Rows:
    """Every drafter with every verifier."""
    head = ["drafter", "verifier", "tokens a step", "95%", "of full", "95%", "drafts accepted"]
    head += ["on shared context", "difference", "bound", "holds"]
    return [head, *map(_acceptance_row, acceptance.scores)]


def greedy_rows(acceptance: Acceptance) -> Rows:
    """How long each variant says the same as full precision at temperature 0."""
    head = ["verifier", "equal tokens (mean)", "95%", "median", "never apart", "of"]
    return [
        head,
        *(
            [
                match.variant,
                f"{match.tokens.value:.1f}",
                _range(match.tokens, ".1f"),
                f"{match.median_tokens:.0f}",
                f"{match.identical:.0%}",
                str(match.limit),
            ]
            for match in acceptance.greedy
        ),
    ]


def columns(evaluation: Evaluation) -> list[Column]:
    """The ways to serve, with the first drafter; what has compensators comes with speculation only."""
    if not evaluation.texts:
        return []
    found: list[Column] = []
    for score in evaluation.texts[0].scores:
        name = score.variant.upper()
        if score.against_baseline is None:
            found.append(_column(name, score, None))
        spec = _first(evaluation.acceptance, score.variant)
        if spec is not None or score.against_baseline is not None:
            found.append(_column(f"{name}+spec" if spec else name, score, spec))
    return found


def column_rows(found: Sequence[Column]) -> Rows:
    """The columns as a table."""
    return [
        ["", *(column.name for column in found)],
        ["perplexity", *(f"{column.perplexity:.3f}" for column in found)],
        ["KL to full precision", *(f"{column.kl:.4f}" for column in found)],
        ["top-1 agreement", *(f"{column.agreement:.2%}" for column in found)],
        ["tokens a step", *(f"{column.tokens_per_step:.2f}" for column in found)],
        ["drafts accepted", *(_share(column.draft_acceptance) for column in found)],
    ]


def _column(name: str, score: VariantScore, spec: AcceptanceScore | None) -> Column:
    return Column(
        name=name,
        perplexity=score.perplexity.value,
        kl=score.kl.mean,
        agreement=score.agreement.value,
        tokens_per_step=1.0 if spec is None else spec.acceptance_length.value,
        draft_acceptance=None if spec is None else spec.draft_acceptance,
    )


def _first(acceptance: Acceptance | None, variant: str) -> AcceptanceScore | None:
    if acceptance is None:
        return None
    return next((score for score in acceptance.scores if score.variant == variant), None)


def _text_row(score: VariantScore) -> list[str]:
    closed = score.gap_closed_percent
    return [
        score.variant,
        f"{score.served_bytes / 1e6:.1f}" if score.served_bytes else "?",
        f"{score.perplexity.value:.3f}",
        _range(score.perplexity, ".2f"),
        f"{score.against_reference.perplexity_ratio.value:.3f}x",
        "-" if closed is None else f"{closed.value:.1f}%",
        *(
            f"{value:.4f}"
            for value in (score.kl.mean, score.kl.median, score.kl.p99, score.kl.p999, score.kl.maximum)
        ),
        f"{score.reverse_kl.mean:.4f}",
        f"{score.total_variation.mean:.4f}",
        f"{score.agreement.value:.2%}",
        score.quantization or "?",
    ]


def _acceptance_row(score: AcceptanceScore) -> list[str]:
    shared = score.shared
    checked = ["-"] * 4
    if shared is not None:
        checked = [
            f"{shared.acceptance:.1%}",
            f"{100 * (shared.acceptance - shared.reference_acceptance):+.1f}",
            f"{100 * shared.bound:.1f}+-{100 * shared.sampling_error:.1f}",
            "yes" if shared.within_bound else "NO",
        ]
    return [
        score.drafter,
        score.variant,
        f"{score.acceptance_length.value:.3f}",
        _range(score.acceptance_length, ".2f"),
        f"{score.length_ratio.value:.3f}",
        _range(score.length_ratio, ".3f"),
        _share(score.draft_acceptance),
        *checked,
    ]


def _range(interval: Interval, form: str) -> str:
    if interval.low is None or interval.high is None:
        return "-"
    return f"{interval.low:{form}}..{interval.high:{form}}"


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"
