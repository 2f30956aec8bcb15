"""Verifiers of several ranks: in one pod, and as a group of pods."""

import pytest

from tests.deploy.cases import BASE, CASES, GROUPS, merged
from tests.deploy.helm import MAJORS, Manifest, render
from tests.deploy.kubernetes_schema import VERSIONS, problems
from tests.deploy.manifests import containers, named, of_kind, selects, workloads
from tests.deploy.test_network_policies import allowed
from tests.deploy.test_workloads import PROBES

LEADER, WORKER = "leaderTemplate", "workerTemplate"


def settings(pod: Manifest) -> dict[str, str]:
    """The settings that a pod's service is started with."""
    (container,) = pod["spec"]["containers"]
    overrides = [text.removeprefix("--set=") for text in container["args"] if text.startswith("--set=")]
    return dict(text.split("=", 1) for text in overrides)


def limits(pod: Manifest) -> dict[str, object]:
    (container,) = pod["spec"]["containers"]
    return dict(container["resources"]["limits"])


def verify(case: str) -> Manifest:
    return workloads(render(CASES[case]))[1].pod


def group_of(objects: list[Manifest]) -> dict[str, Manifest]:
    (found,) = of_kind(objects, "LeaderWorkerSet")
    return dict(found["spec"]["leaderWorkerTemplate"])


def labels(pod: Manifest) -> dict[str, str]:
    return dict(pod["metadata"]["labels"])


def test_a_pod_has_the_gpus_of_its_ranks_and_says_how_many_there_are():
    pod = verify("ranks on gpus")
    assert limits(pod)["nvidia.com/gpu"] == 4
    chosen = settings(pod)
    assert chosen["parallel.tensor_parallel_size"] == "4"
    assert chosen["parallel.launch"] == '"spawn"'
    assert chosen["model.device"] == '"cuda"'
    assert {"name": "shm", "mountPath": "/dev/shm"} in pod["spec"]["containers"][0]["volumeMounts"]


def test_ranks_of_a_pod_share_its_cores():
    assert settings(verify("ranks on processors"))["model.threads"] == "3"
    assert "nvidia.com/gpu" not in limits(verify("ranks on processors"))


def test_one_rank_is_told_nothing_of_others():
    for case in ("defaults", "gpu"):
        assert not [key for key in settings(verify(case)) if key.startswith("parallel.")]


def test_what_the_user_sets_of_ranks_is_kept():
    assert settings(verify("patient ranks"))["parallel.lost_after_s"] == "10"


@pytest.mark.parametrize("case", GROUPS)
def test_a_group_is_what_its_controller_and_kubernetes_know(case):
    objects = render(GROUPS[case])
    assert render(GROUPS[case], major=MAJORS[0]) == objects
    for version in VERSIONS:
        assert [found for item in objects for found in problems(item, version)] == []
        for name in (LEADER, WORKER):
            pod = {"apiVersion": "v1", "kind": "PodTemplate", "metadata": {"name": name}}
            assert problems({**pod, "template": group_of(objects)[name]}, version) == []


@pytest.mark.parametrize("case", GROUPS)
def test_a_group_stands_in_the_place_of_the_deployment(case):
    objects = render(GROUPS[case])
    assert "verify" not in {item.component for item in workloads(objects)}
    found = of_kind(objects, "LeaderWorkerSet")[0]["spec"]
    verify = GROUPS[case]["verify"]
    assert found["replicas"] == verify.get("replicas", 1)
    assert found["leaderWorkerTemplate"]["size"] == 2
    # Ranks start together, or not at all.
    assert found["leaderWorkerTemplate"]["restartPolicy"] == "RecreateGroupOnPodRestart"
    assert found["startupPolicy"] == "LeaderCreated"


def test_pods_of_a_group_share_the_ranks_and_find_their_place_in_the_environment():
    group = group_of(render(GROUPS["groups on gpus"]))
    for pod in (group[LEADER], group[WORKER]):
        assert limits(pod)["nvidia.com/gpu"] == 8
        chosen = settings(pod)
        assert chosen["parallel.tensor_parallel_size"] == "16"
        assert chosen["parallel.launch"] == '"environment"'
        assert chosen["parallel.rendezvous_port"] == "29500"
        assert chosen["parallel.start_timeout_s"] == "1620"
    assert settings(group[LEADER]) == settings(group[WORKER])
    probe = group[LEADER]["spec"]["containers"][0]["startupProbe"]
    assert probe["periodSeconds"] * probe["failureThreshold"] == 1800  # who is missing is said before
    assert group[LEADER]["spec"]["containers"][0]["image"] == group[WORKER]["spec"]["containers"][0]["image"]


@pytest.mark.parametrize("case", GROUPS)
def test_only_leaders_are_behind_services_and_monitors(case):
    objects = render(GROUPS[case])
    group = group_of(objects)
    chosen = [
        item
        for item in of_kind(objects, "Service", "PodMonitor")
        if selects(
            item["spec"]["selector"].get("matchLabels", item["spec"]["selector"]), labels(group[LEADER])
        )
    ]
    assert {item["metadata"]["name"] for item in of_kind(chosen, "Service")} == {
        "rel-spearhead-verify", "rel-spearhead-verify-pods",
    }  # fmt: skip
    for item in of_kind(objects, "Service", "PodMonitor"):
        selector = item["spec"]["selector"].get("matchLabels", item["spec"]["selector"])
        assert not selects(selector, labels(group[WORKER]))
    names = {port["name"] for port in group[WORKER]["spec"]["containers"][0]["ports"]}
    assert "metrics" not in names


def test_the_service_that_the_controller_makes_has_a_name_of_its_own():
    objects = render(GROUPS["group"])
    (group,) = of_kind(objects, "LeaderWorkerSet")
    assert group["metadata"]["name"] not in {item["metadata"]["name"] for item in of_kind(objects, "Service")}


@pytest.mark.parametrize("case", GROUPS)
def test_every_pod_of_a_group_is_probed_in_plaintext_on_a_port_that_it_has(case):
    for name in (LEADER, WORKER):
        pod = group_of(render(GROUPS[case]))[name]
        (container,) = pod["spec"]["containers"]
        ports = {port["containerPort"] for port in container["ports"]}
        chosen = settings(pod)
        listen = chosen["server.health_listen" if "server.tls_certificate" in chosen else "server.listen"]
        for probe in PROBES:
            asked = container[probe]["grpc"]
            assert asked["port"] in ports
            assert listen.strip('"').endswith(f":{asked['port']}")
            assert asked["service"] == probe.removesuffix("Probe")


@pytest.mark.parametrize("case", GROUPS)
def test_pods_of_a_group_are_restricted_and_mount_what_they_have(case):
    for name in (LEADER, WORKER):
        spec = group_of(render(GROUPS[case]))[name]["spec"]
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["automountServiceAccountToken"] is False
        mounted = {mount["name"] for item in containers(spec) for mount in item["volumeMounts"]}
        assert mounted == {volume["name"] for volume in spec["volumes"]}


def test_one_budget_covers_a_whole_group():
    objects = render(GROUPS["group"])
    budget = named(objects, "PodDisruptionBudget", "rel-spearhead-verify")
    (expression,) = budget["spec"]["selector"]["matchExpressions"]
    assert expression["values"] == ["verify", "verify-worker"]
    group = group_of(objects)
    for name in (LEADER, WORKER):
        own = labels(group[name])
        assert selects(budget["spec"]["selector"]["matchLabels"], own)
        assert own[expression["key"]] in expression["values"]
    assert budget["spec"]["maxUnavailable"] == 1


def test_ranks_reach_one_another_on_any_port_and_nobody_else_reaches_workers():
    objects = render(GROUPS["group"])
    group = group_of(objects)
    leader, worker = labels(group[LEADER]), labels(group[WORKER])
    scheduler = workloads(objects)[0].labels
    for port in (29500, 43210):
        for one, other in ((leader, worker), (worker, leader), (worker, worker)):
            assert allowed(objects, "egress", one, port, other)
            assert allowed(objects, "ingress", one, port, other)
    assert allowed(objects, "ingress", leader, 50052, scheduler)
    assert not allowed(objects, "ingress", worker, 50052, scheduler)
    assert not allowed(objects, "ingress", worker, 29500, {"app": "stranger"})
    assert not allowed(objects, "ingress", leader, 29500, {"app": "stranger"})
    assert allowed(objects, "egress", worker, 53, {"namespace": "kube-system"})
    assert not allowed(objects, "egress", worker, 443, {"namespace": "anywhere"})
    assert allowed(render(GROUPS["group with hub"]), "egress", worker, 443, {"namespace": "anywhere"})


def test_pods_without_a_group_have_no_way_to_one_another():
    objects = render(CASES["ranks on gpus"])
    own = workloads(objects)[1].labels
    assert not allowed(objects, "ingress", own, 29500, own)
    assert not of_kind(objects, "LeaderWorkerSet")


def test_schedulers_look_up_all_leaders_of_several_groups():
    scheduler = workloads(render(merged(BASE, GROUPS["groups on gpus"])))[0]
    (address,) = [text for text in scheduler.overrides if text.startswith("verify.address=")]
    assert address == 'verify.address="dns:///rel-spearhead-verify-pods.serving.svc.cluster.local:50052"'
