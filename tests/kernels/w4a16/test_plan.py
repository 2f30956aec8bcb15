"""How products are cut, and tables that say so."""

import dataclasses
import json
import logging

import pytest
import torch

from kernels.w4a16 import LayerPlan, Plans, Tile, Workspace, pack_gpu
from kernels.w4a16.plan import PARTIAL_BYTES, FewTile, default_parts, default_plan, launch_rows
from kernels.w4a16.table import read_table, table_path, write_table

TILE = Tile(rows=16, outputs=64, warps=4, stages=4, split=1)
SHAPES = [(4096, 4096), (6144, 4096), (28672, 4096), (4096, 14336), (8192, 28672), (576, 576), (64, 100)]


def weight(outputs=128, inputs=256):
    return pack_gpu(torch.zeros(outputs, inputs, dtype=torch.int8), torch.ones(outputs, 1))


@pytest.mark.parametrize(
    ("outputs", "inputs", "parts"),
    [(4096, 4096, 8), (6144, 4096, 8), (28672, 4096, 4), (8192, 14336, 4), (576, 576, 4), (64, 100, 1)],
)
def test_defaults_fill_the_gpu_where_k_is_long_enough(outputs, inputs, parts):
    assert default_parts(outputs, inputs, 132) == parts


@pytest.mark.parametrize(("outputs", "inputs"), SHAPES)
def test_default_tiles_divide_the_outputs(outputs, inputs):
    plan = default_plan(outputs, inputs, 132)
    for rows in (1, 16, 17, 64, 100, 8192):
        assert outputs % plan.tile(rows).outputs == 0
        assert plan.tile(rows).rows >= min(16 * -(-rows // 16), 128) or plan.tile(rows).rows == 128


def test_row_counts_take_the_first_tile_that_reaches_them():
    larger = dataclasses.replace(TILE, rows=64)
    plan = LayerPlan(parts=1, tiles=((16, TILE), (64, larger)), dense_from=None)
    assert [plan.tile(rows) for rows in (1, 16, 17, 64, 5000)] == [TILE, TILE, larger, larger, larger]


def test_one_launch_keeps_its_partial_sums_within_the_bound():
    for parts, outputs in ((2, 28672), (8, 4096), (16, 131072)):
        rows = launch_rows(8192, parts, outputs, TILE)
        assert rows % 16 == 0
        assert rows == 16 or 4 * parts * outputs * rows <= PARTIAL_BYTES
    assert launch_rows(5, 8, 4096, TILE) == 5
    assert launch_rows(8192, 1, 4096, TILE) == 8192


@pytest.mark.parametrize(
    "changed",
    [
        {"rows": 8},
        {"rows": 48},
        {"outputs": 32},
        {"warps": 2},
        {"stages": 0},
        {"registers": 16},
        {"split": 3},
    ],
)
def test_tiles_that_no_kernel_takes_are_refused(changed):
    with pytest.raises(ValueError, match="must be"):
        dataclasses.replace(TILE, **changed)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"tiles": ()}, "at least one"),
        ({"parts": 3}, "must be one of"),
        ({"tiles": ((16, dataclasses.replace(TILE, split=2)),)}, "must divide the 1 parts"),
    ],
)
def test_plans_that_make_no_sense_are_refused(changed, message):
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(LayerPlan(parts=1, tiles=((16, TILE),), dense_from=None), **changed)


def test_tables_keep_plans(tmp_path):
    plans = {"128x256/0": LayerPlan(parts=2, tiles=((16, TILE),), dense_from=128)}
    path = table_path("NVIDIA H200", tmp_path)
    write_table(path, "NVIDIA H200", {"triton": "3.6.0"}, plans)
    assert path.name == "w4a16.nvidia-h200.json"
    assert read_table(path) == plans
    assert Plans("NVIDIA H200", 132, tmp_path).of(weight()) == plans["128x256/0"]


def test_a_layer_takes_what_its_shape_was_tuned_to_with_other_groups(tmp_path, caplog):
    plans = {"128x256/128": LayerPlan(parts=2, tiles=((16, TILE),), dense_from=128)}
    write_table(table_path("GPU", tmp_path), "GPU", {}, plans)
    found = Plans("GPU", 132, tmp_path)
    with caplog.at_level(logging.INFO, "kernels.w4a16"):
        assert found.of(weight()) is found.of(weight())
    assert found.of(weight()) == plans["128x256/128"]
    assert caplog.text.count("128x256/0: it takes that of 128x256/128") == 1
    assert found.of(weight(outputs=64)) == default_plan(64, 256, 132)


@pytest.mark.parametrize(
    "text", ["", "[]", '{"schema": 1, "op": "w4a16"}', '{"schema": 2, "op": "w4a16", "layers": {"a": {}}}']
)
def test_a_file_that_is_no_table_is_refused_with_its_name(tmp_path, text):
    path = table_path("GPU", tmp_path)
    path.write_text(text)
    with pytest.raises(ValueError, match=r"w4a16\.gpu\.json is no table.*kernels\.tuning"):
        Plans("GPU", 132, tmp_path)


def test_a_gpu_without_a_table_is_named_in_the_log(tmp_path, caplog):
    with caplog.at_level(logging.WARNING, "kernels.w4a16"):
        plan = Plans("Some GPU", 132, tmp_path).of(weight())
    assert plan == default_plan(128, 256, 132)
    assert "no plans for Some GPU" in caplog.text and "128x256/0" in caplog.text


def test_a_workspace_fits_its_layers():
    layer = default_plan(128, 256, 132)
    scratch = Workspace.for_layers([(weight(), layer)], rows=300, code_width=16)
    assert scratch.dense(128, 256 + 16, torch.float16).shape == (128, 272)
    assert int(scratch.counters(1).sum()) == 0
    for rows in (1, 17, 300):
        tile = layer.tile(rows)
        once = launch_rows(rows, layer.parts, 128, tile)
        tiles = -(-once // tile.rows) * (128 // tile.outputs)
        assert len(scratch.partials(layer.parts * tiles * tile.rows * tile.outputs))
        assert len(scratch.counters(tiles))


def test_counters_that_were_left_are_reported():
    scratch = Workspace(torch.device("cpu"), partials=1, counters=4)
    scratch.check_integrity()
    scratch.counters(2).fill_(1)
    with pytest.raises(RuntimeError, match="2 arrival counters are not zero"):
        scratch.check_integrity()


def test_a_table_keeps_tiles_for_few_rows_and_one_without_them_is_read(tmp_path):
    few = FewTile(rows=8, outputs=64, stages=4), FewTile(rows=16, outputs=128, stages=3, early=True)
    plan = LayerPlan(parts=1, tiles=((16, TILE),), dense_from=None, few=few)
    path = tmp_path / "w4a16.gpu.json"
    write_table(path, "GPU", {}, {"64x256/128": plan})
    assert read_table(path) == {"64x256/128": plan}
    document = json.loads(path.read_text())
    del document["layers"]["64x256/128"]["few"]
    path.write_text(json.dumps(document))
    assert read_table(path)["64x256/128"].few == ()


@pytest.mark.parametrize("wrong", [{"rows": 4}, {"outputs": 256}, {"stages": 1}])
def test_a_tile_for_few_rows_that_the_kernel_does_not_take_is_refused(wrong):
    with pytest.raises(ValueError, match="rows must be 8 or 16, outputs 64 or 128, and stages 2 to 8"):
        FewTile(**{"rows": 8, "outputs": 64, "stages": 4} | wrong)
    with pytest.raises(ValueError, match="must rise"):
        LayerPlan(
            parts=1,
            tiles=((16, TILE),),
            dense_from=None,
            few=(FewTile(rows=16, outputs=64, stages=4), FewTile(rows=8, outputs=64, stages=4)),
        )
