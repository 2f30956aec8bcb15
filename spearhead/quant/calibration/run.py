"""The course of a calibration: stage after stage, each kept in the work folder, then the artefact."""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

import torch

from spearhead.quant.calibration.artefact_files import (
    check_replaceable,
    forget_written,
    mend_interrupted_write,
    write_compensators,
)
from spearhead.quant.calibration.calibration import Calibration, CalibrationRequest
from spearhead.quant.calibration.decision import Measured, decide
from spearhead.quant.calibration.encoding import encode
from spearhead.quant.calibration.fitting import ClosedForms, fit_closed_forms
from spearhead.quant.calibration.ladder import climb
from spearhead.quant.calibration.measuring import measure_modules
from spearhead.quant.calibration.models import Models
from spearhead.quant.calibration.placing import check_budget, place
from spearhead.quant.calibration.progress import Progress, silent
from spearhead.quant.calibration.provenance import provenance
from spearhead.quant.calibration.rungs import RungMaker, RungState
from spearhead.quant.calibration.sequences import CalibrationTexts, gather_sequences
from spearhead.quant.calibration.store import StageResult, StageStore, open_store
from spearhead.quant.calibration.subject import Subject, check_exists, open_subject
from spearhead.quant.device import compute_device, device_name
from spearhead.quant.report import Rung

Finish = Callable[[StageStore, Calibration], Mapping[str, Any]]
"""Evaluates rungs before the artefact is written; what it returns goes into ``ec.json``."""


def calibrate(
    request: CalibrationRequest,
    *,
    progress: Progress = silent,
    tell: Callable[[str], None] = lambda _sentence: None,
    begin: Callable[[Subject], None] = lambda _subject: None,
    finish: Finish = lambda _store, _calibration: {},
    after: Callable[[Calibration], None] = lambda _calibration: None,
    clock: Callable[[], float] = time.monotonic,
) -> Calibration:
    """Fits compensators to an artefact and writes those that prove themselves.

    Killed at any moment, the same call goes on where it stopped.

    Args:
        request: What to do.
        progress: Told of every stage.
        tell: Told sentences for people: what was resumed, what was decided.
        begin: Called before any work, such as to read what will be needed later.
        finish: Called before the artefact is written, such as to evaluate rungs on texts.
        after: Called once it is written, such as for a report, while everything is still open.
        clock: Times stages.

    Raises:
        ConfigError: Options that do not fit, compensators that are there already, a work folder in use.
        CheckpointError: Checkpoints that cannot be used or are not of one model.
        CalibrationError: Numbers that are not finite, a budget that holds nothing, a full disk.
    """
    folder = request.artefact.parent if request.artefact.is_file() else request.artefact
    with _store(request, clock, tell) as store:
        mend_interrupted_write(folder, store.path)
        check_replaceable(folder, store.path, force=request.force)
        with _subject(request) as subject:
            begin(subject)
            found = _run(request, store, subject, progress, tell)
            details = {**provenance(found), **finish(store, found)}
            best = found.chosen
            if best.factors:
                compensators = encode(best.factors, request.config.factor_bits)
                written = write_compensators(subject, compensators, details, store.path)
                found = replace(found, written=written)
            after(found)
        forget_written(store.path)
        if request.work is None:
            store.discard()
    return found


def calibration_texts(
    request: CalibrationRequest,
    *,
    progress: Progress = silent,
    tell: Callable[[str], None] = lambda _sentence: None,
    clock: Callable[[], float] = time.monotonic,
) -> CalibrationTexts:
    """The sequences that :func:`calibrate` would learn from and decide on; it finds them there later.

    Raises:
        As :func:`calibrate`.
    """
    with _store(request, clock, tell) as store, _subject(request) as subject:
        return _texts(request, store, Models.of(subject, request.settings, tell), progress, tell)


def _store(
    request: CalibrationRequest, clock: Callable[[], float], tell: Callable[[str], None]
) -> AbstractContextManager[StageStore]:
    check_exists(request.artefact)
    device = compute_device(request.settings.device)
    made_by = {"torch": torch.__version__, "device": device_name(device)}
    return open_store(request.work_folder, made_by, clock=clock, tell=tell)


def _subject(request: CalibrationRequest) -> AbstractContextManager[Subject]:
    return open_subject(request.artefact, request.full_precision, include_w8=request.config.include_w8)


def _texts(
    request: CalibrationRequest,
    store: StageStore,
    models: Models,
    progress: Progress,
    tell: Callable[[str], None],
) -> CalibrationTexts:
    texts = gather_sequences(
        store,
        models,
        request.config,
        text=request.text,
        file=request.sequences,
        progress=progress,
        tell=tell,
    )
    rows, wanted = texts.whole.origin.config.batch_size, request.config.sampling.batch_size
    if rows < wanted and request.text is None and request.sequences is None:
        tell(f"{rows} sequences are sampled in step, not {wanted}: more keys and values are never kept")
    return texts


def _run(
    request: CalibrationRequest,
    store: StageStore,
    subject: Subject,
    progress: Progress,
    tell: Callable[[str], None],
) -> Calibration:
    config = request.config
    check_budget(subject.modules, config, subject.artefact.stored_bytes)
    models = Models.of(subject, request.settings, tell)
    texts = _texts(request, store, models, progress, tell)
    forms = fit_closed_forms(store, models, texts, config, progress=progress)
    damage, measured = measure_modules(store, models, texts, config, progress=progress)
    allocation = place(subject, damage, forms, config)
    maker = RungMaker(store, models, texts, config, progress)
    rungs, candidates = climb(maker, forms, allocation.ranks, config, tell)
    decisions = decide(
        [Measured(rung=state.rung, kl=state.kl) for state in rungs],
        draws=config.draws,
        seed=config.seed,
        forced=Rung.GATED if config.gate == "force" else None,
    )
    for decision in decisions:
        tell(decision.sentence)
    return Calibration(
        subject=subject,
        models=models,
        config=config,
        texts=texts,
        forms=forms,
        damage=damage,
        allocation=allocation,
        rungs=tuple(rungs),
        decisions=decisions,
        candidates=tuple(candidates),
        stages=_durations(texts, forms, measured, rungs, candidates),
    )


def _durations(
    texts: CalibrationTexts,
    forms: ClosedForms,
    damage: StageResult,
    rungs: Sequence[RungState],
    candidates: Sequence[RungState],
) -> dict[str, float]:
    """Seconds of each stage, in order."""
    return {
        "self-sampling": texts.result.duration_s,
        "statistics": forms.result.duration_s,
        "damage": damage.duration_s,
        **{_stage_name(state): state.duration_s for state in rungs if state.rung is not Rung.GATED},
        **{_stage_name(state): state.duration_s for state in candidates},
    }


def _stage_name(state: RungState) -> str:
    return f"{state.rung.value} from {state.start}" if state.start else state.rung.value
