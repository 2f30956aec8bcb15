"""The network policies let through what the services need, computed from their settings, and no more."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from tests.deploy.cases import CASES
from tests.deploy.helm import Manifest, render
from tests.deploy.manifests import every_case, of_kind, selects, workloads

STRANGER = {"app": "stranger"}


def allowed(
    objects: Sequence[Manifest], direction: str, pod: Mapping[str, str], port: int, peer: Mapping[str, str]
) -> bool:
    """Whether policies let a pod talk with a peer pod of its namespace, as the API defines it."""
    rules = [
        rule
        for policy in of_kind(objects, "NetworkPolicy")
        if selects(policy["spec"]["podSelector"]["matchLabels"], pod)
        for rule in policy["spec"][direction]
    ]
    return any(_rule_allows(rule, direction, port, peer) for rule in rules)


def _rule_allows(rule: Mapping[str, Any], direction: str, port: int, peer: Mapping[str, str]) -> bool:
    peers = rule.get("from" if direction == "ingress" else "to", [])
    ports = [item["port"] for item in rule.get("ports", [])]
    return (not ports or port in ports) and (not peers or any(_is_peer(item, peer) for item in peers))


def _is_peer(item: Mapping[str, Any], peer: Mapping[str, str]) -> bool:
    pod = item.get("podSelector", {}).get("matchLabels", {})
    namespace = item.get("namespaceSelector", {}).get("matchLabels", {})
    home = {"kubernetes.io/metadata.name": peer.get("namespace", "serving")}
    return pod.items() <= peer.items() and namespace.items() <= home.items()


def with_policies() -> list[tuple[str, Sequence[Manifest]]]:
    return [(case, objects) for case, objects in every_case() if of_kind(objects, "NetworkPolicy")]


def test_the_scheduler_reaches_its_workers_and_nobody_else_does():
    for case, objects in with_policies():
        scheduler, *workers = workloads(objects)
        for worker in workers:
            port = worker.ports["grpc"]
            assert allowed(objects, "egress", scheduler.labels, port, worker.labels), case
            assert allowed(objects, "ingress", worker.labels, port, scheduler.labels), case
            assert not allowed(objects, "ingress", worker.labels, port, STRANGER), case


def test_workers_do_not_reach_one_another():
    objects = render(CASES["defaults"])
    _, verify, draft = workloads(objects)
    assert not allowed(objects, "egress", verify.labels, draft.ports["grpc"], draft.labels)
    assert not allowed(objects, "ingress", draft.labels, draft.ports["grpc"], verify.labels)


def test_every_pod_resolves_names():
    for case, objects in with_policies():
        for workload in workloads(objects):
            assert allowed(objects, "egress", workload.labels, 53, {"namespace": "kube-system"}), case


def test_metrics_can_be_read_from_another_namespace():
    for case, objects in with_policies():
        for workload in workloads(objects):
            reader = {"namespace": "ingress"}
            assert allowed(objects, "ingress", workload.labels, workload.ports["metrics"], reader), case


@pytest.mark.parametrize(
    ("case", "port"),
    [("collector", 4317), ("collector on another port", 443), ("collector without port", 4317)],
)
def test_traces_leave_on_the_port_of_the_collector(case, port):
    objects = render(CASES[case])
    for workload in workloads(objects):
        assert allowed(objects, "egress", workload.labels, port, {"namespace": "observability"})


def test_without_a_collector_workers_reach_nothing_but_names():
    objects = render(CASES["defaults"])
    for workload in workloads(objects)[1:]:
        assert not allowed(objects, "egress", workload.labels, 4317, {"namespace": "observability"})
        assert not allowed(objects, "egress", workload.labels, 443, {"namespace": "anywhere"})


def test_clients_are_everybody_unless_they_are_named():
    scheduler = workloads(render(CASES["defaults"]))[0]
    port = scheduler.ports["grpc"]
    assert allowed(render(CASES["defaults"]), "ingress", scheduler.labels, port, STRANGER)
    narrow = render(CASES["narrow network policy"])
    assert allowed(narrow, "ingress", scheduler.labels, port, {"namespace": "ingress"})
    assert not allowed(narrow, "ingress", scheduler.labels, port, STRANGER)


def test_the_pod_of_helm_test_is_a_client_always():
    for case, objects in with_policies():
        (test,) = of_kind(objects, "Pod")
        scheduler = workloads(objects)[0]
        labels = test["metadata"]["labels"]
        assert allowed(objects, "ingress", scheduler.labels, scheduler.ports["grpc"], labels), case


def test_a_model_hub_is_reached_when_it_is_allowed():
    objects = render(CASES["policy with hub"])
    scheduler, verify, _ = workloads(objects)
    assert allowed(objects, "egress", verify.labels, 443, {"namespace": "anywhere"})
    assert not allowed(objects, "egress", scheduler.labels, 443, {"namespace": "anywhere"})
