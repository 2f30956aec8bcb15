"""The work of ``spearhead calibrate``: options to a request, results to tables, files and JSON."""

import argparse
import json
from dataclasses import replace
from typing import Any

import torch

from spearhead.cli.bench.environment import environment
from spearhead.cli.calibrate import parse_budget
from spearhead.cli.calibrate_report import describe_calibration
from spearhead.cli.progress import ProgressBar, tell
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
    bars = _Bars()
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
    sampling = _given(arguments, _SAMPLING)
    training = _given(arguments, {name: name for name in _TRAINING})
    top = _given(arguments, {name: name for name in _TOP})
    return replace(
        config,
        budget_share=share or config.budget_share,
        budget_bytes=budget_bytes,
        factor_bits=arguments.factor_bits,
        sampling=replace(config.sampling, **sampling),
        training=replace(config.training, **training),
        **top,
    )


def _given(arguments: argparse.Namespace, names: dict[str, str]) -> dict[str, Any]:
    """Options that are on the command line, by the names of their fields."""
    values = vars(arguments)
    return {field: values[option] for option, field in names.items() if values[option] is not None}


def _options(arguments: argparse.Namespace) -> OutcomeOptions:
    return OutcomeOptions(
        texts=tuple(arguments.text),
        protocol=TextProtocol(length=arguments.length, max_segments=arguments.max_segments),
        report=arguments.report,
        baselines=BaselinePlan(max_rank=arguments.baseline_rank) if arguments.baselines else None,
        adapter=arguments.export_lora,
        save_sequences=arguments.save_sequences,
    )


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


class _Bars:
    """One progress bar a stage; a stage that was finished before shows none."""

    def __init__(self) -> None:
        self._bars: dict[str, ProgressBar] = {}
        self._done: dict[str, int] = {}

    def show(self, stage: str, done: int, total: int) -> None:
        """Moves the bar of a stage."""
        if done < self._done.get(stage, done + 1):  # the first sign, or the same stage once more
            if done == total:
                return
            self._bars[stage] = ProgressBar(stage, total)
            self._bars[stage].start_from(done)
        self._done[stage] = done
        self._bars[stage].move_to(done, total)
