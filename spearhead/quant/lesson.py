"""What compensators learn from: self-sampled tokens and the full-precision model's final hidden states."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from spearhead.errors import CalibrationError
from spearhead.quant.decoder import Rotary, layer_forward, rms_norm
from spearhead.quant.layers import LayerSource, ResidentLayers, final_hidden


@dataclass(frozen=True, slots=True, kw_only=True)
class Lesson:
    """S sequences of T tokens, with the teacher's answer.

    Attributes:
        token_ids: int64 ``(S, T)``.
        weight: float32 ``(S, T)``; 0 on tokens that do not count.
        teacher: ``(S, T, D)``, after the final norm.
    """

    token_ids: Tensor
    weight: Tensor
    teacher: Tensor

    def rows(self, indices: Tensor) -> "Lesson":
        """Some of the sequences, on the device of ``token_ids``."""
        return Lesson(
            token_ids=self.token_ids[indices], weight=self.weight[indices], teacher=self.teacher[indices]
        )

    def to(self, device: torch.device) -> "Lesson":
        """The same on another device."""
        return Lesson(
            token_ids=self.token_ids.to(device),
            weight=self.weight.to(device),
            teacher=self.teacher.to(device),
        )


def prepare_lesson(
    source: LayerSource,
    token_ids: Tensor,
    weight: Tensor,
    *,
    batch_size: int,
    store: torch.device | Path | None = None,
) -> Lesson:
    """Runs the full-precision model once; layer by layer where it does not fit into memory.

    Args:
        source: The teacher.
        token_ids: int64 ``(S, T)``.
        weight: ``(S, T)``; 0 leaves a token out.
        batch_size: Sequences that go through a layer at once.
        store: Where hidden states are kept, a device or a new file; default the source's device.

    Raises:
        CalibrationError: The file cannot be written, such as on a full disk.
    """
    # One tensor from the first layer to the last: hidden states are most of what a calibration keeps.
    shape = torch.Size((*token_ids.shape, source.config.hidden_size))
    if isinstance(store, Path):
        place, hidden = torch.device("cpu"), _mapped(store, shape, source.dtype)
    else:
        place = store or source.device
        hidden = torch.empty(shape, dtype=source.dtype, device=place)
    rotary = Rotary.build(source.config, token_ids.shape[1], source.device)
    parts = [slice(start, start + batch_size) for start in range(0, len(token_ids), batch_size)]
    with torch.no_grad():
        if isinstance(source, ResidentLayers):
            for rows in parts:
                hidden[rows] = final_hidden(source, token_ids[rows], rotary=rotary)
        else:
            _layer_by_layer(source, token_ids, hidden, parts, rotary)
    return Lesson(token_ids=token_ids.to(place), weight=weight.float().to(place), teacher=hidden)


def _layer_by_layer(
    source: LayerSource, token_ids: Tensor, hidden: Tensor, parts: Sequence[slice], rotary: Rotary
) -> None:
    """Fills ``hidden`` (S, T, D), reading each layer once: the same as :func:`final_hidden` of each part."""
    for rows in parts:
        hidden[rows] = source.embedding[token_ids[rows].to(source.device)]
    for index in range(source.config.layer_count):
        tensors = source.layer(index)
        for rows in parts:
            before = hidden[rows].to(source.device)
            hidden[rows] = layer_forward(source.config, index, tensors, before, rotary)
    for rows in parts:
        before = hidden[rows].to(source.device)
        hidden[rows] = rms_norm(before, source.final_norm, source.config.rms_norm_eps)


def _mapped(path: Path, shape: torch.Size, dtype: torch.dtype) -> Tensor:
    """A tensor in a nameless file: pages come and go as the system likes, the file goes with the tensor."""
    size = shape.numel() * dtype.itemsize
    try:
        with path.open("wb") as file:
            os.posix_fallocate(
                file.fileno(), 0, size
            )  # a page that finds no room later would end the process
        return torch.from_file(str(path), shared=True, size=shape.numel(), dtype=dtype).view(shape)
    except OSError as error:
        raise CalibrationError(
            f"{path} cannot be written: {error}. Hidden states take {size / 1e6:.0f} MB there, as they do "
            "not fit into memory; make room and give the same command again, or another disk with --work"
        ) from error
    finally:
        path.unlink(missing_ok=True)


def token_weights(document_starts: Tensor, skip_first: int) -> Tensor:
    """1 where a token counts: not within ``skip_first`` tokens of the start of its sequence or document.

    Args:
        document_starts: bool ``(S, T)``; true on the first token of each document in a sequence.
        skip_first: At least 1: nothing is known before the first token.

    Returns:
        float32 ``(S, T)``.
    """
    starts = document_starts.clone()
    starts[:, 0] = True
    blocked = torch.zeros_like(starts)
    for offset in range(min(skip_first, starts.shape[1])):
        blocked[:, offset:] |= starts[:, : starts.shape[1] - offset]
    return (~blocked).float()


def shuffled(count: int, batch_size: int, steps: int, seed: int) -> Sequence[Tensor]:
    """Indices of the sequences of each step: whole epochs in random order, one after the other."""
    generator = torch.Generator().manual_seed(seed)
    order = torch.empty(0, dtype=torch.int64)
    chosen = []
    for _ in range(steps):
        while len(order) < batch_size:
            order = torch.cat((order, torch.randperm(count, generator=generator)))
        chosen.append(order[:batch_size])
        order = order[batch_size:]
    return chosen
