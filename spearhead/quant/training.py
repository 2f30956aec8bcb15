"""Training compensators: KL(full precision ‖ compensated) on self-sampled tokens, with early stopping."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.utils.checkpoint import checkpoint

from spearhead.errors import CalibrationError
from spearhead.quant.decoder import Linear, Rotary, layer_forward, rms_norm
from spearhead.quant.kl_loss import kl_of_hidden, token_kl
from spearhead.quant.layers import LayerSource, ResidentLayers
from spearhead.quant.lesson import Lesson, shuffled
from spearhead.quant.step_runner import Stepper
from spearhead.quant.student import Student
from spearhead.quant.training_journal import CurvePoint, TrainingState, load_state, save_state

_LOOK_TOKENS = 1 << 15


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingConfig:
    """How long and how fast.

    Attributes:
        steps: Updates.
        sequences_per_step: Sequences of one update.
        learning_rate: Of factors, at its peak, as a share of each component's size at the start; 0 beside
            gates that learn = factors are frozen.
        gate_learning_rate: Of gates, at its peak; 0 = gates are frozen.
        gate_weight_decay: Pulls gates back to the identity.
        warm_up: Share of the steps in which the rate rises; then it falls along a cosine to zero.
        clip_norm: Largest norm of all gradients together.
        evaluate_every: Steps between looks at the held-out loss.
        patience: Looks without a new best after which training stops; 0 = never.
        seed: Of the order of the sequences.
        chunk_tokens: Tokens whose logits exist at once.
        recompute_layers: Keep one layer's activations at a time: slower by a third, much smaller. Always done
            when layers are streamed, since activations would hold on to their weights.
    """

    steps: int = 400
    sequences_per_step: int = 16
    learning_rate: float = 0.02
    gate_learning_rate: float = 5e-3
    gate_weight_decay: float = 0.0
    warm_up: float = 0.05
    clip_norm: float = 1.0
    evaluate_every: int = 50
    patience: int = 0
    seed: int = 0
    chunk_tokens: int = 2048
    recompute_layers: bool = False

    def __post_init__(self) -> None:
        limits = {"steps": 0, "sequences_per_step": 1, "evaluate_every": 1, "patience": 0, "chunk_tokens": 1}
        for name, least in limits.items():
            self._require(name, getattr(self, name) >= least, f"at least {least}")
        for name in ("learning_rate", "gate_learning_rate", "gate_weight_decay"):
            self._require(name, 0 <= getattr(self, name) < math.inf, "finite and at least 0")
        self._require("warm_up", 0 <= self.warm_up <= 1, "0 to 1")
        self._require("clip_norm", self.clip_norm > 0, "positive")

    def _require(self, name: str, holds: bool, limit: str) -> None:
        if not holds:
            raise CalibrationError(f"training: {name} is {getattr(self, name)}; it must be {limit}")

    def rate_share(self, step: int) -> float:
        """The learning rate of a step (from 0) as a share of its peak."""
        rising = max(1, round(self.warm_up * self.steps))
        if step < rising:
            return (step + 1) / rising
        return 0.5 * (1 + math.cos(math.pi * (step - rising) / max(1, self.steps - rising)))


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingResult:
    """What training reached; the student's parameters are those of the best look.

    Attributes:
        curve: All looks, the untrained state first.
        best: The look whose parameters were kept.
        stopped_early: Whether patience ran out.
    """

    curve: Sequence[CurvePoint]
    best: CurvePoint
    stopped_early: bool


def train(
    source: LayerSource,
    student: Student,
    teacher_head: Tensor,
    lesson: Lesson,
    held_out: Lesson,
    config: TrainingConfig,
    *,
    journal: Path | None = None,
    progress: Callable[[int, CurvePoint | None], None] | None = None,
) -> TrainingResult:
    """Minimises the KL divergence and keeps the parameters that do best on held-out sequences.

    On a GPU the whole update is one CUDA graph, if all layers are in memory.

    Args:
        source: The student's frozen weights.
        student: What is trained.
        teacher_head: ``(V, D)``, in the dtype of the lesson.
        lesson: Training sequences.
        held_out: Sequences that only decide.
        config: How long and how fast.
        journal: Written at each look; if it exists, training goes on from there. It belongs to these
            arguments: give another name when they change.
        progress: Called after each step with the number of steps so far, and the look if there was one.

    Raises:
        CalibrationError: The loss is not finite, the journal cannot be read or written, or ``source`` is in
            float16.
    """
    if source.dtype == torch.float16:
        raise CalibrationError(
            "training in float16 learns nothing: gradients are smaller than its smallest number; use "
            "bfloat16 or float32"
        )
    run = _Run(source, student, teacher_head, lesson, held_out, config)
    state = run.begin(journal)
    report = progress or (lambda _step, _point: None)
    batches = shuffled(len(lesson.token_ids), config.sequences_per_step, config.steps, config.seed)
    losses: list[Tensor] = []
    for step in range(state.step, config.steps):
        if run.out_of_patience(state):
            break
        losses.append(run.update(batches[step], config.rate_share(step)))
        if (step + 1) % config.evaluate_every and step + 1 < config.steps:
            report(step + 1, None)
            continue
        state = run.look(state, step + 1, losses)
        losses = []
        if journal is not None:
            save_state(journal, state)
        report(step + 1, state.curve[-1])
    run.keep(state)
    return TrainingResult(curve=state.curve, best=state.best, stopped_early=run.out_of_patience(state))


def student_hidden(
    source: LayerSource, token_ids: Tensor, linear: Linear, rotary: Rotary, *, recompute_layers: bool
) -> Tensor:
    """Final hidden states ``(B, T, D)`` with gradients to whatever ``linear`` holds."""

    def one_layer(index: int, hidden: Tensor) -> Tensor:
        return layer_forward(source.config, index, source.layer(index), hidden, rotary, linear)

    hidden = source.embedding[token_ids]
    for index in range(source.config.layer_count):
        if recompute_layers:
            # A layer draws no random numbers, and their state cannot be read while a graph is captured.
            hidden = checkpoint(one_layer, index, hidden, use_reentrant=False, preserve_rng_state=False)
        else:
            hidden = one_layer(index, hidden)
    return rms_norm(hidden, source.final_norm, source.config.rms_norm_eps)


def sequence_kl(
    source: LayerSource,
    linear: Linear,
    teacher_head: Tensor,
    lesson: Lesson,
    *,
    batch_size: int,
    chunk_tokens: int = 512,
) -> Tensor:
    """Mean KL of each sequence, float64 ``(S,)``, nats a token; on the CPU.

    Args:
        source: The layers.
        linear: Computes their projections.
        teacher_head: ``(V, D)``, in the dtype of the lesson.
        lesson: The sequences.
        batch_size: Sequences that go through a layer at once.
        chunk_tokens: Tokens whose logits exist at once.
    """
    rotary = Rotary.build(source.config, lesson.token_ids.shape[1], source.device)
    means = []
    with torch.no_grad():
        for indices in torch.split(torch.arange(len(lesson.token_ids)), batch_size):
            part = lesson.rows(indices.to(lesson.token_ids.device)).to(source.device)
            hidden = student_hidden(source, part.token_ids, linear, rotary, recompute_layers=False)
            kl = token_kl(
                part.teacher.flatten(0, 1),
                hidden.flatten(0, 1),
                teacher_head,
                source.head,
                chunk_tokens=chunk_tokens,
            )
            kl = kl.view_as(part.weight).double() * part.weight
            means.append(kl.sum(1) / part.weight.sum(1).clamp(min=1))
    return torch.cat(means).cpu()


_Group = tuple[Sequence[Parameter], float, float]
"""Parameters, their peak learning rate and weight decay."""


class _Run:
    """One training run: the model, the data and the optimiser."""

    def __init__(
        self,
        source: LayerSource,
        student: Student,
        teacher_head: Tensor,
        lesson: Lesson,
        held_out: Lesson,
        config: TrainingConfig,
    ) -> None:
        self._source, self._student, self._teacher_head = source, student, teacher_head
        self._lesson, self._held_out, self._config = lesson, held_out, config
        self._resident = isinstance(source, ResidentLayers)
        length = lesson.token_ids.shape[1]
        self._rotary = Rotary.build(source.config, length, source.device)
        # A look keeps no activations, and on a GPU small batches would wait for launches.
        tokens = _LOOK_TOKENS if source.device.type == "cuda" else 0
        self._look_rows = max(config.sequences_per_step, tokens // length)
        self._parameters: list[Parameter] = [*student.factor_parameters(), *student.gate_parameters()]
        moving = self._freeze_what_stands_still()
        self._stepper = Stepper(self._loss, self._optimizer(moving), config.clip_norm)

    def begin(self, journal: Path | None) -> TrainingState:
        """The state in the journal, or the untrained one after a first look."""
        if journal is not None and journal.exists():
            state = load_state(journal, self._parameters)
            self._put(state.parameters)
            self._stepper.load(state.averages)
            return state
        empty = TrainingState(step=0, curve=(), parameters=(), averages=(), best_parameters=())
        return self.look(empty, 0, [])

    def update(self, indices: Tensor, rate_share: float) -> Tensor:
        batch = self._lesson.rows(indices.to(self._lesson.token_ids.device)).to(self._source.device)
        return self._stepper(batch, rate_share)

    def look(self, state: TrainingState, step: int, losses: Sequence[Tensor]) -> TrainingState:
        """The state after ``step`` updates."""
        config = self._config
        linear = self._student.linear(self._source.dtype)
        held_out_kl = float(
            sequence_kl(
                self._source,
                linear,
                self._teacher_head,
                self._held_out,
                batch_size=self._look_rows,
                chunk_tokens=config.chunk_tokens,
            ).mean()
        )
        train_kl = float(torch.stack(list(losses)).mean()) if losses else None
        if not math.isfinite(held_out_kl + (train_kl or 0.0)):
            raise CalibrationError(
                f"the loss is not finite at step {step} (train {train_kl}, held out {held_out_kl}); lower "
                f"the learning rate ({config.learning_rate:g}) or compute in float32"
            )
        point = CurvePoint(step=step, train_kl=train_kl, held_out_kl=held_out_kl)
        now = tuple(parameter.detach().clone() for parameter in self._parameters)
        better = not state.curve or held_out_kl < state.best.held_out_kl
        return TrainingState(
            step=step,
            curve=(*state.curve, point),
            parameters=now,
            averages=self._stepper.state(),
            best_parameters=now if better else state.best_parameters,
        )

    def out_of_patience(self, state: TrainingState) -> bool:
        """Whether enough looks have passed without a new best."""
        since = len(state.curve) - 1 - state.curve.index(state.best)
        return bool(self._config.patience) and since >= self._config.patience

    def keep(self, state: TrainingState) -> None:
        """Leaves the student at its best."""
        self._put(state.best_parameters)

    def _put(self, values: Sequence[Tensor]) -> None:
        with torch.no_grad():
            for parameter, value in zip(self._parameters, values, strict=True):
                parameter.copy_(value)

    def _loss(self, batch: Lesson) -> Tensor:
        hidden = student_hidden(
            self._source,
            batch.token_ids,
            self._student.linear(self._source.dtype),
            self._rotary,
            recompute_layers=self._config.recompute_layers or not self._resident,
        )
        return kl_of_hidden(
            batch.teacher.flatten(0, 1),
            hidden.flatten(0, 1),
            self._teacher_head,
            self._source.head,
            batch.weight.flatten(),
            chunk_tokens=self._config.chunk_tokens,
        )

    def _freeze_what_stands_still(self) -> list[_Group]:
        """Groups that move; the others' gradients would only take from them what the norm is clipped to.

        Where every rate is 0, all stay: their updates change nothing.
        """
        config, student = self._config, self._student
        groups: list[_Group] = [(student.factor_parameters(), config.learning_rate, 0.0)]
        if gates := student.gate_parameters():
            groups.append((gates, config.gate_learning_rate, config.gate_weight_decay))
        moving = [group for group in groups if group[1] > 0] or groups
        for parameters, rate, _ in groups:
            for parameter in parameters:
                parameter.requires_grad_(rate > 0 or len(moving) == len(groups))
        return moving

    def _optimizer(self, groups: Sequence[_Group]) -> torch.optim.AdamW:
        # A graph would go on reading streamed layers where they no longer are.
        graphed = self._source.device.type == "cuda" and self._resident
        settings = [
            {
                "params": list(parameters),
                # A graph reads its rates from device memory.
                "lr": torch.tensor(rate, device=self._source.device) if graphed else rate,
                "weight_decay": decay,
                "peak": rate,
            }
            for parameters, rate, decay in groups
        ]
        return torch.optim.AdamW(settings, betas=(0.9, 0.95), capturable=graphed, fused=graphed or None)
