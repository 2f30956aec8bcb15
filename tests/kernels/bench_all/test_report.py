"""What a run says about its limits."""

import pytest

from kernels.bench_all.report import alternatives, claims, lines


def timed(us: float) -> dict:
    return {"median_us": us, "p10_us": us, "p90_us": us}


def product(shape: str, rows: int, front: float = 0.5, **us: float) -> dict:
    times = {name: timed(value) for name, value in us.items()}
    return {"shape": shape, "rows": rows, "bound": 8.0, "front": front, **times}


def products(*rows: dict, group: int = 128) -> dict:
    return {"benchmark": "kernels.w4a16", "group": group, "rows": list(rows)}


def found(*documents: dict) -> dict:
    return {claim.what: claim for claim in claims(documents)}


def test_a_product_pays_for_the_codes_of_the_kernel_in_front():
    rows = (
        product("8b qkv", 1, plain=7.0, fused=7.0, marlin=10.0),
        product("8b down", 16, plain=9.0, fused=9.5, marlin=10.0, machete=5.0),
    )
    claim = found(products(*rows))["W4+EC / Marlin, M 1 to 16: worst"]
    assert (claim.value, claim.where, claim.kept) == (pytest.approx(1.0), "8b down, M 16", False)
    mean = found(products(*rows))["W4+EC / Marlin, M 1 to 16: mean"]
    assert mean.value == pytest.approx((0.75 * 1.0) ** 0.5)


def test_codes_of_the_attention_are_measured_with_their_product():
    row = product("8b o", 8, front=4.0, plain=5.0, fused=5.0, codes=7.0, marlin=10.0)
    assert found(products(row))["W4+EC / Marlin, M 1 to 16: worst"].value == pytest.approx(0.7)


def test_many_rows_take_the_better_of_our_paths_and_of_theirs():
    row = product("8b qkv", 512, plain=90, fused=100.0, extended=60.0, marlin=90.0, machete=50.0, fp16=55.0)
    claim = found(products(row))["W4+EC / best of Marlin, Machete, fp16, M 128 to 8192: worst"]
    assert claim.value == pytest.approx(60 / 50)
    assert not claim.kept


def test_few_rows_do_not_take_the_dense_path():
    row = product("8b qkv", 32, plain=9, fused=10.0, extended=1.0, marlin=20.0)
    name = "W4+EC / better of Marlin and Machete, M 32 and 64: worst"
    assert found(products(row))[name].value == pytest.approx(10.5 / 20)


def test_paths_that_failed_or_did_not_run_make_no_claim():
    wrong = product("8b qkv", 1, plain=7.0) | {"fused": "wrong: relative error 1e-1"}
    gate_only = {"shape": "8b qkv", "rows": 1, "bound": 8.0, "plain": "right"}
    assert not any("Marlin" in what for what in found(products(wrong, gate_only)))
    assert claims([]) == []


def test_shares_of_the_roof_have_limits_for_the_plain_product():
    row = product("8b gate_up", 1, plain=10.0, fused=16.0)
    plain = found(products(row))["share of the roof, plain"]
    assert (plain.value, plain.limit, plain.kept) == (pytest.approx(0.8), 0.78, True)
    assert found(products(row))["share of the roof, fused"].limit is None


def test_other_group_sizes_are_kept_apart():
    assert claims([products(product("8b qkv", 1, plain=7.0, fused=7.0, marlin=1.0), group=0)]) == []


def test_layers_attention_and_sampling_have_claims():
    layer = {"benchmark": "kernels.compensator", "rows": [
        {"shape": "8b", "rows": 8, "plain": 100.0, "served": 104.0},
        {"shape": "8b", "rows": 2048, "plain": 100.0, "served": 200.0},
    ]}  # fmt: skip
    sizes = {"model": "8b", "sequences": 8, "tokens": 8192, "rows": 5, "piece": 256}
    attention = {
        "benchmark": "kernels.paged_attention",
        "rows": [{**sizes, "median_us": 100.0, "bound_us": 80.0}],
    }
    law = {"law": "all filters", "rows": 64, "vocabulary": 152_064}
    sample = {"benchmark": "kernels.sample", "rows": [{**law, "median_us": 61.0}]}
    outcome = found(layer, attention, sample)
    assert outcome["a layer with / without compensators, M 1 to 64: worst"].value == pytest.approx(1.04)
    assert outcome["attention: share of the roof"].kept
    assert not outcome["sample, microseconds"].kept


def test_a_product_that_computes_codes_itself_costs_what_its_launch_takes():
    row = product("8b qkv", 1, front=5.0, plain=10.0, fused=10.0, inside=11.0)
    assert alternatives([products(row)])[1]["folded"] == pytest.approx(1.1)


def test_alternatives_are_means_over_shapes():
    rows = (
        product("8b qkv", 1, front=0.0, plain=10.0, fused=10.0, naive=20.0),
        product("8b down", 1, front=0.0, plain=10.0, fused=10.0, naive=45.0),
    )
    table = alternatives([products(*rows)])
    assert table[1]["naive"] == pytest.approx(3.0)
    assert table[1]["folded"] == pytest.approx(1.0)
    assert any("NO" not in line and line.startswith("     1") for line in lines([products(*rows)]))
