"""Every measured path passes its gate, and a wrong one does not."""

import importlib

import pytest
import torch

from kernels.w4a16 import LayerPlan, Tile
from kernels.w4a16.shapes import Shape
from tests.kernels.w4a16.problems import DEVICE, interpreter_loops

paths = pytest.importorskip("kernels.w4a16.paths", reason="needs Triton", exc_type=ImportError)
bench = importlib.import_module("kernels.w4a16.bench")
draw = importlib.import_module("kernels.tuning.products").draw
pytestmark = pytest.mark.skipif(not interpreter_loops(), reason="this Triton's interpreter runs no loop")

QKV = Shape(name="qkv", outputs=(128, 64, 64), in_features=256)
PLAN = LayerPlan(
    parts=2, tiles=((16, Tile(rows=16, outputs=64, warps=4, stages=3, split=2)),), dense_from=None
)


def all_paths(wanted=paths.COLUMNS, *, gated=False):
    product = draw(QKV, 128, 16, torch.float16, device=torch.device(DEVICE), copies=2, gated=gated)
    return product, paths.Paths(product, QKV, PLAN, None, rows=20, wanted=wanted)


@pytest.mark.parametrize(("rows", "gated"), [(1, False), (1, True), (20, False), (20, True)])
def test_every_path_passes_its_gate(rows, gated):
    product, found = all_paths(gated=gated)
    outcome = bench.measure(found, product.inputs(rows), timed=False)
    assert set(outcome.values()) == {"right"}, outcome
    inside = {"inside"} if gated else set()  # gates wait for a sum of their own
    expected = {*paths.OURS, "fp16"} - inside - ({"single"} if rows > 16 else set())
    assert set(outcome) == expected


def test_only_wanted_paths_run():
    product, found = all_paths(("plain", "fused"))
    assert set(bench.measure(found, product.inputs(3), timed=False)) == {"plain", "fused"}


def test_a_wrong_result_is_named_and_not_timed():
    product, found = all_paths(("plain", "fp16"))
    product.dense.mul_(1.1)
    outcome = bench.measure(found, product.inputs(3), timed=False)
    assert outcome["plain"] == "right"
    assert outcome["fp16"].startswith("wrong: relative error 1.0e-01")
