import weakref
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from kernels.compensator import compensate
from spearhead.errors import CalibrationError
from spearhead.model.checkpoint import open_checkpoint
from spearhead.model.checkpoint.compensator_files import StoredCompensator
from spearhead.model.checkpoint.factor_codec import FactorBits, encode_factor
from spearhead.model.checkpoint.layout import linear_modules
from spearhead.model.quantization import QuantizationScheme, dequantize, rtn
from spearhead.model.weights import Gate
from spearhead.quant.decoder import LayerTensors
from spearhead.quant.factor_precision import round_factor
from spearhead.quant.layers import ResidentLayers, StreamedLayers, final_hidden
from spearhead.quant.lesson import Lesson, prepare_lesson, shuffled, token_weights
from spearhead.quant.low_rank import scaled_svd
from spearhead.quant.student import Factors, Student, identity_gate
from spearhead.quant.training import TrainingConfig, TrainingResult, train
from spearhead.quant.training_journal import CurvePoint

CPU = torch.device("cpu")
CHANNEL = QuantizationScheme.parse("channel")
MODULES = {"model.layers.0.mlp.down_proj": (64, 96), "model.layers.1.self_attn.q_proj": (64, 64)}
QUICK = TrainingConfig(steps=12, sequences_per_step=8, evaluate_every=4, learning_rate=3e-3)


class Classroom:
    """A full-precision teacher, its 4-bit student, and tokens."""

    def __init__(self, folder: Path) -> None:
        checkpoint = open_checkpoint(str(folder))
        self.teacher = ResidentLayers(StreamedLayers(checkpoint, dtype=torch.float32, device=CPU))
        self.student = ResidentLayers(
            StreamedLayers(
                checkpoint,
                dtype=torch.float32,
                device=CPU,
                replace=lambda _, weight: dequantize(*rtn(weight, CHANNEL, torch.float32)),
            )
        )
        generator = torch.Generator().manual_seed(5)
        ids = torch.randint(3, 300, (76, 24), generator=generator)
        weight = token_weights(torch.zeros_like(ids, dtype=torch.bool), 1)
        self.lesson = prepare_lesson(self.teacher, ids[:64], weight[:64], batch_size=16)
        self.held_out = prepare_lesson(self.teacher, ids[64:], weight[64:], batch_size=16)

    def closed_form(self, bits: FactorBits) -> Student:
        made = {}
        for module in linear_modules(self.teacher.config):
            layer, _, part = module.removeprefix("model.layers.").partition(".")
            full, rounded = (m.layer(int(layer))[f"{part}.weight"] for m in (self.teacher, self.student))
            best = scaled_svd(full - rounded, None, 8)
            made[module] = Factors(a=best.a, b=best.b)
        return Student(made, bits, CPU)

    def train(self, student: Student, config: TrainingConfig, **extra: Any) -> TrainingResult:
        return train(self.student, student, self.teacher.head, self.lesson, self.held_out, config, **extra)


@pytest.fixture
def classroom(tiny_checkpoint: Callable[..., Path]) -> Classroom:
    return Classroom(tiny_checkpoint("llama"))


def small(
    *, bits: FactorBits = 16, gated: bool = False, rank: int = 4, device: torch.device = CPU
) -> Student:
    generator = torch.Generator().manual_seed(2)
    made = {}
    for module, (outputs, inputs) in MODULES.items():
        made[module] = Factors(
            a=0.1 * torch.randn(rank, inputs, generator=generator),
            b=0.01 * torch.randn(outputs, rank, generator=generator),
            gate=identity_gate(rank, seed=0) if gated else None,
        )
    return Student(made, bits, device)


@pytest.mark.parametrize("bits", [16, 8, 4])
def test_training_lowers_the_held_out_loss_and_keeps_its_best_state(
    classroom: Classroom, bits: FactorBits
) -> None:
    student = classroom.closed_form(bits)
    result = classroom.train(student, replace(QUICK, steps=48, evaluate_every=12))
    assert [point.step for point in result.curve] == [0, 12, 24, 36, 48]
    assert result.best.held_out_kl == min(point.held_out_kl for point in result.curve)
    assert result.best.held_out_kl < 0.99 * result.curve[0].held_out_kl
    assert result.curve[-1].train_kl < 0.97 * result.curve[1].train_kl
    again = classroom.train(student, replace(QUICK, steps=0))
    assert again.curve[0].held_out_kl == pytest.approx(result.best.held_out_kl, rel=1e-6)


def test_training_is_reproducible_and_depends_on_its_seed(classroom: Classroom) -> None:
    first, again = (classroom.train(small(), QUICK) for _ in range(2))
    other = classroom.train(small(), replace(QUICK, seed=1))
    assert first.curve[-1] == again.curve[-1]
    assert first.curve[-1].train_kl != other.curve[-1].train_kl


def test_recomputing_layers_changes_nothing(classroom: Classroom) -> None:
    plain, recomputed = (
        classroom.train(small(), replace(QUICK, recompute_layers=recompute)) for recompute in (False, True)
    )
    assert plain.best.held_out_kl == pytest.approx(recomputed.best.held_out_kl, rel=1e-5)


class Counted(StreamedLayers):
    """Knows the most layers that were in memory at once."""

    def __init__(self, folder: Path) -> None:
        super().__init__(
            open_checkpoint(str(folder)),
            dtype=torch.float32,
            device=CPU,
            replace=lambda _, weight: dequantize(*rtn(weight, CHANNEL, torch.float32)),
        )
        self.given: list[weakref.ref[torch.Tensor]] = []
        self.most = 0

    def layer(self, index: int) -> LayerTensors:
        tensors = super().layer(index)
        self.given.append(weakref.ref(tensors["mlp.down_proj.weight"]))
        self.most = max(self.most, sum(one() is not None for one in self.given))
        return tensors


def test_training_over_streamed_layers_holds_one_at_a_time(tiny_checkpoint: Callable[..., Path]) -> None:
    folder = tiny_checkpoint("llama", num_hidden_layers=5)
    classroom, streamed = Classroom(folder), Counted(folder)
    expected = classroom.train(small(), QUICK)
    found = train(streamed, small(), classroom.teacher.head, classroom.lesson, classroom.held_out, QUICK)
    assert found.best.held_out_kl == pytest.approx(expected.best.held_out_kl, rel=1e-5)
    assert streamed.most <= 2  # the one that comes and the one that goes


class LogitRows(TorchDispatchMode):
    """Knows the most rows of logits that one softmax took."""

    most = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten._log_softmax.default:
            self.most = max(self.most, args[0].shape[0])
        return func(*args, **(kwargs or {}))


def test_looks_and_updates_keep_to_the_tokens_whose_logits_may_exist(classroom: Classroom) -> None:
    with LogitRows() as rows:
        classroom.train(small(), replace(QUICK, steps=1, chunk_tokens=7))
    assert rows.most == 7


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device: no update was captured")
@pytest.mark.parametrize(("resident", "recompute"), [(True, False), (True, True), (False, False)])
def test_a_gpu_trains_as_the_processor_does(
    tiny_checkpoint: Callable[..., Path], resident: bool, recompute: bool
) -> None:
    folder, gpu = tiny_checkpoint("llama"), torch.device("cuda")
    classroom = Classroom(folder)
    expected = classroom.train(small(gated=True), QUICK)
    streamed = StreamedLayers(
        open_checkpoint(str(folder)),
        dtype=torch.float32,
        device=gpu,
        replace=lambda _, weight: dequantize(*rtn(weight, CHANNEL, torch.float32)),
    )
    found = train(
        ResidentLayers(streamed) if resident else streamed,
        small(gated=True, device=gpu),
        classroom.teacher.head.to(gpu),
        classroom.lesson,
        classroom.held_out,
        replace(QUICK, recompute_layers=recompute),
    )
    for one, other in zip(found.curve, expected.curve, strict=True):
        assert one.held_out_kl == pytest.approx(other.held_out_kl, rel=1e-2)


def test_a_fresh_gate_is_the_identity_and_learns(classroom: Classroom) -> None:
    static, gated = small(), small(gated=True)
    tokens = classroom.lesson.token_ids[:2]
    # Zero components fill ranks up to a multiple of eight in one of the two sums.
    torch.testing.assert_close(
        final_hidden(classroom.student, tokens, static.linear(torch.float32)),
        final_hidden(classroom.student, tokens, gated.linear(torch.float32)),
        rtol=1e-5,
        atol=1e-5,
    )
    classroom.train(gated, QUICK)
    for factors in gated.trained().values():
        assert factors.gate is not None
        assert all(float(part.abs().max()) > 0 for part in factors.gate)


@pytest.mark.parametrize(
    ("field", "value", "limit"),
    [
        ("steps", -1, "at least 0"),
        ("learning_rate", -1e-3, "finite and at least 0"),
        ("gate_learning_rate", float("nan"), "finite and at least 0"),
        ("gate_weight_decay", float("inf"), "finite and at least 0"),
        ("warm_up", 1.5, "0 to 1"),
        ("clip_norm", 0.0, "positive"),
    ],
)
def test_a_training_that_makes_no_sense_is_refused(field: str, value: float, limit: str) -> None:
    with pytest.raises(CalibrationError, match=f"training: {field} is {value}; it must be {limit}"):
        replace(QUICK, **{field: value})


def test_float16_whose_gradients_vanish_is_refused(
    classroom: Classroom, tiny_checkpoint: Callable[..., Path]
) -> None:
    checkpoint = open_checkpoint(str(tiny_checkpoint("llama")))
    half = StreamedLayers(checkpoint, dtype=torch.float16, device=CPU)
    with pytest.raises(CalibrationError, match="training in float16 learns nothing"):
        train(half, small(), half.head, classroom.lesson, classroom.held_out, QUICK)


def test_patience_ends_training_that_gets_worse(classroom: Classroom) -> None:
    wild = replace(QUICK, learning_rate=1.0, clip_norm=1e9, steps=40, patience=2)
    result = classroom.train(small(), wild)
    assert result.stopped_early
    assert len(result.curve) == 3
    assert result.best == result.curve[0]


def test_a_loss_that_is_not_finite_is_an_error(classroom: Classroom) -> None:
    student = small()
    with torch.no_grad():
        student.factor_parameters()[0][0, 0] = float("nan")
    with pytest.raises(CalibrationError, match="not finite at step 0"):
        classroom.train(student, QUICK)


@pytest.mark.parametrize("still", ["factors", "gates"])
def test_what_has_no_rate_takes_no_gradient(classroom: Classroom, still: str) -> None:
    start, student = small(gated=True).trained(), small(gated=True)
    parts = {"factors": student.factor_parameters(), "gates": student.gate_parameters()}
    rate = {"factors": "learning_rate", "gates": "gate_learning_rate"}[still]
    classroom.train(student, replace(QUICK, **{rate: 0.0}))
    for name, parameters in parts.items():
        assert all((parameter.grad is None) == (name == still) for parameter in parameters)
    for module, now in student.trained().items():
        assert now.gate is not None
        assert torch.allclose(now.a, start[module].a, rtol=1e-6) == (still == "factors")
        assert bool(now.gate[2].any()) == (still == "factors")
    classroom.train(student, QUICK)  # with a rate it learns again
    assert all(parameter.grad is not None for parameter in parts[still])


def test_training_without_any_rate_changes_nothing(classroom: Classroom) -> None:
    result = classroom.train(small(gated=True), replace(QUICK, learning_rate=0.0, gate_learning_rate=0.0))
    assert len({point.held_out_kl for point in result.curve}) == 1


@pytest.mark.parametrize("frozen", [{}, {"learning_rate": 0.0}, {"gate_learning_rate": 0.0}])
def test_a_killed_run_goes_on_as_if_nothing_had_happened(
    classroom: Classroom, tmp_path: Path, frozen: dict[str, float]
) -> None:
    config = replace(QUICK, **frozen)

    class Killed(Exception):
        pass

    def kill(step: int, point: CurvePoint | None) -> None:
        if step == 9:
            raise Killed

    whole, journal = small(gated=True), tmp_path / "work" / "training.safetensors"
    expected = classroom.train(whole, config)
    with pytest.raises(Killed):
        classroom.train(small(gated=True), config, journal=journal, progress=kill)
    resumed = small(gated=True)
    steps: list[int] = []
    found = classroom.train(resumed, config, journal=journal, progress=lambda step, point: steps.append(step))
    assert steps == [9, 10, 11, 12]
    assert found == expected
    for module, factors in whole.trained().items():
        assert torch.equal(factors.a, resumed.trained()[module].a)
        assert factors.gate is not None and torch.equal(factors.gate[2], resumed.trained()[module].gate[2])
    journal.write_bytes(b"rubbish")
    with pytest.raises(CalibrationError, match="no state of a training run"):
        classroom.train(small(gated=True), config, journal=journal)
    classroom.train(small(gated=True), config, journal=tmp_path / "other")
    with pytest.raises(CalibrationError, match="other shapes"):
        classroom.train(small(rank=12, gated=True), config, journal=tmp_path / "other")


def test_a_disk_that_refuses_the_journal_is_an_error(classroom: Classroom, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CalibrationError, match="cannot be written"):
        classroom.train(small(), QUICK, journal=tmp_path / "file" / "journal")


@pytest.mark.parametrize("gated", [False, True])
def test_the_trained_form_is_the_served_form(gated: bool) -> None:
    module, student = "model.layers.0.mlp.down_proj", small(bits=8, gated=gated)
    with torch.no_grad():
        for parameter in student.gate_parameters():
            parameter.normal_(generator=torch.Generator().manual_seed(3))
    x = 20 * torch.randn(5, 96, generator=torch.Generator().manual_seed(4))
    trained = student.trained()[module]
    stored = StoredCompensator(
        a=encode_factor(trained.a, bits=8),
        b=encode_factor(trained.b.T, bits=8),
        gate=None
        if trained.gate is None
        else Gate(**dict(zip(("w1", "b1", "w2", "b2"), trained.gate, strict=True))),
    ).decode()
    served = compensate(x, stored.a, stored.b, trained.gate)
    silent = student.linear(torch.float32)(module, x, torch.zeros(64, 96), None)
    torch.testing.assert_close(silent, served, rtol=1e-5, atol=1e-6)
    assert (trained.gate is not None) == gated


@pytest.mark.parametrize(("bits", "levels"), [(8, 255), (4, 15)])
def test_rounded_factors_have_few_levels_a_component_and_full_gradients(bits: int, levels: int) -> None:
    factor = torch.randn(3, 4000, generator=torch.Generator().manual_seed(0), requires_grad=True)
    rounded = round_factor(factor, bits)  # type: ignore[arg-type]
    for row in rounded.detach():
        assert len(row.unique()) <= levels
    peaks = factor.detach().abs().amax(1, keepdim=True)
    # Half a step, and the scale itself is rounded to bfloat16.
    assert bool(((rounded - factor).detach().abs() <= peaks * (1.05 / (levels - 1) + 2**-8)).all())
    (gradient,) = torch.autograd.grad(rounded.sum(), factor)
    assert torch.equal(gradient, torch.ones_like(factor))


def test_starts_of_documents_do_not_count() -> None:
    starts = torch.zeros(2, 8, dtype=torch.bool)
    starts[1, 4] = True
    assert token_weights(starts, 2).tolist() == [[0, 0, 1, 1, 1, 1, 1, 1], [0, 0, 1, 1, 0, 0, 1, 1]]


def test_more_tokens_to_skip_than_there_are_leave_none() -> None:
    assert token_weights(torch.zeros(1, 4, dtype=torch.bool), 6).tolist() == [[0, 0, 0, 0]]


def test_every_epoch_sees_every_sequence_once() -> None:
    chosen = torch.cat(list(shuffled(12, 5, 12, seed=3)))
    assert [sorted(part.tolist()) for part in chosen.split(12)] == [list(range(12))] * 5


def test_a_lesson_is_the_teachers_answer_in_any_batch(classroom: Classroom) -> None:
    lesson = classroom.lesson
    alone = final_hidden(classroom.teacher, lesson.token_ids[3:4])
    torch.testing.assert_close(lesson.teacher[3:4], alone, rtol=1e-5, atol=1e-5)
    assert isinstance(lesson.rows(torch.tensor([1, 2])), Lesson)
