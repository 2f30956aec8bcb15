import pytest

from spearhead.trace.clocks import WorkerClocks
from tests.trace.conftest import MS, START


def test_a_workers_moment_is_found_on_the_schedulers_clock(story, traces):
    for number in range(5):
        story.step(number, 20.0 * number, members={}, network=9.0 if number else 0.5)
    clocks = WorkerClocks(traces(story).spans)
    ((scheduler, worker, time_ns),) = clocks.on_scheduler_clocks("verify-1", START + 5_050 * MS)
    assert (scheduler, worker) == ("scheduler-1", "verify")
    assert time_ns == pytest.approx(START + 50 * MS, abs=0.3 * MS)
    assert clocks.offset_ns("verify-1") == pytest.approx(5_000 * MS, abs=0.3 * MS)


def test_a_process_of_which_no_round_trip_is_known_keeps_its_own_clock(story, traces):
    story.step(1, 0.0, members={})
    clocks = WorkerClocks(traces(story).spans)
    assert list(clocks.on_scheduler_clocks("elsewhere", 7)) == []
    assert clocks.offset_ns("scheduler-1") == 0


def test_only_round_trips_near_the_moment_count_since_clocks_drift(story, traces):
    story.step(1, 0.0, members={}, network=0.1)
    story.skew_ms = 4_990.0
    story.step(2, 600_000.0, members={}, network=0.6)
    clocks = WorkerClocks(traces(story).spans)
    ((_, _, time_ns),) = clocks.on_scheduler_clocks("verify-1", START + 604_990 * MS)
    assert time_ns == pytest.approx(START + 600_000 * MS, abs=0.4 * MS)
