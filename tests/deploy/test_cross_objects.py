"""What has to agree between objects: names, selectors, ports, scalers, policies."""

import json
import re
from collections import Counter

from prometheus_client import CollectorRegistry, generate_latest

from scheduler_service.metrics import SchedulerMetrics
from tests.deploy.cases import BASE, CASES, merged
from tests.deploy.helm import ROOT, render, template
from tests.deploy.manifests import every_case, named, of_kind, selects, workloads

IDENTITY = {"app.kubernetes.io/name", "app.kubernetes.io/instance", "app.kubernetes.io/component"}


def test_a_service_selects_the_pods_of_one_workload_and_ports_that_these_have():
    for case, objects in every_case():
        for service in of_kind(objects, "Service"):
            chosen = [
                item for item in workloads(objects) if selects(service["spec"]["selector"], item.labels)
            ]
            assert len(chosen) == 1, (case, service["metadata"]["name"])
            for port in service["spec"]["ports"]:
                assert port["targetPort"] in chosen[0].ports, case
                assert port["port"] == chosen[0].ports[port["targetPort"]], case


def test_every_pod_of_a_service_can_be_found_through_a_headless_service():
    for component in ("scheduler", "verify", "draft"):
        pods = named(render(BASE), "Service", f"rel-spearhead-{component}-pods")
        assert pods["spec"]["clusterIP"] == "None"


def test_one_service_of_each_workload_has_the_port_of_the_metrics():
    for case, objects in every_case():
        ports = [
            json.dumps(item["spec"]["selector"], sort_keys=True)
            for item in of_kind(objects, "Service")
            for port in item["spec"]["ports"]
            if port["name"] == "metrics"
        ]
        assert len(ports) == len(set(ports)) == len(workloads(objects)), case


def test_selectors_hold_nothing_that_changes_with_a_version():
    for case, objects in every_case():
        for workload in workloads(objects):
            assert workload.selector.keys() == IDENTITY, case
            assert selects(workload.selector, workload.labels), case


def test_every_pod_has_exactly_one_budget_with_the_selector_of_its_workload():
    for case, objects in every_case():
        budgets = of_kind(objects, "PodDisruptionBudget")
        if CASES[case].get("pdb", {}).get("enabled") is False:
            assert budgets == [], case
            continue
        for workload in workloads(objects):
            own = [
                item for item in budgets if selects(item["spec"]["selector"]["matchLabels"], workload.labels)
            ]
            assert [item["spec"]["selector"]["matchLabels"] for item in own] == [workload.selector], case


def test_a_budget_never_forbids_to_drain_a_node():
    for case, objects in every_case():
        for budget in of_kind(objects, "PodDisruptionBudget"):
            assert "minAvailable" not in budget["spec"], case
            assert budget["spec"]["unhealthyPodEvictionPolicy"] == "AlwaysAllow", case


def test_every_pod_is_scraped_once():
    for case, objects in every_case():
        monitors = of_kind(objects, "ServiceMonitor", "PodMonitor")
        if not monitors:
            continue
        scraped = Counter()
        for monitor in monitors:
            selector = monitor["spec"]["selector"]["matchLabels"]
            if monitor["kind"] == "PodMonitor":
                (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
                chosen = [item for item in workloads(objects) if selects(selector, item.labels)]
                scraped.update(item.component for item in chosen if endpoint["port"] in item.ports)
                continue
            (endpoint,) = monitor["spec"]["endpoints"]
            for service in of_kind(objects, "Service"):
                ports = {port["name"] for port in service["spec"]["ports"]}
                if selects(selector, service["metadata"]["labels"]) and endpoint["port"] in ports:
                    scraped[service["metadata"]["labels"]["app.kubernetes.io/component"]] += 1
        assert scraped == {item.component: 1 for item in workloads(objects)}, case


def test_the_labels_that_a_prometheus_selects_by_are_on_the_monitors():
    for monitor in of_kind(render(CASES["service monitor with labels"]), "ServiceMonitor"):
        assert monitor["metadata"]["labels"]["release"] == "prometheus"


def test_the_dashboard_of_the_repository_is_found_by_the_sidecar_of_grafana():
    found = named(render(CASES["dashboard"]), "ConfigMap", "rel-spearhead-dashboards")
    assert found["metadata"]["labels"]["grafana_dashboard"] == "1"
    files = {path.name: json.loads(path.read_text()) for path in (ROOT / "deploy/dashboards").glob("*.json")}
    assert {name: json.loads(text) for name, text in found["data"].items()} == files


def test_whoever_scales_owns_the_number_of_pods():
    for case, objects in every_case():
        scalers = of_kind(objects, "HorizontalPodAutoscaler", "ScaledObject")
        assert len(scalers) <= 1, case
        targets = {item["spec"]["scaleTargetRef"]["name"] for item in scalers}
        for workload in workloads(objects):
            scaled = workload.manifest["metadata"]["name"] in targets
            assert scaled == ("replicas" not in workload.manifest["spec"]), case
        assert targets <= {item.manifest["metadata"]["name"] for item in workloads(objects)}, case


def test_scalers_ask_for_metrics_that_the_scheduler_exports():
    registry = CollectorRegistry()
    SchedulerMetrics(registry)
    exported = set(re.findall(r"^(spearhead_\w+)", generate_latest(registry).decode(), re.MULTILINE))
    asked = set()
    for _, objects in every_case():
        for scaler in of_kind(objects, "HorizontalPodAutoscaler", "ScaledObject"):
            asked.update(re.findall(r"spearhead_\w+", str(scaler["spec"])))
    assert asked == {"spearhead_num_requests_waiting"}
    assert asked <= exported


def test_every_name_fits_with_the_longest_release_name():
    for kind, name in _names("r" * 53):
        assert len(name) <= 63, (kind, name)


def test_two_releases_in_one_namespace_share_no_name():
    longest = "r" * 52
    for first, second in (("a", "b"), ("a", "a-spearhead"), (f"{longest}a", f"{longest}b")):
        assert not _names(first) & _names(second)


def test_two_releases_select_each_their_own_pods():
    first, second = (workloads(render(BASE, release=name)) for name in ("a", "a-spearhead"))
    for workload in first:
        assert not any(selects(workload.selector, other.labels) for other in second)


def test_no_two_objects_of_a_kind_have_one_name():
    for case, objects in every_case():
        names = [(item["kind"], item["metadata"]["name"]) for item in objects]
        assert len(set(names)) == len(names), case


def _names(release):
    values = merged(BASE, {"scheduler": {"autoscaling": {"kind": "hpa"}}})
    return {(item["kind"], item["metadata"]["name"]) for item in render(values, release=release)}


def test_every_label_is_one_that_the_api_server_takes():
    syntax = re.compile(r"(?=.{0,63}$)([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?$")
    for case, objects in every_case():
        for item in objects:
            for value in item["metadata"]["labels"].values():
                assert syntax.match(value), (case, value)


def test_secrets_are_only_referred_to():
    for case, objects in every_case():
        assert of_kind(objects, "Secret") == [], case
    arguments = str([item.container["args"] for item in workloads(render(CASES["all tls and tokens"]))])
    assert "/etc/spearhead/tokens-internal/token" in arguments


def test_nothing_is_random():
    values = CASES["production"]
    assert template(values).output == template(values).output
