"""The report as text, JSON, page and Perfetto file."""

import json
from html.parser import HTMLParser

import pytest

from spearhead.trace.html import report_html
from spearhead.trace.perfetto import perfetto_trace
from spearhead.trace.report import build_report
from spearhead.trace.text import report_data, report_text

VOID = {"meta"}
NASTY = 'a<script>alert(1)</script>"&'


class Checker(HTMLParser):
    """Notes unbalanced tags and everything that could load something."""

    def __init__(self):
        super().__init__()
        self.open, self.problems, self.names, self.words = [], [], set(), ""

    def handle_starttag(self, tag, attrs):
        self.names.add(tag)
        if tag not in VOID:
            self.open.append(tag)
        for name, value in attrs:
            if name in ("src", "href", "xlink:href", "srcset", "action") or name.startswith("on"):
                self.problems.append((tag, name, value))

    def handle_endtag(self, tag):
        if self.open.pop() != tag:
            self.problems.append((tag, "unbalanced"))

    def handle_data(self, data):
        self.words += data


@pytest.fixture
def spans_and_report(story, traces):
    now = story.step(0, 1.0, members={NASTY: ("prefill", 40)}, draft=0.0, prefill=40)
    story.round(NASTY, 0, now, drafted=0, accepted=0, emitted=1)
    for number in range(1, 20):
        now = story.step(number, now, members={NASTY: ("decode", 1)}, verify=45.0 if number == 9 else 8.0)
        story.round(NASTY, number, now)
    story.request(NASTY, 0.0, now, waits=((0.0, 1.0, "slots"),))
    found = traces(story)
    return found.spans, build_report(found)


def test_the_text_names_request_token_cause_and_parts(spans_and_report):
    text = report_text(spans_and_report[1], top=5)
    assert f"request {NASTY}" in text
    assert "37.0 ms late: VERIFY — verifying" in text
    assert "late tokens: 1 (verify 1 by 37.0 ms)" in text
    assert "verify 45.0 ms, draft 2.0 ms" in text


def test_the_json_holds_every_late_token_with_parts_that_add_up(spans_and_report):
    document = json.loads(json.dumps(report_data(spans_and_report[1])))
    (late,) = document["late"]
    assert (late["cause"], late["request_id"], late["step_id"]) == ("verify", NASTY, 9)
    assert sum(late["parts_ns"].values()) == late["gap_ns"]
    assert document["requests"][0]["tokens"] == 77
    assert document["format"] == "spearhead-trace-report"


def test_the_page_is_balanced_loads_nothing_runs_nothing_and_escapes_names(spans_and_report):
    checker = Checker()
    checker.feed(report_html(spans_and_report[1], top=5))
    assert (checker.open, checker.problems) == ([], [])
    assert "script" not in checker.names
    assert NASTY in checker.words
    assert {"svg", "rect", "details", "table"} <= checker.names


def test_the_page_of_a_long_request_stays_small(story, traces):
    now = story.step(0, 1.0, members={"a": ("prefill", 40)}, draft=0.0, prefill=40)
    for number in range(1, 1500):
        now = story.step(number, now, members={"a": ("decode", 1)}, verify=8.0 + number % 7)
        story.round("a", number, now)
    story.request("a", 0.0, now)
    assert len(report_html(build_report(traces(story)), top=5)) < 400_000


def test_the_perfetto_file_has_a_track_a_request_and_clocks_that_agree(spans_and_report):
    spans, report = spans_and_report
    events = json.loads(json.dumps(perfetto_trace(spans, report)))["traceEvents"]
    names = {event["args"]["name"] for event in events if event["ph"] == "M"}
    assert {"requests", NASTY, "steps"} <= names
    assert any(event["name"] == "LATE: verify" for event in events)
    steps = [event for event in events if event["name"] == "engine.step"]
    forwards = [event for event in events if event["name"] == "verify.forward"]
    for step, forward in zip(steps, forwards, strict=True):
        assert step["ts"] <= forward["ts"] <= forward["ts"] + forward["dur"] <= step["ts"] + step["dur"]
    arrows = [event["id"] for event in events if event["ph"] == "s"]
    assert arrows == [event["id"] for event in events if event["ph"] == "f"]
    assert len(arrows) == 20
