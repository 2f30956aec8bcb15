"""The course of a quantisation run: parts into the work folder, then the artefact into its place."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor

from spearhead.errors import CalibrationError, CheckpointError
from spearhead.model.checkpoint import Checkpoint
from spearhead.model.checkpoint.durable import put_in_place
from spearhead.model.checkpoint.layout import EMBEDDING, expected_shapes, layer_name
from spearhead.model.checkpoint.loader import finite
from spearhead.quant.artefact import (
    FOLDS_FILE,
    REPORT_FILE,
    artefact_config,
    describe,
    write_companions,
    write_json,
)
from spearhead.quant.decoder import LayerTensors
from spearhead.quant.layer_pass import LayerVisit, visit_layers
from spearhead.quant.layers import StreamedLayers
from spearhead.quant.quantizing.checks import artefact_bytes, check_places, check_room
from spearhead.quant.quantizing.layer import LayerQuantizer
from spearhead.quant.quantizing.notes import fused_apart, too_few_tokens
from spearhead.quant.quantizing.progress import Meter, OnProgress
from spearhead.quant.quantizing.report import QuantizationReport, module_reports
from spearhead.quant.quantizing.settings import RunSettings
from spearhead.quant.quantizing.shards import join_files, join_parts
from spearhead.quant.quantizing.work_folder import (
    WorkFolder,
    explained_write_errors,
    fresh_folder,
    open_work_folder,
)
from spearhead.quant.recipe import Choices, QuantizationRecipe
from spearhead.quant.sequences import TokenBatch, batches

_VERSION = 1
_EMBEDDING_PART, _HEAD_PART = "embedding", "head"


class QuantizationRun:
    """One run; owns its work folder while it lasts. The arguments are those of ``quantize_checkpoint``."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        *,
        source: str,
        output: Path,
        recipe: QuantizationRecipe,
        choices: Choices,
        sequences: Sequence[Sequence[int]] | None,
        settings: RunSettings,
        progress: OnProgress | None,
    ) -> None:
        self._checkpoint = checkpoint
        self._source = source
        self._output = output
        self._recipe = recipe
        self._choices = choices
        self._sequences = sequences
        self._settings = settings
        self._device = torch.device(settings.device)
        self._dtype: torch.dtype = getattr(torch, checkpoint.weight_dtype)
        self._quantizer = LayerQuantizer(
            config=checkpoint.config, choices=choices, options=recipe.options, dtype=self._dtype
        )
        self._meter = Meter(checkpoint, self._dtype.itemsize, progress)

    def execute(self) -> QuantizationReport:
        """Does what is left to do and puts the artefact into place.

        What cannot be done leaves nothing; what could not be read, as from a disk that was away, keeps
        finished layers.
        """
        folder = self._settings.work_folder(self._output)
        with explained_write_errors(self._output.parent):
            self._output.parent.mkdir(parents=True, exist_ok=True)
        self._check_room(folder)
        with open_work_folder(folder, self._identity(), restart=self._settings.restart) as work:
            try:
                self._meter.resume(self._finished(work))
                self._write_parts(work)
            except (CheckpointError, CalibrationError) as error:
                if not isinstance(error.__cause__, OSError | SafetensorError):
                    work.discard()  # doing it again would fail again
                raise
            report = self._assemble(work)
            work.discard()
        return report

    def _check_room(self, folder: Path) -> None:
        size = artefact_bytes(self._checkpoint.config, self._choices, self._dtype.itemsize)
        tokens = sum(map(len, self._sequences or ()))
        stream = 2 * tokens * self._checkpoint.config.hidden_size * 4
        there = sum(path.stat().st_size for path in folder.glob("*")) if folder.exists() else 0
        parent = next(path for path in (folder, *folder.parents) if path.exists())
        check_room([(self._output.parent, size), (parent, max(0, size + stream - there))])

    def _identity(self) -> dict[str, Any]:
        settings = self._settings
        identity: dict[str, Any] = {
            "version": _VERSION,
            "source": self._checkpoint.revision,
            "recipe": str(self._recipe),
            "calibration": _digest(self._sequences),
        }
        if self._sequences is not None:
            identity |= {
                "inputs": settings.inputs,
                "dtype": settings.dtype,
                "batch_size": settings.batch_size,
                "skip_first": settings.skip_first,
            }
        return identity

    def _finished(self, work: WorkFolder) -> list[str]:
        parts = [_EMBEDDING_PART, *map(_layer_part, range(work.next_layer)), _HEAD_PART]
        return [name for part in parts if work.has(part) for name in self._names(part)]

    def _write_parts(self, work: WorkFolder) -> None:
        self._write_kept(work, _EMBEDDING_PART)
        if self._sequences is None:
            for index in range(work.next_layer, self._checkpoint.config.layer_count):
                self._quantize(work, index, None)
                work.mark_next_layer(index + 1)
        else:
            skipped = self._settings.skip_first
            groups = batches(self._sequences, self._settings.batch_size)
            self._visit(work, [batch.without_first(skipped) for batch in groups])
        self._write_kept(work, _HEAD_PART)

    def _write_kept(self, work: WorkFolder, part: str) -> None:
        if work.has(part):
            return
        kept: dict[str, Tensor] = {}
        for name in self._names(part):
            tensor = finite(self._checkpoint.tensor(name), name)
            # The norm is small enough to stay exact; a dequantised embedding is not.
            kept[name] = tensor if tensor.ndim == 1 else finite(tensor.to(self._dtype), name)
        work.write_part(part, kept, [])
        self._meter.add(self._names(part))

    def _visit(self, work: WorkFolder, calibration: list[TokenBatch]) -> None:
        """Quantises layers in the order in which the calibration tokens reach them."""
        config = self._checkpoint.config
        if work.next_layer == config.layer_count:
            return
        source = StreamedLayers(
            self._checkpoint, dtype=getattr(torch, self._settings.dtype), device=self._device
        )

        def advance(visit: LayerVisit) -> LayerTensors:
            work.mark_next_layer(visit.index)  # the stream before it is complete
            effective = self._quantize(work, visit.index, visit)
            if self._settings.inputs == "full":
                return visit.tensors
            return {name: tensor.to(source.dtype) for name, tensor in effective.items()}

        stored = [
            work.stream(work.next_layer, number, (*batch.token_ids.shape, config.hidden_size), source.dtype)
            for number, batch in enumerate(calibration)
            if work.next_layer
        ]
        visit_layers(
            source,
            calibration,
            advance,
            replaces=self._settings.inputs == "quantized",
            keep=work.keep_stream,
            first_layer=work.next_layer,
            inputs=stored or None,
        )
        work.mark_next_layer(config.layer_count)

    def _quantize(self, work: WorkFolder, index: int, visit: LayerVisit | None) -> Mapping[str, Tensor]:
        prefix, part = layer_name(index, ""), _layer_part(index)
        originals = {
            name.removeprefix(prefix): finite(self._checkpoint.tensor(name), name).to(self._device)
            for name in self._names(part)
        }
        layer = self._quantizer.quantize(index, originals, visit)
        if layer.folds:
            work.write_tensors(f"folds-{index:05}", layer.folds)
        work.write_part(part, layer.stored, [asdict(report) for report in layer.reports])
        self._meter.add(self._names(part))
        return layer.effective

    def _names(self, part: str) -> list[str]:
        """The source's tensors of a part."""
        names = list(expected_shapes(self._checkpoint.config))
        if part == _EMBEDDING_PART:
            return [EMBEDDING]
        if part == _HEAD_PART:
            return [name for name in names if name != EMBEDDING and not name.startswith("model.layers.")]
        index = int(part.removeprefix("layer-"))
        return [name for name in names if name.startswith(layer_name(index, ""))]

    def _assemble(self, work: WorkFolder) -> QuantizationReport:
        folder = self._output.parent / f".{self._output.name}.assembling"
        with explained_write_errors(self._output.parent), fresh_folder(folder):
            (folder / "spear").mkdir()
            report = self._write_artefact(work, folder)
            check_places(self._output, work.path)  # another run may have been faster
            put_in_place(folder, self._output)
        return report

    def _write_artefact(self, work: WorkFolder, folder: Path) -> QuantizationReport:
        layers = list(map(_layer_part, range(self._checkpoint.config.layer_count)))
        parts = [work.path / f"{part}.safetensors" for part in (_EMBEDDING_PART, *layers, _HEAD_PART)]
        size = join_parts(parts, folder, self._settings.shard_bytes)
        folds = sorted(work.path.glob("folds-*.safetensors"))
        if folds:
            join_files(folds, folder / FOLDS_FILE)
        write_companions(self._checkpoint, folder)
        config = artefact_config(self._checkpoint, self._choices, self._source, self._output)
        write_json(folder / "config.json", config)
        report = QuantizationReport(
            path=self._output,
            quantization=describe(self._choices),
            source_bytes=self._checkpoint.stored_bytes,
            artefact_bytes=size,
            modules=module_reports([entry for part in layers for entry in work.read_report(part)]),
            calibration_tokens=sum(map(len, self._sequences or ())),
            notes=self._notes(),
        )
        write_json(folder / REPORT_FILE, report.to_json() | self._identity())
        return report

    def _notes(self) -> tuple[str, ...]:
        config, skipped = self._checkpoint.config, self._settings.skip_first
        tokens = sum(max(0, len(sequence) - skipped) for sequence in self._sequences or ())
        found = fused_apart(self._choices)
        if self._sequences is not None:
            found += too_few_tokens(config, tokens)
        return tuple(found)


def _layer_part(index: int) -> str:
    return f"layer-{index:05}"


def _digest(sequences: Sequence[Sequence[int]] | None) -> str:
    if sequences is None:
        return ""
    lines = "".join(" ".join(map(str, sequence)) + "\n" for sequence in sequences)
    return f"sha256:{hashlib.sha256(lines.encode()).hexdigest()}"
