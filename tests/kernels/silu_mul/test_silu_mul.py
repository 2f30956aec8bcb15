"""The kernel against the law and against the decoder's own operations; bit-equality in batches."""

import pytest
import torch
import torch.nn.functional as F

pytest.importorskip("triton")

from kernels.compensator.layout import Factors, GpuCompensator, pack_compensators
from kernels.producer import code_workspace, total_codes
from kernels.silu_mul import silu_mul
from kernels.silu_mul.kernel import launch
from kernels.silu_mul.reference import silu_mul as reference

# NumPy, which computes in the interpreter, warns of infinities that the kernels want.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")
# Two roundings to the type, each at most half a unit in the last place; the interpreter cuts bfloat16 off.
BOUNDS = {torch.float32: 1e-6, torch.float16: 1e-3, torch.bfloat16: 1e-2}
# Sums of 1,100 products of operands that differ by the roundings above.
CODE_BOUNDS = {torch.float32: 1e-5, torch.float16: 1e-3, torch.bfloat16: 2e-2}


def normal(*shape: int, seed: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(device, dtype)


def compensator(
    columns: int, dtype: torch.dtype, device: torch.device, *, gated: bool = True
) -> GpuCompensator:
    a = normal(6, columns, seed=10, dtype=dtype, device=device) * columns**-0.5
    shapes = ((5, 6), (5,), (6, 5), (6,))
    gate = tuple(normal(*s, seed=20, dtype=torch.float32, device=device) for s in shapes)
    return pack_compensators([Factors(a=a, b=a[:, :1].T, gate=gate if gated else None)], dtype)


def relative(got: torch.Tensor, expected: torch.Tensor) -> float:
    return float((got.double() - expected.double()).norm() / expected.double().norm())


@pytest.fixture(autouse=True)
def _poison(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory that a launcher allocates starts as NaN, so that an element never written shows."""
    plain = torch.empty
    monkeypatch.setattr(torch, "empty", lambda *a, **k: _filled(plain(*a, **k)))


def _filled(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.fill_(float("nan")) if tensor.is_floating_point() else tensor


@pytest.mark.parametrize("dtype", BOUNDS)
@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (3, 17), (17, 63), (2, 100), (1, 1536)])
def test_it_follows_the_law(device, dtype, rows, columns):
    gate_up = 3 * normal(rows, 2 * columns, seed=1, dtype=dtype, device=device)
    assert relative(launch(gate_up).y, reference(gate_up).y) < BOUNDS[dtype]


@pytest.mark.parametrize("dtype", BOUNDS)
def test_the_law_is_the_decoders(dtype):
    gate_up = normal(17, 200, seed=1, dtype=dtype, device=torch.device("cpu"))
    gate, up = gate_up.chunk(2, dim=-1)
    assert relative(silu_mul(gate_up).y, F.silu(gate).mul_(up)) < BOUNDS[dtype]


@pytest.mark.parametrize(
    ("dtype", "rows"),
    [(torch.float32, 3), (torch.float16, 17), (torch.float16, 1), (torch.bfloat16, 3)],
)
def test_codes_follow_the_law(device, dtype, rows):
    columns = 1100  # more than one slice, the last partly empty
    gate_up, packed = (
        normal(rows, 2 * columns, seed=1, dtype=dtype, device=device),
        compensator(columns, dtype, device),
    )
    workspace = code_workspace(rows, columns, packed.code_width, device)
    first, second = (launch(gate_up, packed, workspace) for _ in range(2))
    assert relative(total_codes(first.codes), reference(gate_up, packed).codes[0]) < CODE_BOUNDS[dtype]
    assert torch.equal(first.codes, second.codes)
    assert not workspace.arrivals.any()


@pytest.mark.parametrize("rows", [3, 17])
def test_wide_codes_follow_the_law(device, rows):
    columns, dtype = 100, torch.float16
    gate_up = normal(rows, 2 * columns, seed=1, dtype=dtype, device=device)
    a = normal(512, columns, seed=2, dtype=dtype, device=device) * columns**-0.5
    packed = pack_compensators([Factors(a=a, b=a[:, :1].T)], dtype)
    got, expected = launch(gate_up, packed), reference(gate_up, packed)
    assert relative(total_codes(got.codes), expected.codes[0]) < CODE_BOUNDS[dtype]


@pytest.mark.parametrize(("rows", "gated"), [(19, True), (19, False), (130, False)])
def test_a_row_has_the_same_bits_alone_and_in_a_batch(device, rows, gated):
    gate_up = normal(rows, 2200, seed=1, dtype=torch.float16, device=device)
    packed = compensator(1100, torch.float16, device, gated=gated)
    workspace = code_workspace(rows, 1100, packed.code_width, device)
    whole = launch(gate_up, packed, workspace)
    for row in (0, rows - 1):
        alone = launch(gate_up[row : row + 1], packed, workspace)
        assert torch.equal(alone.y[0], whole.y[row])
        assert torch.equal(alone.codes[:, 0], whole.codes[:, row])


@pytest.mark.parametrize("rows", [1, 70])
def test_a_row_has_the_same_bits_with_codes_and_without(device, rows):
    gate_up = normal(rows, 2200, seed=1, dtype=torch.bfloat16, device=device)
    packed = compensator(1100, torch.bfloat16, device, gated=False)
    assert torch.equal(launch(gate_up).y, launch(gate_up, packed).y)


def test_large_gates_neither_overflow_nor_become_nan(device):
    gate_up = torch.tensor([[-6e4, 6e4, -100.0, 0.0, 1.0, 1.0, 1.0, 1.0]], device=device).half()
    assert launch(gate_up).y.tolist() == [[-0.0, 6e4, -0.0, 0.0]]


def test_no_rows_are_no_launch(device):
    assert launch(torch.ones(0, 8, device=device)).y.shape == (0, 4)


@pytest.mark.parametrize(
    ("gate_up", "message"),
    [
        (torch.ones(3, 7), "gate_up has 7 columns"),
        (torch.ones(8), r"gate_up has shape \(8,\); it must be \(any, any\)"),
        (torch.ones(8, 3).T, "gate_up has strides .* call contiguous"),
    ],
)
def test_what_the_kernel_would_misread_is_refused(gate_up, message):
    with pytest.raises(ValueError, match=message):
        launch(gate_up)


def test_a_compensator_of_another_width_is_refused():
    workspace = code_workspace(3, 10, 16, torch.device("cpu"))
    with pytest.raises(ValueError, match=r"compensator.down has shape \(10, 16\); it must be \(4, 16\)"):
        launch(torch.ones(3, 8), compensator(10, torch.float32, torch.device("cpu")), workspace)
