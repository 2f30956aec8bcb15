"""The file that the scheduler reads."""

import json

import pytest

from kernels.profile.table import KernelTime, document, latencies, write
from scheduler_service.latency_table import LatencyTable
from spearhead.errors import ConfigError

MEASURED = {"gpu": "NVIDIA H200", "torch": "2.11.0", "triton": "3.6.0"}


def time(op: str, rows: int, us: float, **size: int) -> KernelTime:
    calls = {"calls_per_forward": 2, **size}
    return KernelTime(op=op, name=op, rows=rows, median_us=us, p10_us=us, p90_us=us, **calls)


def times() -> list[KernelTime]:
    found = []
    for rows in (1, 16, 17):
        for rank, us in ((0, 10.0), (48, 11.0)):
            found.append(time("w4a16", rows, us, n=6144, k=4096, group=128, rank=rank))
            found.append(time("rms_norm", rows, us / 10, k=4096, rank=rank))
        found.append(time("codes", rows, 1.0, k=4096, rank=16))
        found.append(time("rope_and_cache", rows, 2.0, k=6144))
        found.append(time("linear", rows, 100.0, n=128256, k=4096, calls_per_forward=1))
        found.append(time("sample", rows, 50.0, n=128256, calls_per_forward=1))
        found.append(time("paged_attention", rows, 3.0, context=128))
        found.append(time("paged_attention", rows, 5.0, context=1024))
    return found


def written(tmp_path, variant="w4+ec"):
    path = tmp_path / "latency.json"
    parts = {"device": "cuda:0", "dtype": "bfloat16", "variant": variant, "revision": "sha256:1"}
    write(path, document(times(), MEASURED, **parts))
    return path


def test_the_scheduler_reads_the_file_and_adds_its_kernels_up(tmp_path):
    table = LatencyTable.load(written(tmp_path))
    # Two layers of product, norm, codes and rope; then head and sampling, once each.
    layers = 2 * (11.0 + 1.1 + 1.0 + 2.0)
    assert table.predict_forward_s(1, [], 1) == pytest.approx((layers + 150.0) * 1e-6)
    assert table.predict_forward_s(1, [(1, 128)], 1) == pytest.approx((layers + 150.0 + 2 * 3.0) * 1e-6)


def test_the_plain_variant_takes_no_kernel_that_computes_codes(tmp_path):
    table = LatencyTable.load(written(tmp_path, "w4"))
    assert table.predict_forward_s(1, [], 0) == pytest.approx(2 * (10.0 + 1.0 + 2.0) * 1e-6)


def test_the_table_holds_for_a_worker_on_that_gpu_only(tmp_path):
    target = LatencyTable.load(written(tmp_path)).target
    worker = {"device": "cuda:0", "revision": "sha256:1", "variant": "w4+ec", "versions": ["torch 2.11.0"]}
    assert target.mismatches(**worker) == []
    assert target.mismatches(**{**worker, "device": "cpu"})
    with pytest.raises(ConfigError, match="revision measured 'sha256:1', now 'sha256:2'"):
        target.require_match("target", device="cuda:0", revision="sha256:2")


def test_every_kernel_is_kept_with_what_its_time_depends_on(tmp_path):
    content = json.loads(written(tmp_path).read_text())
    assert content["measured"] == MEASURED
    assert len(content["kernels"]) == len(times())
    assert {"op", "n", "k", "group", "rank", "rows", "context", "median_us"} <= set(content["kernels"][0])
    assert {entry["group"] for entry in content["kernels"] if entry["op"] == "w4a16"} == {128}


def test_an_unknown_kernel_is_refused():
    with pytest.raises(ValueError, match="no kernel 'conv' in a latency table"):
        latencies([time("conv", 1, 1.0, rank=16)], "w4+ec")
