import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spearhead.cli.bench.drive import Outcome
from spearhead.cli.bench.memory import memory_report
from spearhead.cli.bench.report import compare, run_table
from spearhead.cli.bench.statistics import as_json, percentile, summarise, token_gaps_s
from spearhead.client import Finished, SpeculationStats, Timings, Usage


def outcome(times=((1.0, 1), (1.5, 2), (1.6, 1)), **changes):
    finished = Finished(
        reason="length",
        usage=Usage(prompt_tokens=3, completion_tokens=4),
        speculation=SpeculationStats(drafted_tokens=4, accepted_tokens=1, rounds=2, active=True),
        timings=Timings(network_s=0.004, scheduler_s=0.002),
    )
    values = {"sent_s": 0.5, "done_s": 2.0, "token_times_s": tuple(times), "finished": finished} | changes
    return Outcome(**values)


def test_a_delta_of_two_tokens_counts_as_two_gaps_of_half_its_length():
    assert token_gaps_s(outcome()) == pytest.approx([0.25, 0.25, 0.1])


def test_a_summary_has_the_hand_computed_numbers():
    summary = summarise([outcome(), outcome(sent_s=0.0)])
    assert (summary.requests, summary.completed, summary.output_tokens) == (2, 2, 8)
    assert summary.duration_s == 2.0
    assert summary.tokens_per_s == 4.0
    assert summary.acceptance == 0.25
    assert summary.tokens_per_round == 1.5
    assert summary.ttft_ms.p50 == pytest.approx(500)
    assert summary.ttft_ms.maximum == pytest.approx(1000)
    assert summary.gap_ms.maximum == pytest.approx(500)
    assert summary.overhead_ms_per_step.p50 == pytest.approx(3.0)


def test_failed_and_cancelled_requests_are_counted_but_do_not_enter_latencies():
    failed = outcome(times=(), finished=None, error="UNAVAILABLE: away")
    cancelled = outcome(finished=None, cancelled=True)
    summary = summarise([failed, cancelled])
    assert (summary.completed, summary.failed, summary.cancelled) == (0, 1, 1)
    assert summary.errors == ("UNAVAILABLE: away",)
    assert math.isnan(summary.ttft_ms.p50)
    assert as_json(summary)["ttft_ms"]["p50"] is None


@given(st.lists(st.floats(0, 1e3), min_size=1), st.floats(0.01, 1))
def test_a_percentile_is_a_member_with_enough_of_the_sample_below(sample, share):
    ordered = sorted(sample)
    value = percentile(ordered, share)
    assert value in ordered
    assert sum(x <= value for x in ordered) >= share * len(ordered) - 1e-9


def test_growth_is_measured_over_the_second_half():
    mib = 1 << 20
    report = memory_report([10 * mib, 50 * mib, 60 * mib, 60 * mib, 61 * mib])
    assert report == {
        "start_mib": 10.0, "peak_mib": 61.0, "end_mib": 61.0, "growth_second_half_mib": 1.0,
    }  # fmt: skip


def test_the_table_has_a_row_a_run_and_lines_for_overhead_baseline_memory_and_failures():
    runs = {
        "1 at once": summarise([outcome()]),
        "8 at once": summarise([outcome(finished=None, error="boom")]),
    }
    memory = {"verify": memory_report([1 << 20])}
    text = run_table(runs, compare({1: 25.0}, {1: 12.5}), memory)
    assert "scheduler + gRPC + serialisation" in text
    assert ["1", "at", "once", "25.0", "12.5", "2.00"] in [line.split() for line in text.splitlines()]
    assert "resident memory" in text
    assert "8 at once: 1 failed: boom" in text
