"""What compensators learn from: self-sampled tokens and the full-precision model's final hidden states."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from spearhead.quant.decoder import Rotary, layer_forward, rms_norm
from spearhead.quant.layers import LayerSource


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
    store: torch.device | None = None,
) -> Lesson:
    """Runs the full-precision model once; layer by layer, so that it need not fit into memory.

    Args:
        source: The teacher.
        token_ids: int64 ``(S, T)``.
        weight: ``(S, T)``; 0 leaves a token out.
        batch_size: Sequences that go through a layer at once.
        store: Where hidden states are kept; default the source's device.
    """
    place = store or source.device
    rotary = Rotary.build(source.config, token_ids.shape[1], source.device)
    shape = (*token_ids.shape, source.config.hidden_size)
    # One tensor from the first layer to the last: hidden states are most of what a calibration keeps.
    hidden = torch.empty(shape, dtype=source.dtype, device=place)
    parts = [slice(start, start + batch_size) for start in range(0, len(token_ids), batch_size)]
    with torch.no_grad():
        for rows in parts:
            hidden[rows] = source.embedding[token_ids[rows].to(source.device)]
        for index in range(source.config.layer_count):
            tensors = source.layer(index)
            for rows in parts:
                hidden[rows] = layer_forward(
                    source.config, index, tensors, hidden[rows].to(source.device), rotary
                )
        for rows in parts:
            hidden[rows] = rms_norm(
                hidden[rows].to(source.device), source.final_norm, source.config.rms_norm_eps
            )
    return Lesson(token_ids=token_ids.to(place), weight=weight.float().to(place), teacher=hidden)


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
