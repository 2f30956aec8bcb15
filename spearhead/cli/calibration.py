"""The work of ``spearhead calibrate``: options to a request, results to tables, files and JSON."""

import argparse
import json
from dataclasses import replace
from typing import Any

import torch

from spearhead.cli.bench.environment import environment
from spearhead.cli.calibrate import OF_TEXTS, parse_budget
from spearhead.cli.calibrate_report import describe_calibration
from spearhead.cli.options import given
from spearhead.cli.progress import StageBars, tell
from spearhead.quant.calibration import (
    Calibration,
    CalibrationConfig,
    CalibrationOutcome,
    CalibrationRequest,
    CalibrationSettings,
    OutcomeOptions,
    calibrate,
)
from spearhead.quant.calibration.baselines import BaselinePlan
from spearhead.quant.calibration.config import Recipe
from spearhead.quant.calibration.provenance import provenance
from spearhead.quant.calibration.report import Surroundings
from spearhead.quant.device import compute_device, device_name
from spearhead.quant.evaluation import TextProtocol

_SAMPLING = {
    "sequence_count": "sequence_count", "sequence_length": "length", "chat_fraction": "chat_fraction",
    "sampling_batch": "batch_size",
}  # fmt: skip
_TRAINING = (
    "steps", "sequences_per_step", "learning_rate", "gate_learning_rate", "evaluate_every", "patience",
)  # fmt: skip
_TOP = (
    "gate", "moments_sequences", "skip_first", "damage", "damage_tokens", "cost_weight", "coverage",
    "tensor_parallel_size", "min_rank", "max_rank", "rank_quantum", "include_w8",
)  # fmt: skip


def calibrate_artefact(arguments: argparse.Namespace) -> str:
    """Calibrates as the command line says, prints tables, and returns one line of JSON.

    Raises:
        ConfigError, CheckpointError, CalibrationError: See :func:`spearhead.quant.calibration.calibrate`.
    """
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    device = str(compute_device(arguments.device))
    request = CalibrationRequest(
        artefact=arguments.artefact,
        full_precision=arguments.full_precision,
        config=config_from(arguments, device),
        settings=CalibrationSettings(
            device=device,
            dtype=arguments.dtype,
            memory_bytes=int(arguments.memory_gib * 2**30),
            tokens_at_once=arguments.tokens_at_once,
        ),
        text=arguments.calibration_text,
        sequences=arguments.sequences,
        work=arguments.work,
        force=arguments.force,
    )
    bars = StageBars()
    facts = environment()
    outcome = CalibrationOutcome(_options(arguments), _surroundings(facts, device), bars.show)
    found = calibrate(
        request,
        progress=bars.show,
        tell=tell,
        begin=outcome.read,
        finish=outcome.score,
        after=outcome.publish,
    )
    print(describe_calibration(found, outcome.scores))
    return json.dumps({**facts, **_document(found, outcome)})


def config_from(arguments: argparse.Namespace, device: str) -> CalibrationConfig:
    """The recipe with everything that the command line changes.

    Raises:
        CalibrationError: A value that is out of range.
    """
    recipe: Recipe = arguments.recipe or ("full" if device.startswith("cuda") else "reduced")
    config = CalibrationConfig.of_recipe(recipe, arguments.seed)
    share, budget_bytes = parse_budget(arguments.budget)
    sampling = {_SAMPLING[name]: value for name, value in given(arguments, _SAMPLING).items()}
    return replace(
        config,
        budget_share=share or config.budget_share,
        budget_bytes=budget_bytes,
        factor_bits=arguments.factor_bits,
        sampling=replace(config.sampling, **sampling),
        training=replace(config.training, **given(arguments, _TRAINING)),
        **given(arguments, _TOP),
    )


def _options(arguments: argparse.Namespace) -> OutcomeOptions:
    return OutcomeOptions(
        texts=tuple(arguments.text),
        protocol=TextProtocol(**given(arguments, OF_TEXTS)),
        report=arguments.report,
        baselines=_baselines(arguments),
        adapter=arguments.export_lora,
        save_sequences=arguments.save_sequences,
    )


def _baselines(arguments: argparse.Namespace) -> BaselinePlan | None:
    if not arguments.baselines:
        return None
    plan = BaselinePlan()
    return replace(plan, max_rank=arguments.baseline_rank or plan.max_rank)


def _surroundings(facts: dict[str, Any], device: str) -> Surroundings:
    name = device_name(torch.device(device))
    return Surroundings(versions=facts["versions"], commands=(str(facts["command"]),), device=name)


def _document(found: Calibration, outcome: CalibrationOutcome) -> dict[str, Any]:
    told = provenance(found)
    del told["reasons"]  # a sentence a module: in ec.json and the report
    return {
        **told,
        "artefact": str(found.subject.artefact.path),
        "quantization": found.subject.artefact.quantization,
        "compensators": None if found.written is None else str(found.written),
        "report": str(outcome.report_folder),
        "adapter_rung": None if outcome.adapter_rung is None else outcome.adapter_rung.value,
        "stages_s": dict(found.stages),
        "metrics": outcome.metrics(),
    }
