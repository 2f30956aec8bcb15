"""Compensated products by every path, against the float32 law."""

import importlib
from dataclasses import replace

import pytest
import torch

from kernels.compensator import naive
from kernels.producer import total_codes
from kernels.w4a16 import GpuProducts, Plans, computes_codes, room_words
from kernels.w4a16.plan import OWN_CODE_ROWS
from tests.kernels.w4a16.problems import (
    CORRECTED_BOUND,
    DEVICE,
    Problem,
    interpreter_loops,
    plan,
    relative_error,
    workspace,
)

gpu = pytest.importorskip("kernels.w4a16.gpu", reason="needs Triton", exc_type=ImportError)
compensator_gpu = importlib.import_module("kernels.compensator.gpu")
dense = importlib.import_module("kernels.w4a16.dense")
norm_launch = importlib.import_module("kernels.rms_norm.kernel").launch
single_launch = importlib.import_module("kernels.w4a16.single_launch")
pytestmark = pytest.mark.skipif(not interpreter_loops(), reason="this Triton's interpreter runs no loop")

QKV = ((100, 4, True), (60, 16, False), (96, 8, True))  # borders inside tiles, ranks that differ
PROBLEMS = [
    Problem(rows=3, outputs=128, inputs=256, groups=2, projections=((128, 16, True),)),
    Problem(rows=17, outputs=256, inputs=300, projections=QKV, biased=True, dtype=torch.bfloat16),
    Problem(rows=9, outputs=256, inputs=320, groups=5, projections=((64, 0, False), (192, 20, True))),
]
WIDE = Problem(
    rows=9, outputs=192, inputs=100, projections=((64, 256, False), (64, 200, True), (64, 256, True))
)
PLANS = [plan(32, 64, 2), plan(32, 128, 1)]


@pytest.fixture(params=PROBLEMS, ids=["one", "qkv", "partly"])
def problem(request):
    return request.param


@pytest.fixture(params=PLANS, ids=["split", "whole"])
def layer(request):
    return request.param


def test_codes_follow_the_separate_operators(problem):
    scratch, compensator = workspace(problem, plan()), problem.compensator()
    codes = compensator_gpu.gated_codes(problem.x, compensator, scratch)
    # The operators round A x once to the compute type; the kernel does not.
    expected = naive.gated_codes(problem.x.float(), replace(compensator, down=compensator.down.float()))
    assert relative_error(total_codes(codes), expected.cpu()) < 1e-5
    scratch.check_integrity()


def test_wide_codes_follow_the_separate_operators():
    test_codes_follow_the_separate_operators(WIDE)


def test_codes_have_the_same_bits_in_any_batch():
    whole = Problem(rows=33, outputs=256, inputs=300, projections=QKV)
    scratch, compensator = workspace(whole, plan()), whole.compensator()
    codes = compensator_gpu.gated_codes(whole.x, compensator, scratch)
    for count in (1, 3, 8, 17):
        part = compensator_gpu.gated_codes(whole.x[16 : 16 + count].clone(), compensator, scratch)
        assert torch.equal(part, codes[:, 16 : 16 + count])


def test_a_row_has_the_same_bits_whoever_adds_its_partial_codes():
    static = tuple((count, rank, False) for count, rank, _ in QKV)
    whole = Problem(rows=33, outputs=256, inputs=700, projections=static)
    layer = plan(32, 64, 2)
    scratch, compensator, weight = workspace(whole, layer), whole.compensator(), whole.weight()
    codes = compensator_gpu.gated_codes(whole.x, compensator, scratch)
    assert len(codes) == 3
    y = gpu.multiply(whole.x, weight, layer, scratch, compensator=compensator, codes=codes)
    assert relative_error(y, whole.expected()) < CORRECTED_BOUND[whole.dtype]
    for row in (0, 32):
        own = slice(row, row + 1)
        alone = codes[:, own].contiguous()
        x = whole.x[own].clone()
        assert torch.equal(
            gpu.multiply(x, weight, layer, scratch, compensator=compensator, codes=alone), y[own]
        )


def test_the_fused_product_follows_the_law(problem, layer):
    scratch, compensator = workspace(problem, layer), problem.compensator()
    codes = compensator_gpu.gated_codes(problem.x, compensator, scratch)
    y = gpu.multiply(problem.x, problem.weight(), layer, scratch, compensator=compensator, codes=codes)
    assert relative_error(y, problem.expected()) < CORRECTED_BOUND[problem.dtype]


def test_the_single_launch_follows_the_law_and_repeats(problem, layer):
    scratch, compensator = workspace(problem, layer), problem.compensator()
    first, second = (
        single_launch.multiply(problem.x, problem.weight(), layer, scratch, compensator) for _ in range(2)
    )
    assert relative_error(first, problem.expected()) < CORRECTED_BOUND[problem.dtype]
    assert torch.equal(first, second)
    scratch.check_integrity()


def test_the_extended_dense_product_follows_the_law(problem):
    scratch, compensator = workspace(problem, plan()), problem.compensator()
    codes = compensator_gpu.gated_codes(problem.x, compensator, scratch)
    y = dense.multiply(problem.x, problem.weight(), scratch, compensator=compensator, codes=codes)
    assert relative_error(y, problem.expected()) < CORRECTED_BOUND[problem.dtype]


def test_naive_insertion_follows_the_law(problem, layer):
    compensator = problem.compensator()
    y = gpu.multiply(problem.x, problem.weight(), layer, workspace(problem, layer))
    naive.add_correction(y, naive.gated_codes(problem.x, compensator), compensator)
    # y is rounded twice.
    assert relative_error(y, problem.expected()) < 1.5 * CORRECTED_BOUND[problem.dtype]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("groups", [1, 9])
def test_the_dense_product_follows_the_law(dtype, groups):
    problem = Problem(rows=17, outputs=100, inputs=576, groups=groups, dtype=dtype, biased=True)
    y = dense.multiply(problem.x, problem.weight(), workspace(problem, plan()))
    # Weights are rounded to the type, which the law does not do.
    assert relative_error(y, problem.expected()) < CORRECTED_BOUND[dtype]


def test_codes_of_zero_change_no_bit(problem, layer):
    compensator = problem.compensator()
    codes = torch.zeros(1, problem.rows, compensator.code_width, device=DEVICE)
    arguments = problem.x, problem.weight(), layer
    corrected = gpu.multiply(*arguments, workspace(problem, layer), compensator=compensator, codes=codes)
    assert torch.equal(corrected, gpu.multiply(*arguments, workspace(problem, layer)))


@pytest.mark.parametrize("path", ["fused", "dense"])
def test_codes_beyond_float16_do_not_become_not_a_number(path):
    problem = Problem(rows=2, outputs=64, inputs=128, projections=((64, 16, False),))
    compensator, layer = problem.compensator(), plan()
    compensator.b.zero_()
    codes = torch.full((1, 2, 16), 1e30, device=DEVICE)
    scratch, own = workspace(problem, layer), {"compensator": compensator, "codes": codes}
    if path == "fused":
        y = gpu.multiply(problem.x, problem.weight(), layer, scratch, **own)
    else:
        y = dense.multiply(problem.x, problem.weight(), scratch, **own)
    assert bool(y.isfinite().all())


def test_a_row_range_sees_only_its_own_projection():
    problem = Problem(rows=3, outputs=256, inputs=128, projections=((100, 16, False), (156, 16, False)))
    compensator, layer = problem.compensator(), plan(16, 128, 1)
    codes = torch.zeros(1, 3, 32, device=DEVICE)
    codes[:, :, 16:] = 1000
    arguments = problem.x, problem.weight(), layer
    corrected = gpu.multiply(*arguments, workspace(problem, layer), compensator=compensator, codes=codes)
    changed = corrected != gpu.multiply(*arguments, workspace(problem, layer))
    assert not bool(changed[:, :100].any())
    assert bool(changed[:, 100:].all())


@pytest.mark.parametrize(
    ("codes", "message"),
    [
        (None, "belong together"),
        (torch.zeros(2, 16), r"float32 \(2, 2, 16\)"),
        (torch.zeros(1, 2, 3), r"float32 \(1, 2, 16\)"),
        (torch.zeros(1, 2, 16, dtype=torch.float16), "float32"),
    ],
)
def test_codes_that_do_not_fit_are_refused(codes, message):
    problem = Problem(rows=2, outputs=64, inputs=128, projections=((64, 16, True),))
    layer = plan()
    with pytest.raises(ValueError, match=message):
        gpu.multiply(
            problem.x,
            problem.weight(),
            layer,
            workspace(problem, layer),
            compensator=problem.compensator(),
            codes=None if codes is None else codes.to(DEVICE),
        )


STATIC = ((100, 4, False), (60, 16, False), (96, 8, False))


@pytest.mark.parametrize(("parts", "split"), [(1, 1), (2, 1), (2, 2), (4, 2)])
@pytest.mark.parametrize("rows", [1, 16, 37, OWN_CODE_ROWS])
def test_a_product_computes_codes_as_the_kernels_in_front_do(rows, parts, split):
    problem = Problem(rows=rows, outputs=256, inputs=700, projections=STATIC, dtype=torch.bfloat16)
    layer = plan(32, 128, split, parts)
    scratch, compensator, weight = workspace(problem, layer), problem.compensator(), problem.weight()
    codes = compensator_gpu.gated_codes(problem.x, compensator, scratch)
    expected = gpu.multiply(problem.x, weight, layer, scratch, compensator=compensator, codes=codes)
    room = torch.zeros(room_words(compensator, rows), dtype=torch.int32, device=DEVICE)
    for given in (None, room):
        y = gpu.multiply(problem.x, weight, layer, scratch, compensator=compensator, room=given)
        if DEVICE == "cuda":
            assert torch.equal(y, expected)
        assert relative_error(y, expected.cpu()) < 1e-3  # numpy adds columns of other steps in another order
    assert bool(room.any())
    scratch.check_integrity()


def test_a_row_of_64_has_the_bits_that_it_has_among_65_whose_codes_the_norm_computes():
    problem = Problem(rows=OWN_CODE_ROWS + 1, outputs=128, inputs=700, projections=((128, 11, False),))
    layer = plan(32, 64, 2)
    scratch, compensator, weight = workspace(problem, layer), problem.compensator(), problem.weight()
    norm = torch.ones(700, dtype=torch.float16, device=DEVICE)
    coded = norm_launch(problem.x, norm, 1e-5, None, compensator)
    among = gpu.multiply(coded.y, weight, layer, scratch, compensator=compensator, codes=coded.codes)
    plain = norm_launch(problem.x[:-1], norm, 1e-5, None, None)
    inside = gpu.multiply(plain.y, weight, layer, scratch, compensator=compensator)
    assert torch.equal(plain.y, coded.y[:-1])
    if DEVICE == "cuda":
        assert torch.equal(inside, among[:-1])
    assert relative_error(inside, among[:-1].cpu()) < 1e-3


def test_several_launches_share_a_room(monkeypatch):
    problem = Problem(rows=40, outputs=128, inputs=300, projections=((128, 16, False),))
    layer = plan(16, 64, 2)
    scratch, compensator, weight = workspace(problem, layer), problem.compensator(), problem.weight()
    expected = gpu.multiply(problem.x, weight, layer, scratch, compensator=compensator)
    monkeypatch.setattr("kernels.w4a16.plan.PARTIAL_BYTES", 1)
    room = torch.zeros(room_words(compensator, 40), dtype=torch.int32, device=DEVICE)
    y = gpu.multiply(problem.x, weight, layer, scratch, compensator=compensator, room=room)
    assert torch.equal(y, expected)


@pytest.mark.parametrize(
    "room", [torch.zeros(259, dtype=torch.int32), torch.zeros(260), torch.zeros(2, 130, dtype=torch.int32)]
)
def test_a_room_that_does_not_fit_is_refused(room):
    problem = Problem(rows=2, outputs=64, inputs=128, projections=((64, 16, False),))
    layer, compensator = plan(), problem.compensator()
    assert room_words(compensator, 2) == 260
    scratch, weight = workspace(problem, layer), problem.weight()
    with pytest.raises(ValueError, match="room"):
        gpu.multiply(problem.x, weight, layer, scratch, compensator=compensator, room=room.to(DEVICE))


def test_codes_of_its_own_beyond_float16_do_not_become_not_a_number():
    problem = Problem(rows=2, outputs=64, inputs=128, projections=((64, 16, False),))
    compensator, layer = problem.compensator(), plan()
    compensator.down.fill_(6e4)
    compensator.b.zero_()
    problem.x.fill_(100)
    y = gpu.multiply(problem.x, problem.weight(), layer, workspace(problem, layer), compensator=compensator)
    assert bool(y.isfinite().all())


def test_a_row_has_the_same_bits_whether_or_not_others_come_with_it_and_the_launch_computes_codes():
    problem = Problem(rows=OWN_CODE_ROWS, outputs=256, inputs=700, projections=STATIC)
    layer = plan(32, 64, 2)
    scratch, compensator, weight = workspace(problem, layer), problem.compensator(), problem.weight()
    y = gpu.multiply(problem.x, weight, layer, scratch, compensator=compensator)
    for first, count in ((0, 1), (7, 20), (63, 1)):
        own = problem.x[first : first + count].clone()
        part = gpu.multiply(own, weight, layer, scratch, compensator=compensator)
        assert torch.equal(part, y[first : first + count])


def test_codes_of_nan_and_of_zero_are_no_missing_codes():
    problem = Problem(rows=20, outputs=64, inputs=128, projections=((64, 16, False),))
    layer = plan(16)
    scratch, compensator, weight = workspace(problem, layer), problem.compensator(), problem.weight()
    problem.x[2] = 0
    problem.x[17] = torch.nan
    y = gpu.multiply(problem.x, weight, layer, scratch, compensator=compensator)
    assert not bool(y[2].any()) and bool(y[17].isnan().all())
    others = [row for row in range(20) if row != 17]
    assert bool(y[others].isfinite().all())
    scratch.check_integrity()


def test_more_rows_than_a_product_computes_codes_for_are_refused():
    problem = Problem(rows=OWN_CODE_ROWS + 1, outputs=64, inputs=128, projections=((64, 16, False),))
    layer, compensator = plan(), problem.compensator()
    assert computes_codes(compensator, OWN_CODE_ROWS) and not computes_codes(compensator, problem.rows)
    with pytest.raises(ValueError, match="belong together"):
        gpu.multiply(problem.x, problem.weight(), layer, workspace(problem, layer), compensator=compensator)


def test_a_single_launch_refuses_more_rows_than_a_tile():
    problem = Problem(rows=17, outputs=64, inputs=128, projections=((64, 16, False),))
    layer = plan(16)
    with pytest.raises(ValueError, match="at most 16 rows, not 17"):
        single_launch.multiply(
            problem.x, problem.weight(), layer, workspace(problem, layer), problem.compensator()
        )


def test_dispatch_keeps_decode_rows_on_the_fused_kernel_and_prefill_on_the_dense_one(tmp_path):
    problem = Problem(rows=257, outputs=64, inputs=128, projections=((64, 16, True),))
    compensator, weight, plans = problem.compensator(), problem.weight(), Plans("GPU", 132, tmp_path)
    layer = plans.of(weight)
    scratch = workspace(problem, layer)
    products = GpuProducts(plans, scratch)
    codes = compensator_gpu.gated_codes(problem.x, compensator, scratch)
    own = {"compensator": compensator, "codes": codes}
    decoded = products.multiply(problem.x, weight, phase="decode", compensator=compensator)
    prefilled = products.multiply(problem.x, weight, phase="prefill", compensator=compensator)
    assert torch.equal(decoded, gpu.multiply(problem.x, weight, layer, scratch, **own))
    own["codes"] = naive.gated_codes(problem.x, compensator)[None]
    assert torch.equal(prefilled, dense.multiply(problem.x, weight, scratch, **own))
    own["codes"] = codes
    given = products.multiply(problem.x, weight, phase="prefill", **own)
    assert torch.equal(given, dense.multiply(problem.x, weight, scratch, **own))
    short = problem.x[:8].clone()
    few = products.multiply(short, weight, phase="prefill", compensator=compensator)
    assert torch.equal(few, products.multiply(short, weight, phase="decode", compensator=compensator))
