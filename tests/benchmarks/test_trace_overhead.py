"""The benchmark's own claims, at a size that says nothing about speed."""

import asyncio
import json

import pytest

from benchmarks.trace_causes_stack import make_model
from benchmarks.trace_overhead import Measurement, compare, measure, trouble


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return make_model(tmp_path_factory.mktemp("overhead") / "model")


def of(tokens_per_s, itl_p99_ms, shutdown_s):
    return Measurement(tokens_per_s=tokens_per_s, itl_p99_ms=itl_p99_ms, shutdown_s=shutdown_s, span_count=0)


@pytest.mark.parametrize(
    ("measured", "within"),
    [
        (of(99.5, 10.1, 2.9), True),
        (of(98.0, 10.0, 1.0), False),
        (of(100.0, 10.3, 1.0), False),
        (of(100.0, 10.0, 3.1), False),
    ],
)
def test_a_case_is_within_limits_when_all_of_its_numbers_are(measured, within):
    rows = compare({"off": [of(100.0, 10.0, 1.0)], "refused": [measured]})
    assert [row["within_limits"] for row in rows] == [True, within]
    assert json.loads(json.dumps(rows)) == rows


def test_medians_over_runs_are_compared():
    runs = [of(100.0, 10.0, 1.0), of(1.0, 999.0, 9.0), of(100.0, 10.0, 1.0)]
    (row,) = compare({"off": runs})
    assert (row["tokens_per_s"], row["itl_p99_ms"], row["shutdown_s"]) == (100.0, 10.0, 1.0)


@pytest.mark.parametrize("case", ["black hole", "killed"])
async def test_a_case_answers_all_requests_and_only_a_living_collector_gets_spans(case, model, tmp_path):
    measured = await measure(case, model, tmp_path / "stack", streams=2, tokens=12)
    assert measured.tokens_per_s > 0
    assert (measured.span_count > 0) == (case == "killed")


async def test_a_black_hole_accepts_and_never_answers():
    async with trouble("black hole") as stage:
        port = int(str(stage.settings["otlp_endpoint"]).rpartition(":")[2])
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"hello")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await reader.read(1)
        writer.close()


async def test_where_it_is_refused_nobody_listens():
    async with trouble("refused") as stage:
        port = int(str(stage.settings["otlp_endpoint"]).rpartition(":")[2])
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", port)
