"""Training compensators: KL(full precision ‖ compensated) on self-sampled tokens, with early stopping."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.utils.checkpoint import checkpoint

from spearhead.errors import CalibrationError
from spearhead.quant.decoder import Linear, Rotary, layer_forward, rms_norm
from spearhead.quant.kl_loss import kl_of_hidden, token_kl
from spearhead.quant.layers import LayerSource
from spearhead.quant.lesson import Lesson, shuffled
from spearhead.quant.step_runner import eager_step, graphed_step


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingConfig:
    """How long and how fast.

    Attributes:
        steps: Updates.
        sequences_per_step: Sequences of one update.
        learning_rate: Of factors, at its peak.
        gate_learning_rate: Of gates, at its peak.
        gate_weight_decay: Pulls gates back to the identity.
        warm_up: Share of the steps in which the rate rises; then it falls along a cosine to zero.
        clip_norm: Largest norm of all gradients together.
        evaluate_every: Steps between looks at the held-out loss.
        patience: Looks without a new best after which training stops; 0 = never.
        seed: Of the order of the sequences.
        chunk_tokens: Tokens whose logits exist at once.
        recompute_layers: Keep one layer's activations at a time: slower by a third, much smaller.
    """

    steps: int = 400
    sequences_per_step: int = 16
    learning_rate: float = 5e-4
    gate_learning_rate: float = 5e-3
    gate_weight_decay: float = 0.0
    warm_up: float = 0.05
    clip_norm: float = 1.0
    evaluate_every: int = 50
    patience: int = 0
    seed: int = 0
    chunk_tokens: int = 2048
    recompute_layers: bool = False

    def rate_share(self, step: int) -> float:
        """The learning rate of a step (from 0) as a share of its peak."""
        rising = max(1, round(self.warm_up * self.steps))
        if step < rising:
            return (step + 1) / rising
        return 0.5 * (1 + math.cos(math.pi * (step - rising) / max(1, self.steps - rising)))


@dataclass(frozen=True, slots=True, kw_only=True)
class CurvePoint:
    """One look at the losses.

    Attributes:
        step: Updates so far.
        train_kl: Mean over the updates since the last look, nats a token; NaN before the first.
        held_out_kl: Nats a token.
    """

    step: int
    train_kl: float
    held_out_kl: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingResult:
    """What training reached; the parameters are those of the best look.

    Attributes:
        curve: All looks, the untrained state first.
        best: The look whose parameters were kept.
        stopped_early: Whether patience ran out.
    """

    curve: Sequence[CurvePoint]
    best: CurvePoint
    stopped_early: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterGroup:
    """Parameters that share a learning rate.

    Attributes:
        parameters: They need gradients.
        learning_rate: At its peak.
        weight_decay: Pulls them towards zero.
    """

    parameters: Sequence[Parameter]
    learning_rate: float
    weight_decay: float = 0.0


def student_hidden(
    source: LayerSource, token_ids: Tensor, linear: Linear, rotary: Rotary, *, recompute_layers: bool
) -> Tensor:
    """Final hidden states ``(B, T, D)`` with gradients to whatever ``linear`` holds."""

    def one_layer(index: int, hidden: Tensor) -> Tensor:
        return layer_forward(source.config, index, source.layer(index), hidden, rotary, linear)

    hidden = source.embedding[token_ids]
    for index in range(source.config.layer_count):
        if recompute_layers:
            hidden = checkpoint(one_layer, index, hidden, use_reentrant=False)
        else:
            hidden = one_layer(index, hidden)
    return rms_norm(hidden, source.final_norm, source.config.rms_norm_eps)


def held_out_kl(
    source: LayerSource, linear: Linear, teacher_head: Tensor, lesson: Lesson, *, batch_size: int
) -> Tensor:
    """KL of each held-out sequence, float64 ``(S,)``, nats a token; on the CPU."""
    rotary = Rotary.build(source.config, lesson.token_ids.shape[1], source.device)
    means = []
    with torch.no_grad():
        for indices in torch.split(torch.arange(len(lesson.token_ids)), batch_size):
            part = lesson.rows(indices.to(lesson.token_ids.device)).to(source.device)
            hidden = student_hidden(source, part.token_ids, linear, rotary, recompute_layers=False)
            kl = token_kl(part.teacher.flatten(0, 1), hidden.flatten(0, 1), teacher_head, source.head)
            kl = kl.view_as(part.weight).double() * part.weight
            means.append(kl.sum(1) / part.weight.sum(1).clamp(min=1))
    return torch.cat(means).cpu()


def train(
    source: LayerSource,
    linear: Linear,
    groups: Sequence[ParameterGroup],
    teacher_head: Tensor,
    lesson: Lesson,
    held_out: Lesson,
    config: TrainingConfig,
    progress: Callable[[CurvePoint], None] | None = None,
) -> TrainingResult:
    """Minimises the KL divergence and keeps the parameters that do best on held-out sequences.

    On a GPU the whole update is one CUDA graph.

    Args:
        source: The student's frozen weights.
        linear: Adds what is trained.
        groups: What is trained.
        teacher_head: ``(V, D)``.
        lesson: Training sequences.
        held_out: Sequences that only decide.
        config: How long and how fast.
        progress: Called at each look.

    Raises:
        CalibrationError: The loss is not finite.
    """
    parameters = [parameter for group in groups for parameter in group.parameters]
    rotary = Rotary.build(source.config, lesson.token_ids.shape[1], source.device)

    def loss_of(batch: Lesson) -> Tensor:
        hidden = student_hidden(
            source, batch.token_ids, linear, rotary, recompute_layers=config.recompute_layers
        )
        return kl_of_hidden(
            batch.teacher.flatten(0, 1),
            hidden.flatten(0, 1),
            teacher_head,
            source.head,
            batch.weight.flatten(),
            chunk_tokens=config.chunk_tokens,
        )

    def look(step: int, losses: list[Tensor]) -> CurvePoint:
        kl = held_out_kl(source, linear, teacher_head, held_out, batch_size=config.sequences_per_step)
        train_kl = float(torch.stack(losses).mean()) if losses else math.nan
        point = CurvePoint(step=step, train_kl=train_kl, held_out_kl=float(kl.mean()))
        if not math.isfinite(point.held_out_kl) or (losses and not math.isfinite(train_kl)):
            raise CalibrationError(
                f"the loss is not finite at step {step} (train {train_kl}, held out {point.held_out_kl}); "
                f"lower the learning rate ({config.learning_rate:g}) or compute in float32"
            )
        if progress is not None:
            progress(point)
        return point

    batches = shuffled(len(lesson.token_ids), config.sequences_per_step, config.steps, config.seed)
    curve = [look(0, [])]
    best, kept = curve[0], _snapshot(parameters)
    runner = graphed_step if source.device.type == "cuda" else eager_step
    place = lesson.token_ids.device
    first = lesson.rows(batches[0].to(place)).to(source.device) if batches else None
    update = runner(loss_of, groups, config.clip_norm, first) if first is not None else None
    losses: list[Tensor] = []
    worse = 0
    for step, indices in enumerate(batches):
        assert update is not None
        losses.append(update(lesson.rows(indices.to(place)).to(source.device), config.rate_share(step)))
        if (step + 1) % config.evaluate_every and step + 1 < config.steps:
            continue
        curve.append(look(step + 1, losses))
        losses = []
        if curve[-1].held_out_kl < best.held_out_kl:
            best, kept, worse = curve[-1], _snapshot(parameters), 0
        else:
            worse += 1
        if config.patience and worse >= config.patience:
            break
    _restore(parameters, kept)
    return TrainingResult(
        curve=tuple(curve), best=best, stopped_early=bool(config.patience and worse >= config.patience)
    )


def _snapshot(parameters: Sequence[Parameter]) -> list[Tensor]:
    return [parameter.detach().clone() for parameter in parameters]


def _restore(parameters: Sequence[Parameter], values: Sequence[Tensor]) -> None:
    with torch.no_grad():
        for parameter, value in zip(parameters, values, strict=True):
            parameter.copy_(value)
