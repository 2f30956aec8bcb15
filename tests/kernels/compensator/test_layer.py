"""Every path through a layer follows the law in each product."""

import importlib
from pathlib import Path

import pytest
import torch

from kernels.w4a16 import Plans
from kernels.w4a16.shapes import ModelShape
from tests.kernels.w4a16.problems import DEVICE, interpreter_loops

layer = pytest.importorskip("kernels.compensator.layer", reason="needs Triton", exc_type=ImportError)
measure = importlib.import_module("kernels.compensator.bench").measure
pytestmark = pytest.mark.skipif(not interpreter_loops(), reason="this Triton's interpreter runs no loop")

SMALL = ModelShape(
    hidden_size=128,
    intermediate_size=192,
    layer_count=1,
    head_count=2,
    kv_head_count=1,
    head_dim=64,
    vocab_size=16,
)


def layers(rows: int, *, gated: bool = False):
    return layer.Layers(
        SMALL,
        group=0,
        rank=16,
        gated=gated,
        dtype=torch.float16,
        plans=Plans("none", 132, Path("nowhere")),
        rows=rows,
        device=torch.device(DEVICE),
        copies=1,
    )


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize(("rows", "paths"), [(3, layer.FEW_ROWS), (128, layer.MANY_ROWS)])
def test_every_path_follows_the_law(rows, paths, gated):
    outcome = measure(layers(rows, gated=gated), rows, timed=False)
    assert outcome == dict.fromkeys(paths, "right")


def test_paths_with_compensators_differ_from_those_without():
    some = layers(2)
    plain, folded = some.run("plain", 2, 0), some.run("folded", 2, 0)
    assert all(not torch.equal(one, other) for one, other in zip(plain, folded, strict=True))


def test_a_wrong_product_is_named_and_not_timed():
    some = layers(2)
    some.parts[3].product.weights[0].scales.fill_(torch.nan)
    outcome = measure(some, 2, timed=False)
    assert set(outcome) == set(layer.FEW_ROWS)
    assert set(outcome.values()) == {"wrong: relative error of down nan"}
