"""Processes that end, fail, or are cut off, and what is kept of them."""

import json
import time
from pathlib import Path

import pytest

from kernels.bench_all.jobs import Job
from kernels.bench_all.runner import Runner, last_document
from kernels.tuning.outcome import collect

CODE = {
    "fine": "print('a table'); print('{\"benchmark\": \"fine\"}')",
    "broken": "print('a table'); raise SystemExit(1)",
    # Says when it is ready to be interrupted, and then waits for nothing but that.
    "endless": (
        "import signal\n"
        "from kernels.tuning.outcome import collect\n"
        "def rows():\n"
        "    yield {'rows': 1}\n"
        "    signal.pause()\n"
        "found, complete = collect(rows(), str)\n"
        "import json\n"
        "print(json.dumps({'complete': complete, 'rows': found}))\n"
    ),
}


@pytest.fixture
def jobs(tmp_path, monkeypatch):
    for name, code in CODE.items():
        (tmp_path / f"job_{name}.py").write_text(code)
    root = Path(__file__).parents[3]
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{root}")
    return {name: Job(name=name, module=f"job_{name}") for name in CODE}


class Clock:
    """At the start until a file has a line, then past every deadline."""

    def __init__(self, path: Path) -> None:
        self._path, self._started = path, False

    def __call__(self) -> float:
        if not self._started:
            self._started = True
            return 0.0
        limit = time.monotonic() + 20
        while time.monotonic() < limit:
            if self._path.exists() and self._path.read_text():
                return 1e6
        raise AssertionError(f"{self._path} stayed empty")


def test_what_a_job_prints_is_kept_and_its_last_line_read(tmp_path, jobs):
    seen = []
    runner = Runner(tmp_path, time.monotonic() + 60)
    outcomes = runner.one_by_one([jobs["fine"], jobs["broken"]], seen.append)
    assert [outcome.state for outcome in outcomes] == ["done", "failed"]
    assert seen == outcomes
    assert (tmp_path / "fine.txt").read_text().startswith("a table\n")
    assert json.loads((tmp_path / "fine.json").read_text()) == {"benchmark": "fine"}
    assert not (tmp_path / "broken.json").exists()


def test_without_time_a_job_is_skipped(tmp_path, jobs):
    runner = Runner(tmp_path, time.monotonic() + 20)
    (outcome,) = runner.one_by_one([jobs["fine"]], lambda _: None)
    assert (outcome.state, outcome.document) == ("skipped", None)
    assert not (tmp_path / "fine.txt").exists()


def test_a_job_that_is_cut_off_keeps_the_rows_that_it_has(tmp_path, jobs):
    runner = Runner(tmp_path, 0.0, Clock(tmp_path / "endless.txt"))
    (outcome,) = runner.together([jobs["endless"]], 1.0)
    assert outcome.state == "cut"
    assert outcome.document == {"complete": False, "rows": [{"rows": 1}]}


def test_jobs_run_together(tmp_path, jobs):
    runner = Runner(tmp_path, time.monotonic() + 60)
    outcomes = runner.together([jobs["fine"], jobs["broken"]], time.monotonic() + 60)
    assert {outcome.name: outcome.state for outcome in outcomes} == {"fine": "done", "broken": "failed"}


def test_a_last_line_that_is_no_object_is_no_document():
    assert last_document("") is None
    assert last_document("table\nfailed") is None
    assert last_document("table\n[1]") is None
    assert last_document('table\n{"a": 1}\n') == {"a": 1}


def test_rows_are_shown_as_they_come(capsys):
    rows, complete = collect(iter([{"a": 1}, {"a": 2}]), lambda row: f"row {row['a']}")
    assert (rows, complete) == ([{"a": 1}, {"a": 2}], True)
    assert capsys.readouterr().out == "row 1\nrow 2\n"
