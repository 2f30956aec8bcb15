"""The work of ``spearhead evaluate``: options to models, texts and drafters, results to tables and JSON."""

import argparse
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path

import torch

from draft_service.config import DrafterSettings
from draft_service.ngram_drafter import find_continuation
from spearhead.cli.bench.environment import environment
from spearhead.cli.evaluate import OF_ACCEPTANCE, OF_SELF_SAMPLES, OF_TEXTS
from spearhead.cli.options import given
from spearhead.cli.progress import StageBars, tell
from spearhead.cli.tables import table
from spearhead.errors import ConfigError
from spearhead.model.checkpoint.compensators import FILE, FOLDER
from spearhead.model.checkpoint.tensor_files import read_json
from spearhead.model.quantization import QuantizationScheme
from spearhead.quant.device import TOKENS_AT_ONCE, compute_device
from spearhead.quant.evaluation import (
    AcceptancePlan,
    AcceptanceSettings,
    Drafter,
    Evaluation,
    EvaluationText,
    LookupDrafter,
    ModelDrafter,
    OpenedModels,
    TextProtocol,
    evaluate_variants,
    opened_models,
    read_text,
    text_from_samples,
)
from spearhead.quant.evaluation.presentation import (
    acceptance_rows,
    column_rows,
    columns,
    greedy_rows,
    protocol_line,
    text_rows,
)
from spearhead.quant.self_sampling import SamplingTokens, SelfSamplingConfig, self_sample

_SELF, _NGRAM = "self", "ngram"
_PROMPT_TOKENS = 128
_SELF_SAMPLING = {"self_sample_length": 256, "self_sample_seed": 1009}


def evaluate(arguments: argparse.Namespace) -> str:
    """Evaluates as the command line says, prints tables, and returns one line of JSON.

    Raises:
        ConfigError: Options that do not fit together.
        CalibrationError, CheckpointError, ModelMismatch: See :mod:`spearhead.quant.evaluation`.
    """
    bars = StageBars()
    with _opened(arguments) as models:
        texts = _texts(arguments, models, bars)
        evaluation = evaluate_variants(
            models.reference,
            models.variants,
            texts,
            acceptance=_plan(arguments, models, texts) if arguments.prompts else None,
            draws=arguments.draws,
            seed=arguments.seed,
            tokens_at_once=_tokens_at_once(arguments, models),
            report=bars.show,
        )
        revision = models.revision
    _print_tables(evaluation)
    document = {
        **environment(),
        "full_precision_revision": revision,
        **evaluation.as_json(),
        "columns": [asdict(column) for column in columns(evaluation)],
    }
    return json.dumps(document)


@contextmanager
def _opened(arguments: argparse.Namespace) -> Iterator[OpenedModels]:
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    drafters = [name for name in arguments.drafter if name not in (_SELF, _NGRAM)]
    with opened_models(
        arguments.models,
        schemes=[QuantizationScheme.parse(text) for text in arguments.quantization],
        drafters=drafters if arguments.prompts else [],
        dtype=getattr(torch, arguments.dtype),
        device=compute_device(arguments.device),
        memory_bytes=int(arguments.memory_gib * 2**30),
        tell=tell,
    ) as models:
        yield models


def _tokens_at_once(arguments: argparse.Namespace, models: OpenedModels) -> int:
    chosen: int = arguments.tokens_at_once
    return chosen or TOKENS_AT_ONCE[models.reference.source.device.type]


def _texts(arguments: argparse.Namespace, models: OpenedModels, bars: StageBars) -> list[EvaluationText]:
    protocol = TextProtocol(**given(arguments, OF_TEXTS))
    texts = [read_text(path, models.tokenizer, protocol) for path in arguments.text]
    if arguments.self_samples:
        texts.append(_self_samples(arguments, models, bars))
    return texts


def _self_samples(arguments: argparse.Namespace, models: OpenedModels, bars: StageBars) -> EvaluationText:
    source = models.reference.source
    chosen = _SELF_SAMPLING | given(arguments, OF_SELF_SAMPLES)
    seed = chosen["self_sample_seed"]
    _check_unseen(models.compensated, seed)
    config = SelfSamplingConfig(
        sequence_count=arguments.self_samples, length=chosen["self_sample_length"], seed=seed
    )
    samples = self_sample(
        source,
        config,
        SamplingTokens.of(models.tokenizer, vocab_size=source.config.vocab_size, chat=False),
        revision=models.revision,
        progress=partial(bars.show, "self-samples"),
    )
    return text_from_samples("self-samples (written)", samples)


def _check_unseen(artefacts: Sequence[Path], seed: int) -> None:
    """Refuses samples that compensators were fitted to: there they look better than they are."""
    for path in artefacts:
        folder = path.parent if path.is_file() else path
        described = read_json((folder / FOLDER / FILE).with_suffix(".json"))
        if described.get("config", {}).get("sampling", {}).get("seed") == seed:
            raise ConfigError(
                f"--self-sample-seed {seed} is the seed of the text that the compensators of {path} were "
                "fitted to; give another"
            )


def _plan(
    arguments: argparse.Namespace, models: OpenedModels, texts: Sequence[EvaluationText]
) -> AcceptancePlan:
    segments = texts[0].segments
    prompt_tokens = arguments.prompt_tokens or _PROMPT_TOKENS
    if prompt_tokens > segments.shape[1]:
        raise ConfigError(
            f"--prompt-tokens {prompt_tokens} is more than the {segments.shape[1]} tokens of a "
            "segment; prompts are the first tokens of segments"
        )
    at_once = _tokens_at_once(arguments, models)
    return AcceptancePlan(
        drafters=_drafters(arguments.drafter or [_SELF], models, at_once),
        prompts=segments[: arguments.prompts, :prompt_tokens],
        settings=AcceptanceSettings(
            seed=arguments.seed, tokens_at_once=at_once, **given(arguments, OF_ACCEPTANCE)
        ),
        vocab_size=models.tokenizer.vocab_size,
    )


def _drafters(names: Sequence[str], models: OpenedModels, at_once: int) -> list[Drafter]:
    opened = iter(models.drafters)
    found: list[Drafter] = []
    for name in names:
        if name == _NGRAM:
            found.append(LookupDrafter(name=_NGRAM, lookup=_look_up))
            continue
        model = models.reference if name == _SELF else next(opened)
        label = _SELF if name == _SELF else model.name
        found.append(ModelDrafter(name=label, model=model, tokens_at_once=at_once))
    return found


def _look_up(tokens: Sequence[int], count: int) -> list[int]:
    settings = DrafterSettings()
    return find_continuation(
        tokens, longest=settings.ngram_longest, shortest=settings.ngram_shortest, count=count
    )


def _print_tables(evaluation: Evaluation) -> None:
    for text in evaluation.texts:
        print(f"{protocol_line(text)}, {evaluation.dtype}\n{table(text_rows(text))}\n")
    acceptance = evaluation.acceptance
    if acceptance is not None:
        settings = acceptance.settings
        print(
            f"acceptance: {acceptance.prompt_count} prompts of {acceptance.prompt_tokens} tokens, "
            f"{settings.output_tokens} written, {settings.draft_tokens} drafts a round, temperature "
            f"{settings.temperature:g}\n{table(acceptance_rows(acceptance))}\n"
        )
        if acceptance.greedy:
            print(f"greedy output, as long as it equals full precision's\n{table(greedy_rows(acceptance))}\n")
    print(table(column_rows(columns(evaluation))), flush=True)
