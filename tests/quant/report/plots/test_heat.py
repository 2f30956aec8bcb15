import dataclasses
import re
from collections.abc import Callable
from xml.etree import ElementTree

from hypothesis import given, settings
from hypothesis import strategies as st

from spearhead.quant.report import ModuleRow, RecoveryReport
from spearhead.quant.report.plots import heat_map

MakeReport = Callable[..., RecoveryReport]


def module(layer: int, share: float, rank: int = 0) -> ModuleRow:
    return ModuleRow(
        name=f"layers.{layer}",
        layer=layer,
        projection="mlp.down_proj",
        output_width=4,
        input_width=4,
        damage=(),
        share=share,
        rank=rank,
        compensator_bytes=0,
        reason="",
        energy=None,
    )


def steps(modules: list[ModuleRow]) -> list[int]:
    root = ElementTree.fromstring(heat_map(modules))
    cells = [group for group in root.iter("g") if group.find("title") is not None]
    return [int(re.sub("h", "", cell.get("class", ""))) for cell in cells]


@settings(deadline=None)
@given(st.lists(st.floats(0, 1), min_size=1, max_size=40))
def test_more_damage_is_never_paler(shares: list[float]) -> None:
    found = steps([module(layer, share) for layer, share in enumerate(shares)])
    assert all(0 <= step <= 8 for step in found)
    by_share = [step for _, step in sorted(zip(shares, found, strict=True))]
    assert by_share == sorted(by_share)
    assert max(found) == (8 if max(shares) > 0 else 0)


def test_all_steps_of_colour_are_used_over_three_decades() -> None:
    shares = [10 ** (-3 * index / 30) / 2 for index in range(30)]
    assert set(steps([module(layer, share) for layer, share in enumerate(shares)])) == set(range(9))


def test_cells_of_many_layers_wrap_and_never_overlap(make_report: MakeReport) -> None:
    root = ElementTree.fromstring(heat_map(make_report(layers=80).modules))
    cells = [group.find("rect") for group in root.iter("g") if group.find("title") is not None]
    places = {(rect.get("x"), rect.get("y")) for rect in cells if rect is not None}
    assert len(places) == len(cells) == 560
    assert max(float(x or 0) for x, _ in places) < 1000


def test_a_projection_that_a_layer_lacks_leaves_a_gap(make_report: MakeReport) -> None:
    rows = make_report(layers=3).modules
    sparse = [row for row in rows if row.layer != 1 or row.projection.startswith("mlp")]
    other = dataclasses.replace(rows[0], name="x", projection="a.projection.with.a.rather.long.name")
    assert len(steps([*sparse, other])) == len(sparse) + 1
    assert "…" in heat_map([*sparse, other])
