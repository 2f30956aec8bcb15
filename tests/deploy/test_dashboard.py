"""The dashboard asks only for what the services export."""

import json
import re
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from scheduler_service.accounting import Summary
from scheduler_service.metrics import SchedulerMetrics
from scheduler_service.output import Finish, FinishReason
from spearhead.model.engine import Failure, FailureReason
from spearhead.telemetry.metrics import BaseMetrics
from spearhead.worker.metrics import WorkerMetrics

DASHBOARD = Path(__file__).parents[2] / "deploy" / "dashboards" / "spearhead.json"
# What Prometheus adds when it scrapes.
TARGET_LABELS = {"job", "instance", "namespace", "pod"}
SUMMARY = Summary(
    finish=Finish(reason=FinishReason.LENGTH), prompt_tokens=1, completion_tokens=1, cached_tokens=0,
    drafted_tokens=0, accepted_tokens=0, rounds=1, speculation_active=False, speculation_inactive="",
    e2e_s=1.0, time_to_first_token_s=1.0, queue_s=0.0, prefill_s=0.0, draft_s=0.0, verify_s=0.0,
    network_s=0.0, scheduler_s=0.0, preemptions=0,
)  # fmt: skip


def exported():
    """Sample names of all services to their labels, after everything has happened once."""
    registries = [CollectorRegistry() for _ in range(3)]
    scheduler = SchedulerMetrics(registries[0])
    scheduler.finished(SUMMARY, trace_id="")
    scheduler.failed("overloaded", SUMMARY, trace_id="")
    scheduler.stale_reply("verify")
    base = BaseMetrics(registries[0])
    base.observe_rpc("a.B/C", "OK", 0.1)
    for kind, registry in zip(("verify", "draft"), registries[1:], strict=True):
        worker = WorkerMetrics(registry, kind)
        worker.item_errors([Failure(reason=FailureReason.OUT_OF_PAGES, message="none free")])
        worker.set_variant("w4")
    return {
        sample.name: set(sample.labels)
        for registry in registries
        for metric in registry.collect()
        for sample in metric.samples
    }


def panels():
    return [panel for panel in json.loads(DASHBOARD.read_text())["panels"] if panel["type"] != "row"]


def selectors(query):
    """Metric and label names of every selector in a PromQL query."""
    return [
        (name, set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", matchers)))
        for name, matchers in re.findall(r"([a-z_]\w*)\{([^}]*)\}", query)
    ]


QUERIES = [target["expr"] for panel in panels() for target in panel["targets"]]


@pytest.mark.parametrize("query", QUERIES)
def test_every_metric_and_label_of_a_query_is_exported(query):
    names = exported()
    found = selectors(query)
    assert found
    grouped = {
        label.strip() for labels in re.findall(r"\bby \(([^)]*)\)", query) for label in labels.split(",")
    }
    for name, labels in found:
        assert name in names
        assert labels <= names[name] | TARGET_LABELS
    assert grouped <= set().union(*(names[name] for name, _ in found)) | TARGET_LABELS
    # Every metric name carries a selector, so none escapes the check above.
    bare = re.sub(r"\{[^}]*\}", "{}", query)
    assert not re.findall(r"\b(?:spearhead|process)_\w+\b(?!\{)", bare)


def test_labels_in_legends_are_those_that_the_query_keeps():
    for panel in panels():
        for target in panel["targets"]:
            wanted = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
            kept = re.search(r"by \(([^)]*)\)", target["expr"])
            assert wanted <= ({label.strip() for label in kept.group(1).split(",")} if kept else set()), (
                panel["title"]
            )


def test_panels_have_ids_of_their_own_and_do_not_overlap():
    every = json.loads(DASHBOARD.read_text())["panels"]
    assert len({panel["id"] for panel in every}) == len(every)
    taken = set()
    for panel in every:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not cells & taken, panel["title"]
        assert at["x"] + at["w"] <= 24
        taken |= cells


def test_the_latency_panels_lead_to_traces():
    linked = {panel["title"] for panel in panels() if any(target["exemplar"] for target in panel["targets"])}
    assert linked == {"Time to first token", "Time between outputs", "Whole request"}
