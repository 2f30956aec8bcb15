"""Quantises one layer: folds, trains clip factors, then each projection by its own choice."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from spearhead.model.architecture import ModelConfig
from spearhead.model.checkpoint.layout import layer_name
from spearhead.model.checkpoint.loader import finite
from spearhead.quant.layer_pass import LayerVisit
from spearhead.quant.methods.learned_clipping import Clippable, LearnedScales, learn_clipping
from spearhead.quant.methods.options import MethodOptions
from spearhead.quant.methods.weight import QuantizedResult, note_on_learning, quantize_weight
from spearhead.quant.methods.weight_error import relative_error, squared_error
from spearhead.quant.quantizing.block import Block
from spearhead.quant.quantizing.folding import FoldedLayer, LayerChoices, fold_layer
from spearhead.quant.quantizing.packing import packed_tensors
from spearhead.quant.quantizing.report import ModuleReport
from spearhead.quant.recipe import DENSE, ModuleChoice


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantizedLayer:
    """What became of a layer; filled by :class:`LayerQuantizer`.

    Attributes:
        stored: Tensors of the artefact by their full names, on the CPU.
        effective: What computes the inputs of later layers, by name within the layer, float32; of no meaning
            without calibration inputs.
        reports: One a projection.
        folds: ``<module>.input_scale`` and ``<module>.output_scale`` where they are not 1, on the CPU.
    """

    stored: dict[str, Tensor]
    effective: dict[str, Tensor]
    reports: list[ModuleReport]
    folds: dict[str, Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Layer:
    """A layer on its way.

    Attributes:
        index: Which.
        originals: Tensors as stored.
        true: The same in float32.
        folded: The same with input scales folded in.
        choices: Of its projections.
        learned: Scales that were learned for the whole layer, if any were.
        visit: Calibration inputs, if there are any.
    """

    index: int
    originals: Mapping[str, Tensor]
    true: dict[str, Tensor]
    folded: FoldedLayer
    choices: LayerChoices
    learned: LearnedScales | None
    visit: LayerVisit | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerQuantizer:
    """Quantises layers of one model.

    Attributes:
        config: The model's shape.
        choices: Full module name to its choice.
        options: Numbers of the methods.
        dtype: How scales and kept tensors are stored.
    """

    config: ModelConfig
    choices: Mapping[str, ModuleChoice | None]
    options: MethodOptions
    dtype: torch.dtype

    def quantize(
        self, index: int, originals: Mapping[str, Tensor], visit: LayerVisit | None
    ) -> QuantizedLayer:
        """Quantises one layer.

        Args:
            index: Which.
            originals: Its tensors as stored, by name within the layer, on the device that computes.
            visit: Its calibration inputs; ``None`` when no choice needs them.

        Raises:
            CheckpointError: Scales or weights beyond the range of the storage type.
        """
        layer = self._prepare(index, originals, visit)
        done = QuantizedLayer(
            stored={},
            effective=dict(layer.folded.tensors),
            reports=[],
            folds=_fold_tensors(index, layer.folded),
        )
        for name in originals:
            part = name.removesuffix(".weight")
            choice = layer.choices.get(part)
            if choice is None:
                self._keep(layer, name, done)
            else:
                self._round(layer, part, choice, done)
        return done

    def _prepare(self, index: int, originals: Mapping[str, Tensor], visit: LayerVisit | None) -> _Layer:
        true = {name: tensor.float() for name, tensor in originals.items()}
        parts = [name.removesuffix(".weight") for name in true if name.endswith("_proj.weight")]
        choices = {part: self.choices[layer_name(index, part)] for part in parts}
        folded = FoldedLayer(tensors=true)
        if visit is not None:
            points = self.options.awq_points
            folded = fold_layer(true, choices, visit.moments, points=points, dtype=self.dtype)
        return _Layer(
            index=index,
            originals=originals,
            true=true,
            folded=folded,
            choices=choices,
            learned=self._learned(true, folded, choices, visit),
            visit=visit,
        )

    def _learned(
        self,
        true: Mapping[str, Tensor],
        folded: FoldedLayer,
        choices: LayerChoices,
        visit: LayerVisit | None,
    ) -> LearnedScales | None:
        if visit is None:
            return None
        weights = {
            part: Clippable(
                weight=folded.tensors[f"{part}.weight"],
                grid=choice.grid,
                mean_square=folded.moments(part, visit.moments[part]).mean_square,
            )
            for part, choice in choices.items()
            if choice is not None and choice.method == "omniquant"
        }
        if not weights:
            return None
        block = Block(self.config, true, folded.tensors, visit)
        return learn_clipping(
            weights,
            block.loss,
            block.batch_count,
            steps=self.options.clipping_steps,
            rate=self.options.clipping_rate,
            scale_dtype=self.dtype,
        )

    def _keep(self, layer: _Layer, name: str, done: QuantizedLayer) -> None:
        """Norms, biases and dense weights."""
        full, kept = layer_name(layer.index, name), layer.originals[name]
        if layer.folded.tensors[name] is not layer.true[name]:
            kept = finite(layer.folded.tensors[name].to(self.dtype), full)
        elif kept.ndim > 1:  # norms and biases are small enough to stay exact
            kept = finite(kept.to(self.dtype), full)
        done.stored[full] = kept.cpu()
        done.effective[name] = kept.float()
        if name.removesuffix(".weight") in layer.choices:
            done.reports.append(_dense_report(full.removesuffix(".weight"), kept))

    def _round(self, layer: _Layer, part: str, choice: ModuleChoice, done: QuantizedLayer) -> None:
        name, module = f"{part}.weight", layer_name(layer.index, part)
        moments = None if layer.visit is None else layer.folded.moments(part, layer.visit.moments[part])
        learned = layer.learned if choice.method == "omniquant" else None
        result = quantize_weight(
            layer.folded.tensors[name],
            choice,
            moments,
            scale_dtype=self.dtype,
            options=self.options,
            scales=None if learned is None else learned.scales[part],
        )
        if learned is not None:
            notes = [note for note in (result.note, note_on_learning(learned)) if note]
            result = replace(result, method_used=learned.method, note="; ".join(notes))
        finite(result.scales, f"{module}.weight_scale")
        tensors = packed_tensors(module, result, choice.bits)
        done.stored.update(tensors)
        if layer.visit is not None:  # else nobody looks, and a layer in float32 is large
            done.effective[name] = result.dequantize()
        size = sum(tensor.nbytes for tensor in tensors.values())
        done.reports.append(_report(layer, part, choice, result, size))


def _report(
    layer: _Layer, part: str, choice: ModuleChoice, result: QuantizedResult, size: int
) -> ModuleReport:
    true = layer.true[f"{part}.weight"]
    quantized = layer.folded.unfolded(part, result.dequantize())
    second = None if layer.visit is None else layer.visit.moments[part].second
    notes = [result.note]
    if choice.folds and part not in layer.folded.columns:
        notes.append("no input scale was folded")
    return ModuleReport(
        module=layer_name(layer.index, part),
        choice=str(choice),
        method_used=result.method_used,
        note="; ".join(note for note in notes if note),
        bytes=size,
        squared_error=squared_error(true - quantized, None),
        squared_weight=squared_error(true, None),
        weighted_error=None if second is None else relative_error(true, quantized, second),
    )


def _dense_report(module: str, kept: Tensor) -> ModuleReport:
    return ModuleReport(
        module=module,
        choice=DENSE,
        method_used=DENSE,
        note="",
        bytes=kept.nbytes,
        squared_error=0.0,
        squared_weight=squared_error(kept.float(), None),
        weighted_error=None,
    )


def _fold_tensors(index: int, folded: FoldedLayer) -> dict[str, Tensor]:
    named = {"input_scale": folded.columns, "output_scale": folded.rows}
    return {
        f"{layer_name(index, part)}.{kind}": tensor.cpu().clone()  # readers of one input share theirs
        for kind, by_part in named.items()
        for part, tensor in by_part.items()
    }
