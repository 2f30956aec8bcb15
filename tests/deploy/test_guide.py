"""The guide works as it is written: its values render, and what it names exists."""

import re

import pytest
import yaml
from prometheus_client import CollectorRegistry, generate_latest

from scheduler_service.caller_metrics import CallerMetrics
from scheduler_service.callers import Callers
from scheduler_service.metrics import SchedulerMetrics
from tests.deploy.cases import CASES
from tests.deploy.helm import CHART, ROOT, render
from tests.deploy.manifests import workloads

GUIDE = (ROOT / "docs" / "guides" / "kubernetes.md").read_text(encoding="utf-8")
SNIPPETS = [yaml.safe_load(text) for text in re.findall(r"```yaml\n(.*?)```", GUIDE, re.DOTALL)]
TABLE = (CHART / "VALUES.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("values", SNIPPETS)
def test_every_file_of_values_renders_as_it_stands(values):
    assert len(workloads(render(values))) == 3


def test_every_value_that_is_named_exists():
    sections = "image|model|scheduler|verify|draft|tls|auth|telemetry|monitoring|networkPolicy"
    named = set(re.findall(rf"`((?:{sections})\.[A-Za-z.]+)[`:=]", GUIDE))
    values = set(re.findall(r"^\| `([A-Za-z.]+)`", TABLE, re.MULTILINE))
    beginnings = {name.rsplit(".", count)[0] for name in values for count in range(4)}
    own = {"scheduler.config", "verify.config", "draft.config", "model.device"}
    assert len(named) >= 12
    assert named - own - beginnings == set()


def test_every_metric_that_is_named_is_exported():
    registry = CollectorRegistry()
    SchedulerMetrics(registry)
    registry.register(CallerMetrics(Callers()))
    exported = set(re.findall(r"^# TYPE (spearhead_\w+)", generate_latest(registry).decode(), re.MULTILINE))
    named = set(re.findall(r"`(spearhead_\w+)`", GUIDE))
    assert len(named) >= 8
    assert named <= exported


def test_every_object_that_is_named_is_rendered():
    names = {item["metadata"]["name"] for item in render(CASES["defaults"], release="answers")}
    assert set(re.findall(r"deployment/([\w-]+)", GUIDE)) <= names
    services = set(re.findall(r"RELEASE-([\w-]+)\.NAMESPACE", GUIDE))
    assert services == {"spearhead-scheduler", "spearhead-scheduler-pods"}
    assert {f"answers-{name}" for name in services} <= names


def test_every_file_that_is_linked_exists():
    for link in re.findall(r"\]\(([^)#]+)", GUIDE):
        path = (ROOT / "docs" / "guides" / link).resolve()
        assert path.exists(), link
