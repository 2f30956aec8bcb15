"""The kernel against the law and against the decoder's own norm; bit-equality in batches."""

import pytest
import torch

pytest.importorskip("triton")

from kernels.compensator.layout import Factors, GpuCompensator, pack_compensators
from kernels.producer import code_workspace, total_codes
from kernels.rms_norm import rms_norm
from kernels.rms_norm.kernel import launch
from kernels.rms_norm.reference import rms_norm as reference
from spearhead.model.decoder import rms_norm as decoder_norm

# Two roundings to the type, each at most half a unit in the last place; the interpreter cuts bfloat16 off.
BOUNDS = {torch.float32: 1e-6, torch.float16: 1e-3, torch.bfloat16: 1e-2}
# Sums of up to 1,100 products of operands that differ by the roundings above.
CODE_BOUNDS = {torch.float32: 1e-5, torch.float16: 1e-3, torch.bfloat16: 2e-2}
EPS = 1e-5
CPU = torch.device("cpu")


def normal(*shape: int, seed: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(device, dtype)


def compensator(columns: int, dtype: torch.dtype, device: torch.device) -> GpuCompensator:
    """Of three projections of different rank: gated, static, gated."""
    factors = []
    for seed, (rank, hidden) in enumerate([(5, 7), (3, 0), (9, 4)], start=10):
        a = normal(rank, columns, seed=seed, dtype=dtype, device=device) * columns**-0.5
        shapes = ((hidden, rank), (hidden,), (rank, hidden), (rank,))
        gate = tuple(normal(*s, seed=seed + 20, dtype=torch.float32, device=device) for s in shapes)
        factors.append(Factors(a=a, b=a[:, :1].T, gate=gate if hidden else None))
    return pack_compensators(factors, dtype)


def static(columns: int, dtype: torch.dtype, device: torch.device) -> GpuCompensator:
    a = normal(4, columns, seed=2, dtype=dtype, device=device)
    return pack_compensators([Factors(a=a, b=a[:, :1].T)], dtype)


def relative(got: torch.Tensor, expected: torch.Tensor) -> float:
    return float((got.double() - expected.double()).norm() / expected.double().norm())


@pytest.fixture(autouse=True)
def _poison(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory that a launcher allocates starts as NaN, so that an element never written shows."""
    plain, plain_like = torch.empty, torch.empty_like
    monkeypatch.setattr(torch, "empty", lambda *a, **k: _filled(plain(*a, **k)))
    monkeypatch.setattr(torch, "empty_like", lambda *a, **k: _filled(plain_like(*a, **k)))


def _filled(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.fill_(float("nan")) if tensor.is_floating_point() else tensor


@pytest.mark.parametrize("dtype", BOUNDS)
@pytest.mark.parametrize("with_residual", [False, True])
@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (3, 17), (17, 63), (2, 100), (1, 576)])
def test_it_follows_the_law(device, dtype, with_residual, rows, columns):
    x = 3 * normal(rows, columns, seed=1, dtype=dtype, device=device)
    weight = 1 + 0.1 * normal(columns, seed=2, dtype=dtype, device=device)
    residual = normal(rows, columns, seed=3, dtype=dtype, device=device) if with_residual else None
    got, expected = launch(x, weight, EPS, residual), reference(x, weight, EPS, residual)
    assert relative(got.y, expected.y) < BOUNDS[dtype]
    assert relative(got.hidden, expected.hidden) < BOUNDS[dtype]


@pytest.mark.parametrize("dtype", BOUNDS)
def test_the_law_is_the_decoders(dtype):
    x, weight = (normal(*s, seed=1, dtype=dtype, device=CPU) for s in ((17, 100), (100,)))
    expected = decoder_norm(x, weight, torch.tensor(EPS))
    assert relative(rms_norm(x, weight, EPS).y, expected) < BOUNDS[dtype]


@pytest.mark.parametrize(
    ("dtype", "rows"),
    [
        (torch.float32, 3),
        (torch.float32, 17),
        (torch.float16, 1),
        (torch.float16, 17),
        (torch.bfloat16, 3),
    ],
)
def test_codes_of_several_compensators_follow_the_law(device, dtype, rows):
    columns = 1100  # more than one slice, the last partly empty
    x, residual = (normal(rows, columns, seed=s, dtype=dtype, device=device) for s in (1, 2))
    weight = 1 + 0.1 * normal(columns, seed=3, dtype=dtype, device=device)
    packed = compensator(columns, dtype, device)
    workspace = code_workspace(rows, columns, packed.code_width, device)
    expected = reference(x, weight, EPS, residual, packed)
    first, second = (launch(x, weight, EPS, residual, packed, workspace) for _ in range(2))
    assert relative(first.y, expected.y) < BOUNDS[dtype]
    assert relative(total_codes(first.codes), expected.codes[0]) < CODE_BOUNDS[dtype]
    assert torch.equal(first.codes, second.codes)
    assert not workspace.arrivals.any()


def test_static_compensators_have_no_gate(device):
    x, weight = normal(3, 600, seed=1, dtype=torch.float32, device=device), torch.ones(600, device=device)
    packed = static(600, torch.float32, device)
    got = launch(x, weight, EPS, None, packed, code_workspace(3, 600, 16, device))
    assert packed.gate is None
    assert relative(total_codes(got.codes), got.y @ packed.a[0].T) < 1e-5


@pytest.mark.parametrize("rows", [3, 65])
def test_wide_codes_follow_the_law(device, rows):
    columns, dtype = 100, torch.float16
    x, weight = normal(rows, columns, seed=1, dtype=dtype, device=device), torch.ones(columns, dtype=dtype)
    a = normal(256, columns, seed=2, dtype=dtype, device=device) * columns**-0.5
    packed = pack_compensators([Factors(a=a, b=a[:, :1].T)] * 3, dtype)
    got = launch(x, weight.to(device), EPS, None, packed)
    expected = reference(x, weight.to(device), EPS, None, packed)
    assert relative(total_codes(got.codes), expected.codes[0]) < CODE_BOUNDS[dtype]


@pytest.mark.parametrize(("rows", "make"), [(19, compensator), (19, static), (130, static)])
def test_a_row_has_the_same_bits_alone_and_in_a_batch(device, rows, make):
    dtype, columns = torch.float16, 1100
    x, residual = (normal(rows, columns, seed=seed, dtype=dtype, device=device) for seed in (1, 2))
    weight, packed = torch.ones(columns, dtype=dtype, device=device), make(columns, dtype, device)
    workspace = code_workspace(rows, columns, packed.code_width, device)
    whole = launch(x, weight, EPS, residual, packed, workspace)
    for row in (0, rows - 1):
        own = slice(row, row + 1)
        alone = launch(x[own], weight, EPS, residual[own], packed, workspace)
        assert torch.equal(alone.y[0], whole.y[row])
        assert torch.equal(alone.hidden[0], whole.hidden[row])
        assert torch.equal(alone.codes[:, 0], whole.codes[:, row])


@pytest.mark.parametrize("columns", [192, 576, 1100, 2048, 4096, 5120])
@pytest.mark.parametrize("rows", [1, 19, 70])
def test_a_row_has_the_same_bits_with_codes_and_without(device, rows, columns):
    dtype = torch.bfloat16
    x, residual = (normal(rows, columns, seed=seed, dtype=dtype, device=device) for seed in (1, 2))
    weight = normal(1, columns, seed=3, dtype=dtype, device=device)[0]
    packed = static(columns, dtype, device)
    for added in (None, residual):
        plain, coded = (launch(x, weight, EPS, added, factors) for factors in (None, packed))
        assert torch.equal(plain.y, coded.y) and torch.equal(plain.hidden, coded.hidden)


def test_nan_stays_in_its_row(device):
    x = normal(3, 64, seed=1, dtype=torch.float32, device=device)
    x[1, 5] = float("nan")
    y = launch(x, torch.ones(64, device=device), EPS).y
    assert y[1].isnan().all() and not y[[0, 2]].isnan().any()


def test_rows_may_be_strided_and_absent(device):
    wide = normal(4, 200, seed=1, dtype=torch.float32, device=device)
    weight = torch.ones(100, device=device)
    assert relative(launch(wide[:, 100:], weight, EPS).y, reference(wide[:, 100:], weight, EPS).y) < 1e-6
    assert launch(wide[:0, 100:], weight, EPS).y.shape == (0, 100)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda a: a | {"weight": torch.ones(7)}, r"weight has shape \(7,\); it must be \(8\)"),
        (lambda a: a | {"weight": torch.ones(8).half()}, "weight is torch.float16; it must be torch.float32"),
        (lambda a: a | {"x": torch.ones(8, 3).T}, "x has strides .* call contiguous"),
        (lambda a: a | {"x": torch.ones(3, 8, dtype=torch.int32)}, "x is torch.int32"),
        (lambda a: a | {"compensator": compensator(8, torch.float32, CPU)}, "without a workspace"),
    ],
)
def test_what_the_kernel_would_misread_is_refused(change, message):
    arguments = {"x": torch.ones(3, 8), "weight": torch.ones(8), "eps": EPS}
    with pytest.raises(ValueError, match=message):
        launch(**change(arguments))


def test_a_workspace_that_is_too_small_is_refused(device):
    packed = compensator(600, torch.float32, device)
    workspace = code_workspace(1, 600, 16, device)
    x = torch.ones(40, 600, device=device)
    with pytest.raises(ValueError, match="this launch needs"):
        launch(x, torch.ones(600, device=device), EPS, None, packed, workspace)
