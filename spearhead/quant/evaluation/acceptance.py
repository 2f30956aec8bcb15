"""What quantised verification does to speculation: accepted drafts, tokens a step, first divergence.

Speculation itself adds no drift: what is emitted is what the verifier would have said alone. What changes is
how often a drafter agrees with it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from spearhead.errors import CalibrationError
from spearhead.quant.evaluation.bootstrap import Interval, PairedBootstrap
from spearhead.quant.evaluation.drafters import Drafter, Replay, matching, replay
from spearhead.quant.evaluation.model_variant import EvaluatedModel
from spearhead.quant.evaluation.sampling_law import SamplingLaw, continue_prompts
from spearhead.quant.evaluation.shared_context import SharedContext, SharedPicks


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceptanceSettings:
    """How acceptance is measured.

    Attributes:
        draft_tokens: Most drafts a round.
        temperature: 0 = greedy.
        seed: Of the noise of the first prompt; each further one has the next.
        output_tokens: Tokens that every model writes after each prompt.
        tokens_at_once: Tokens that pass through a layer together.
    """

    draft_tokens: int = 5
    temperature: float = 1.0
    seed: int = 0
    output_tokens: int = 128
    tokens_at_once: int = 2048


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceptanceScore:
    """One drafter for one verifier, along the verifier's own output.

    Attributes:
        drafter: Its name.
        variant: The verifier.
        acceptance_length: Tokens emitted a verification step; at least 1, at most drafts + 1.
        length_ratio: Over that of full precision with the same drafter, paired over prompts.
        draft_acceptance: Accepted drafts over drafts sent; ``None`` when none was sent.
        totals: All rounds together.
        shared: The check on shared contexts; ``None`` for full precision itself.
    """

    drafter: str
    variant: str
    acceptance_length: Interval
    length_ratio: Interval
    draft_acceptance: float | None
    totals: Replay
    shared: SharedContext | None


@dataclass(frozen=True, slots=True, kw_only=True)
class GreedyMatch:
    """How long a variant says the same as full precision at temperature 0.

    Attributes:
        variant: The variant.
        tokens: Mean number of equal tokens before the first divergence.
        median_tokens: Likewise.
        identical: Share of prompts without a divergence.
        limit: Tokens that were written.
    """

    variant: str
    tokens: Interval
    median_tokens: float
    identical: float
    limit: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Acceptance:
    """All drafters and variants on one set of prompts.

    Attributes:
        settings: How it was measured.
        prompt_count: Prompts.
        prompt_tokens: Tokens of each.
        scores: One a drafter and model, full precision first.
        greedy: One a variant.
    """

    settings: AcceptanceSettings
    prompt_count: int
    prompt_tokens: int
    scores: tuple[AcceptanceScore, ...]
    greedy: tuple[GreedyMatch, ...]


def measure_acceptance(
    reference: EvaluatedModel,
    variants: Sequence[EvaluatedModel],
    drafters: Sequence[Drafter],
    prompts: Tensor,
    settings: AcceptanceSettings,
    *,
    vocab_size: int,
    draws: int = 2000,
    progress: Callable[[int, int], None] | None = None,
) -> Acceptance:
    """Lets every model write on from the prompts, and replays the drafters along what it wrote.

    Args:
        reference: Full precision.
        variants: The other verifiers.
        drafters: Each is paired with each verifier.
        prompts: int64 ``(P, N)``.
        settings: How.
        vocab_size: Of the tokenizer; the embedding's padding is never picked.
        draws: Resamples of the bootstrap over prompts.
        progress: Called at the start and after each token of all prompts, with how many there are so far.

    Raises:
        CalibrationError: Layers that are not in memory, prompts beyond the context, logits not finite.
    """
    models = [reference, *variants]
    check_acceptance(models, prompts, settings)
    tick = _ticker(progress, 2 * len(models) * settings.output_tokens)
    law = SamplingLaw(temperature=settings.temperature, seed=settings.seed, vocab_size=vocab_size)
    greedy = SamplingLaw(temperature=0.0, seed=settings.seed, vocab_size=vocab_size)
    written = [continue_prompts(model, prompts, settings.output_tokens, law, tick) for model in models]
    plain = [continue_prompts(model, prompts, settings.output_tokens, greedy, tick) for model in models]
    bootstrap = PairedBootstrap(len(prompts), draws=draws, seed=settings.seed)
    shared = [
        SharedPicks.of(
            reference, model, written[0], prompts.shape[1], law, tokens_at_once=settings.tokens_at_once
        )
        for model in variants
    ]
    scores = [
        score
        for drafter in drafters
        for score in _score(drafter, models, written, shared, prompts.shape[1], law, settings, bootstrap)
    ]
    return Acceptance(
        settings=settings,
        prompt_count=len(prompts),
        prompt_tokens=prompts.shape[1],
        scores=tuple(scores),
        greedy=tuple(
            _greedy(model.name, plain[0], sequences, prompts.shape[1], bootstrap)
            for model, sequences in zip(variants, plain[1:], strict=True)
        ),
    )


def check_acceptance(models: Sequence[EvaluatedModel], prompts: Tensor, settings: AcceptanceSettings) -> None:
    """Refuses what :func:`measure_acceptance` cannot measure, before anything is computed.

    Raises:
        CalibrationError: Layers that are not in memory, or prompts beyond the context.
    """
    streamed = [model.name for model in models if model.streamed]
    if streamed:
        raise CalibrationError(
            f"the layers of {', '.join(streamed)} do not fit in memory, and writing one token visits all; "
            "give more memory, or leave acceptance out"
        )
    total = prompts.shape[1] + settings.output_tokens
    for model in models:
        if total > model.source.config.context_length:
            raise CalibrationError(
                f"prompts of {prompts.shape[1]} and outputs of {settings.output_tokens} tokens exceed the "
                f"context of {model.name}, {model.source.config.context_length} tokens; shorten one of them"
            )


def _ticker(progress: Callable[[int, int], None] | None, total: int) -> Callable[[], None]:
    done = 0
    if progress is not None:
        progress(0, total)

    def tick() -> None:
        nonlocal done
        done += 1
        if progress is not None:
            progress(done, total)

    return tick


def _score(
    drafter: Drafter,
    models: Sequence[EvaluatedModel],
    written: Sequence[Tensor],
    shared: Sequence[SharedPicks],
    start: int,
    law: SamplingLaw,
    settings: AcceptanceSettings,
    bootstrap: PairedBootstrap,
) -> list[AcceptanceScore]:
    proposals = [drafter.proposals(sequences, start, law) for sequences in written]
    replays = [
        [
            replay(row, start, propose, settings.draft_tokens)
            for row, propose in zip(sequences.tolist(), proposed, strict=True)
        ]
        for sequences, proposed in zip(written, proposals, strict=True)
    ]
    lengths = [
        bootstrap.ratios(
            np.array([row.tokens for row in rows], np.float64),
            np.array([row.rounds for row in rows], np.float64),
        )
        for rows in replays
    ]
    checks = [None, *(picks.check(proposals[0], start) for picks in shared)]
    return [
        AcceptanceScore(
            drafter=drafter.name,
            variant=model.name,
            acceptance_length=bootstrap.interval(length),
            length_ratio=bootstrap.interval(length / lengths[0], null=1),
            draft_acceptance=total.accepted / total.drafted if total.drafted else None,
            totals=total,
            shared=check,
        )
        for model, total, length, check in zip(models, map(_total, replays), lengths, checks, strict=True)
    ]


def _greedy(
    name: str, reference: Tensor, variant: Tensor, start: int, bootstrap: PairedBootstrap
) -> GreedyMatch:
    limit = reference.shape[1] - start
    lengths = np.array(
        [
            matching(one, other)
            for one, other in zip(reference[:, start:].tolist(), variant[:, start:].tolist(), strict=True)
        ],
        np.float64,
    )
    return GreedyMatch(
        variant=name,
        tokens=bootstrap.interval(bootstrap.ratios(lengths, np.ones(len(lengths)))),
        median_tokens=float(np.median(lengths)),
        identical=float((lengths == limit).mean()),
        limit=limit,
    )


def _total(rows: Sequence[Replay]) -> Replay:
    return Replay(
        tokens=sum(row.tokens for row in rows),
        rounds=sum(row.rounds for row in rows),
        drafted=sum(row.drafted for row in rows),
        accepted=sum(row.accepted for row in rows),
    )
