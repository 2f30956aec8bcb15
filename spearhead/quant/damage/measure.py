"""Quantises one module at a time and compares what comes out of the model.

The residual stream before each block is computed once; a swapped module re-runs its own block and those after
it, which costs half of whole passes. The modules of a block go through the later ones together, so that a
streamed layer is read once a block.
"""

import hashlib
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from spearhead.errors import CalibrationError
from spearhead.model.checkpoint.layout import layer_name, linear_modules
from spearhead.quant.cka import linear_cka
from spearhead.quant.damage.journal import DamageJournal, Measured
from spearhead.quant.damage.report import DAMAGE_KINDS, DamageKind, DamageReport
from spearhead.quant.decoder import LayerTensors, Rotary, layer_forward, rms_norm
from spearhead.quant.head_logits import head_logits
from spearhead.quant.layers import LayerSource
from spearhead.quant.sequences import TokenBatch

_KL_CHUNK_TOKENS = 512

Replacement = Callable[[str], Tensor]
"""Gives the dequantised 4-bit weight (N, K) of a module by its full name."""

Progress = Callable[[int, int], None]
"""Told how many modules are measured, and of how many."""

Stream = list[Tensor]
"""The residual stream, one (B, T, D) a batch."""


def measure_damage(
    source: LayerSource,
    replacement: Replacement,
    batches: Sequence[TokenBatch],
    *,
    kind: DamageKind = "cka_final",
    also: Collection[DamageKind] = ("cka_final", "cka_block"),
    modules: Collection[str] | None = None,
    skip_first: int = 1,
    journal: Path | None = None,
    identity: str = "",
    progress: Progress | None = None,
) -> DamageReport:
    """Damage of each module when it alone is quantised.

    Args:
        source: The full-precision model; float32, as bfloat16's noise is as large as the least damage.
        replacement: The quantised weights; asked for one module at a time.
        batches: Calibration tokens, some 512 to 2,048.
        kind: The measure that selects modules.
        also: Measures to report beside it. The two kinds of CKA come from the same passes; ``kl`` computes
            logits.
        modules: Which modules; default all linear ones of the decoder.
        skip_first: Tokens at the start of each sequence that do not count (attention sinks).
        journal: Finished modules are kept in this file, and not measured again.
        identity: Names the model and its quantised weights, so that a journal of others is refused.
        progress: Called after each block.

    Returns:
        Damage by module, at least 0; exactly 0 for a module that quantisation does not change.

    Raises:
        CalibrationError: Too few tokens, weights of another shape, outputs that are not finite (names the
            module), an unknown module, or a journal of another measurement.
    """
    kinds = tuple(each for each in DAMAGE_KINDS if each == kind or each in also)
    wanted = _wanted(source, modules)
    header = {
        "kinds": list(kinds),
        "tokens": _digest(batches, skip_first),
        "dtype": str(source.dtype).removeprefix("torch."),
        "identity": identity,
    }
    kept = DamageJournal(journal, header)
    with torch.no_grad():
        comparison = _Comparison(source, batches, kinds, skip_first)
        stream = comparison.embedded()
        for index in range(source.config.layer_count):
            tensors = source.layer(index)
            after = comparison.advance(index, tensors, stream)
            swapped = {
                module: comparison.advance(index, _swap(index, tensors, module, replacement), stream)
                for module in wanted
                if module.startswith(layer_name(index, "")) and module not in kept.measured
            }
            if swapped:
                kept.add(comparison.measure(index, after, swapped))
            if progress is not None:
                progress(sum(module in kept.measured for module in wanted), len(wanted))
            stream = after
    values = {each: {module: kept.measured[module][each] for module in wanted} for each in kinds}
    return DamageReport(kind=kind, values=values, token_count=comparison.token_count)


class _Comparison:
    """Runs streams through the model and compares them with the full-precision one."""

    def __init__(
        self,
        source: LayerSource,
        batches: Sequence[TokenBatch],
        kinds: Sequence[DamageKind],
        skip_first: int,
    ) -> None:
        self._source = source
        self._batches = batches
        self._kinds = kinds
        self._masks = [_counted(batch, skip_first).to(source.device) for batch in batches]
        self._rotary = Rotary.build(
            source.config, max(batch.token_ids.shape[1] for batch in batches), source.device
        )
        self.token_count = sum(int(mask.sum()) for mask in self._masks)
        self._final = None
        if "cka_final" in kinds or "kl" in kinds:
            self._final = _sound(self._final_rows(self._finish(0, [self.embedded()])[0]))

    def embedded(self) -> Stream:
        """The stream before the first block."""
        return [self._source.embedding[batch.token_ids.to(self._source.device)] for batch in self._batches]

    def advance(self, index: int, tensors: LayerTensors, stream: Stream) -> Stream:
        """The stream after a block with these tensors."""
        return [
            layer_forward(self._source.config, index, tensors, hidden, self._rotary.part(0, hidden.shape[1]))
            for hidden in stream
        ]

    def measure(self, index: int, reference: Stream, swapped: Mapping[str, Stream]) -> dict[str, Measured]:
        """Damage of modules of one block.

        Args:
            index: The block.
            reference: The full-precision stream after it.
            swapped: Module to the stream after it with that module quantised.
        """
        measured: dict[str, Measured] = {module: {} for module in swapped}
        if "cka_block" in self._kinds:
            whole = _sound(self._rows(reference))
            for module, stream in swapped.items():
                measured[module]["cka_block"] = _lost(whole, self._rows(stream), module)
        if self._final is not None:
            ends = self._finish(index + 1, list(swapped.values()))
            finals = {module: self._final_rows(end) for module, end in zip(swapped, ends, strict=True)}
            if "cka_final" in self._kinds:
                for module, rows in finals.items():
                    measured[module]["cka_final"] = _lost(self._final, rows, module)
            if "kl" in self._kinds:
                for module, value in _mean_kl(self._final, finals, self._source.head).items():
                    measured[module]["kl"] = value
        return measured

    def _finish(self, start: int, streams: list[Stream]) -> list[Stream]:
        """Streams after the last block; each later block is read once for all."""
        for index in range(start, self._source.config.layer_count):
            tensors = self._source.layer(index)
            streams = [self.advance(index, tensors, stream) for stream in streams]
        return streams

    def _final_rows(self, stream: Stream) -> Tensor:
        eps = self._source.config.rms_norm_eps
        return self._rows([rms_norm(hidden, self._source.final_norm, eps) for hidden in stream])

    def _rows(self, stream: Stream) -> Tensor:
        """The tokens that count, ``(n, D)``."""
        return torch.cat([hidden[mask] for hidden, mask in zip(stream, self._masks, strict=True)])


def _lost(whole: Tensor, rows: Tensor, module: str) -> float:
    return 1.0 - linear_cka(whole, rows, name=module)


def _mean_kl(whole: Tensor, swapped: Mapping[str, Tensor], head: Tensor) -> dict[str, float]:
    """Mean KL(full precision ‖ swapped) over tokens, by module; logits exist for one chunk at a time."""
    sums = {module: torch.zeros((), dtype=torch.float64, device=whole.device) for module in swapped}
    for start in range(0, len(whole), _KL_CHUNK_TOKENS):
        rows = slice(start, start + _KL_CHUNK_TOKENS)
        log_p = head_logits(whole[rows], head).log_softmax(-1)
        p = log_p.exp()
        for module, final in swapped.items():
            log_q = head_logits(final[rows], head).log_softmax(-1)
            sums[module] += (log_p - log_q).mul_(p).sum(-1).double().sum()
    means = {module: float(total) / len(whole) for module, total in sums.items()}
    for module, mean in means.items():
        if not math.isfinite(mean):
            raise CalibrationError(
                f"{module}: with this module quantised the KL divergence is {mean}; its weights overflow: "
                "quantise it again, or mend the checkpoint"
            )
    # Rounding may take the divergence of nearly equal distributions below 0.
    return {module: max(0.0, mean) for module, mean in means.items()}


def _sound(rows: Tensor) -> Tensor:
    if not bool(torch.isfinite(rows).all()):
        raise CalibrationError(
            "the full-precision model gives NaN or infinity on the calibration tokens in "
            f"{str(rows.dtype).removeprefix('torch.')}; use float32, or mend the checkpoint"
        )
    return rows


def _swap(index: int, tensors: LayerTensors, module: str, replacement: Replacement) -> LayerTensors:
    part = f"{module.removeprefix(layer_name(index, ''))}.weight"
    original, weight = tensors[part], replacement(module)
    if weight.shape != original.shape:
        raise CalibrationError(
            f"the quantised weight of {module} has shape {tuple(weight.shape)}, the full-precision one "
            f"{tuple(original.shape)}; they are of different models"
        )
    return {**tensors, part: weight.to(original.device, original.dtype)}


def _wanted(source: LayerSource, modules: Collection[str] | None) -> list[str]:
    known = linear_modules(source.config)
    unknown = sorted(set(modules or ()) - known.keys())
    if unknown:
        raise CalibrationError(f"the model has no linear module {unknown[0]}; it has {next(iter(known))} …")
    return [module for module in known if modules is None or module in modules]


def _counted(batch: TokenBatch, skip_first: int) -> Tensor:
    counted = batch.valid.clone()
    counted[:, :skip_first] = False
    return counted


def _digest(batches: Sequence[TokenBatch], skip_first: int) -> str:
    digest = hashlib.sha256()
    for batch in batches:
        digest.update(repr(tuple(batch.token_ids.shape)).encode())
        digest.update(batch.token_ids.cpu().numpy().tobytes())
        digest.update(_counted(batch, skip_first).cpu().numpy().tobytes())
    return digest.hexdigest()
