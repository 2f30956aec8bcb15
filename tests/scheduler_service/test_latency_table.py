"""The table as a file, its claims about where it holds, and the correction beside it."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler_service.latency_table import LatencyTable, ModelProfile, OnlineCorrection
from spearhead.errors import ConfigError
from spearhead.v1 import types_pb2
from tests.scheduler_service.latencies import compute_bound, memory_bound, profile

UNTIMED = settings(deadline=None)  # How long an example takes is no claim of these tests.


@pytest.mark.parametrize("table", [memory_bound(), LatencyTable(target=profile(row_us=1))])
def test_saved_table_loads_equal(tmp_path: Path, table: LatencyTable) -> None:
    path = tmp_path / "table.json"
    table.save(path)
    assert LatencyTable.load(path) == table


def test_saving_replaces_in_one_piece(tmp_path: Path) -> None:
    path = tmp_path / "table.json"
    path.write_text("old")
    memory_bound().save(path)
    assert [p.name for p in tmp_path.iterdir()] == ["table.json"]


def test_failed_save_leaves_nothing_behind(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be written"):
        memory_bound().save(tmp_path / "missing" / "table.json")
    (tmp_path / "folder").mkdir()
    with pytest.raises(ConfigError, match="cannot be written"):
        memory_bound().save(tmp_path / "folder")
    assert [p.name for p in tmp_path.iterdir()] == ["folder"]


def test_profile_of_a_worker_becomes_a_table() -> None:
    message = types_pb2.KernelProfile(
        device="cpu: x", versions=["torch 2"], revision="sha256:2", variant="w4",
        latencies=[
            types_pb2.KernelLatency(op="linear", n=8, k=4, rank=2, rows=r, calls_per_forward=3, median_us=r)
            for r in (1, 8)
        ],
    )  # fmt: skip
    copied = ModelProfile.from_profile(message)
    assert copied.versions == ("torch 2",)
    assert [(e.n, e.k, e.rank, e.rows, e.calls_per_forward) for e in copied.latencies] == [
        (8, 4, 2, 1, 3),
        (8, 4, 2, 8, 3),
    ]
    assert copied.cost.forward.at(8) == pytest.approx(24e-6)


def test_profile_with_too_little_is_refused_at_once() -> None:
    with pytest.raises(ConfigError, match="no 'linear' entry"):
        ModelProfile.from_profile(types_pb2.KernelProfile(device="cpu"))


def test_missing_file_says_how_to_make_one(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"does not exist.*spearhead profile.*static"):
        LatencyTable.load(tmp_path / "table.json")


@pytest.mark.parametrize(("content", "message"), [
    ("{", "cannot be read"),
    ("[]", "format None"),
    ('{"format": 99}', "format 99"),
    ('{"format": 1}', "damaged"),
    ('{"format": 1, "target": {"device": "cpu"}}', "damaged"),
    ('{"format": 1, "target": 5}', "damaged"),
])  # fmt: skip
def test_other_files_are_refused_by_name(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "table.json"
    path.write_text(content)
    with pytest.raises(ConfigError, match=rf"table\.json.*{message}"):
        LatencyTable.load(path)


def test_file_with_a_bad_measurement_is_refused_at_start(tmp_path: Path) -> None:
    path = tmp_path / "table.json"
    memory_bound().save(path)
    document = json.loads(path.read_text())
    document["draft"]["latencies"][3]["median_us"] = -5
    path.write_text(json.dumps(document))
    with pytest.raises(ConfigError, match=r"table\.json.*-5 us"):
        LatencyTable.load(path)


RIGHT: dict[str, Any] = {
    "device": "cpu",
    "revision": "sha256:1",
    "variant": "w4",
    "versions": ["torch 2.13.0"],
}


@pytest.mark.parametrize("device", ["cpu", "cpu: test, 2 threads"])
def test_the_measured_worker_is_accepted(device: str) -> None:
    profile(row_us=1).require_match("target", **{**RIGHT, "device": device})


def test_what_is_not_known_is_not_compared() -> None:
    profile(row_us=1).require_match("target", device="cpu", revision="sha256:1")


@pytest.mark.parametrize(("field", "value"), [
    ("device", "cuda:0"), ("device", "cp"), ("device", "cpu: other, 2 threads"), ("revision", "sha256:9"),
    ("variant", "fp16"), ("versions", ["torch 2.14.0"]), ("versions", []),
])  # fmt: skip
def test_another_machine_or_model_is_refused_with_both_values(field: str, value: object) -> None:
    with pytest.raises(
        ConfigError, match=rf"this target: {field}.*measured.*now.*spearhead profile"
    ) as caught:
        profile(row_us=1).require_match("target", **{**RIGHT, field: value})
    assert str(value) in caught.value.message


def test_all_differences_are_named_at_once() -> None:
    found = profile(row_us=1).mismatches(device="cuda:0", revision="x", variant="y", versions=["z"])
    assert len(found) == 4


def test_drafting_costs_one_pass_a_draft() -> None:
    table = compute_bound()
    assert table.draft
    sequences = [(1, 100), (3, 500)]
    first = table.draft.cost.predict_s(4, sequences, 2)
    later = table.draft.cost.predict_s(2, [(1, 100), (1, 500)], 2)
    assert table.predict_draft_s(sequences, 0) == table.predict_draft_s([], 5) == 0
    assert table.predict_draft_s(sequences, 1) == pytest.approx(first)
    assert table.predict_draft_s(sequences, 4) == pytest.approx(first + 3 * later)


def test_drafting_without_draft_measurements_is_refused() -> None:
    with pytest.raises(ConfigError, match="no draft measurements"):
        LatencyTable(target=profile(row_us=1)).predict_draft_s([(1, 1)], 1)


def test_forward_prediction_is_the_target_s() -> None:
    table = compute_bound()
    assert table.predict_forward_s(5, [(5, 64)], 1) == table.target.cost.predict_s(5, [(5, 64)], 1)


@UNTIMED
@given(st.floats(0.3, 3.5))
def test_correction_approaches_a_steady_ratio(ratio: float) -> None:
    correction = OnlineCorrection()
    for _ in range(200):
        correction.observe(predicted_s=0.01, measured_s=0.01 * ratio)
    assert correction.ratio == pytest.approx(ratio, rel=0.01)


@UNTIMED
@given(st.lists(st.tuples(st.floats(0, 1e3), st.floats(0, 1e6)), max_size=50))
def test_correction_stays_within_its_limit(samples: list[tuple[float, float]]) -> None:
    correction = OnlineCorrection(limit=4)
    for predicted_s, measured_s in samples:
        correction.observe(predicted_s=predicted_s, measured_s=measured_s)
    assert 0.25 <= correction.ratio <= 4


def test_one_pause_of_the_machine_moves_the_correction_little() -> None:
    correction = OnlineCorrection()
    correction.observe(predicted_s=0.01, measured_s=60)
    assert 1 < correction.ratio < 1.2


def test_nothing_predicted_teaches_nothing() -> None:
    correction = OnlineCorrection()
    correction.observe(predicted_s=0, measured_s=1)
    assert correction.ratio == 1
