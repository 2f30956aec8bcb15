"""What every pod of every combination keeps: probes, security, mounts, life cycle."""

import re
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any

from tests.deploy.cases import BASE, CASES, GPU, merged
from tests.deploy.helm import render
from tests.deploy.manifests import COMPONENTS, containers, every_case, named, pod_specs, workloads

PROBES = ("startupProbe", "readinessProbe", "livenessProbe")


def window_s(probe: Mapping[str, Any]) -> int:
    return int(probe["periodSeconds"] * probe["failureThreshold"])


def test_there_is_one_workload_a_service():
    for case, objects in every_case():
        wanted = COMPONENTS if CASES[case].get("draft", {}).get("enabled", True) else COMPONENTS - {"draft"}
        assert {workload.component for workload in workloads(objects)} == wanted, case


def test_probes_ask_numeric_ports_that_the_container_has_for_the_states_that_services_know():
    for case, objects in every_case():
        for workload in workloads(objects):
            for name in PROBES:
                asked = workload.container[name]["grpc"]
                assert asked["port"] in workload.ports.values(), (case, workload.component, name)
                assert asked["service"] == name.removesuffix("Probe"), (case, workload.component, name)


def test_probes_are_answered_in_plaintext_when_tls_is_on():
    for case, objects in every_case():
        for workload in workloads(objects):
            settings = dict(text.split("=", 1) for text in workload.overrides)
            tls = "server.tls_certificate" in settings
            listen = settings["server.health_listen" if tls else "server.listen"]
            for name in PROBES:
                port = workload.container[name]["grpc"]["port"]
                assert listen.strip('"').endswith(f":{port}"), (case, workload.component)


def test_a_busy_or_loading_service_is_not_killed_by_impatience():
    for case, objects in every_case():
        for workload in workloads(objects):
            probes = [workload.container[name] for name in PROBES]
            startup, readiness, liveness = probes
            assert all(probe["timeoutSeconds"] >= 5 for probe in probes), case
            assert window_s(liveness) > window_s(readiness), case
            assert workload.manifest["spec"]["progressDeadlineSeconds"] > window_s(startup), case


def test_the_budget_of_a_start_is_what_the_values_say_rounded_up_to_a_probe():
    verify = workloads(render(CASES["slow start"]))[1]
    assert window_s(verify.container["startupProbe"]) == 7205


def test_pods_are_admitted_by_the_restricted_pod_security_standard():
    for case, objects in every_case():
        for spec in pod_specs(objects):
            assert spec["securityContext"]["runAsNonRoot"] is True, case
            assert spec["securityContext"]["runAsUser"] == 10001, case
            assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}, case
            for container in containers(spec):
                assert container["securityContext"] == {
                    "allowPrivilegeEscalation": False,
                    "readOnlyRootFilesystem": True,
                    "capabilities": {"drop": ["ALL"]},
                }, (case, container["name"])


def test_no_pod_holds_credentials_of_the_cluster():
    for case, objects in every_case():
        for spec in pod_specs(objects):
            assert spec["automountServiceAccountToken"] is False, case
            assert spec["enableServiceLinks"] is False, case


def test_every_mount_has_a_volume_and_every_volume_a_mount():
    for case, objects in every_case():
        for spec in pod_specs(objects):
            mounted = {mount["name"] for item in containers(spec) for mount in item["volumeMounts"]}
            assert mounted == {volume["name"] for volume in spec["volumes"]}, case


def test_only_tmp_shm_and_a_volume_being_prepared_are_writable():
    for case, objects in every_case():
        for spec in pod_specs(objects):
            for container in containers(spec):
                writable = {
                    item["mountPath"] for item in container["volumeMounts"] if not item.get("readOnly")
                }
                if container["name"] == "prepare-models":
                    writable -= {"/models"}
                assert writable <= {"/tmp", "/dev/shm"}, (case, container["name"])
                assert "/tmp" in writable, (case, container["name"])


def test_every_cache_lies_where_it_may_be_written():
    for case, objects in every_case():
        for spec in pod_specs(objects):
            for container in containers(spec):
                environment = {item["name"]: item.get("value", "") for item in container["env"]}
                for name in ("HOME", "XDG_CACHE_HOME", "HF_HOME", "TRITON_CACHE_DIR", "CUDA_CACHE_PATH"):
                    assert PurePosixPath(environment[name]).is_relative_to("/tmp"), (case, name)


def test_every_file_that_a_service_is_told_of_lies_in_a_mount():
    for case, objects in every_case():
        for workload in workloads(objects):
            mounts = [item["mountPath"] for item in workload.container["volumeMounts"]]
            for argument in workload.container["args"]:
                for path in re.findall(r'="?(/[^"]+)', argument):
                    assert any(PurePosixPath(path).is_relative_to(mount) for mount in mounts), (
                        case,
                        argument,
                    )


def test_secrets_are_mounted_as_folders_since_a_sub_path_never_changes():
    for case, objects in every_case():
        for spec in pod_specs(objects):
            for container in containers(spec):
                assert not any("subPath" in mount for mount in container["volumeMounts"]), case


def test_a_pod_is_not_killed_before_its_requests_had_their_time():
    for case, objects in every_case():
        for workload in workloads(objects):
            settings = dict(text.split("=", 1) for text in workload.overrides)
            sleep = workload.container["lifecycle"]["preStop"]["sleep"]["seconds"]
            grace = workload.pod["spec"]["terminationGracePeriodSeconds"]
            assert grace >= sleep + float(settings["server.drain_s"]) + 10, case


def test_a_worker_with_a_gpu_goes_before_its_successor_comes():
    for workload in workloads(render(merged(BASE, GPU)))[1:]:
        assert workload.container["resources"]["limits"]["nvidia.com/gpu"] == 1
        rolling = workload.manifest["spec"]["strategy"]["rollingUpdate"]
        assert rolling == {"maxSurge": 0, "maxUnavailable": 1}


def test_shared_memory_is_memory_and_fits_into_the_limit():
    verify = workloads(render(CASES["much shm"]))[1]
    (shm,) = [volume for volume in verify.pod["spec"]["volumes"] if volume["name"] == "shm"]
    assert shm["emptyDir"] == {"medium": "Memory", "sizeLimit": "8Gi"}
    assert {"name": "shm", "mountPath": "/dev/shm"} in verify.container["volumeMounts"]


def test_pods_of_a_service_spread_over_nodes():
    for workload in workloads(render(BASE)):
        (spread,) = workload.pod["spec"]["topologySpreadConstraints"]
        assert spread["labelSelector"]["matchLabels"] == workload.selector
        assert spread["topologyKey"] == "kubernetes.io/hostname"


def test_images_follow_registry_tag_and_digest():
    found = {item.component: item.container["image"] for item in workloads(render(CASES["images"]))}
    assert found == {
        "scheduler": "registry.example/team/front:1.2.3",
        "verify": "registry.example/team/spearhead-cpu@sha256:" + "0" * 64,
        "draft": "registry.example/team/spearhead-cpu:1.2.3",
    }


def test_no_image_is_taken_by_a_tag_that_moves():
    for case, objects in every_case():
        for spec in pod_specs(objects):
            for container in containers(spec):
                assert re.search(r"(:(?!latest)[\w.-]+|@sha256:[0-9a-f]{64})$", container["image"]), case


def test_a_changed_file_rolls_the_pods():
    def checksum(case):
        scheduler = workloads(render(CASES[case]))[0]
        return scheduler.pod["metadata"]["annotations"]["checksum/config"]

    assert checksum("defaults") == checksum("gpu")
    assert checksum("defaults") != checksum("no draft")


def test_models_come_from_the_volume_that_was_chosen():
    def source(case):
        spec = workloads(render(CASES[case]))[0].pod["spec"]
        return next(item for item in spec["volumes"] if item["name"] == "models")

    claim = {"claimName": "rel-spearhead-models"}
    assert source("defaults")["hostPath"] == {"path": "/srv/models", "type": "Directory"}
    assert source("existing claim")["persistentVolumeClaim"] == {"claimName": "models"}
    assert source("claim")["persistentVolumeClaim"] == claim
    assert source("copied models")["emptyDir"] == {"sizeLimit": "20Gi"}


def test_a_claim_outlives_the_release():
    claim = named(render(CASES["claim with class"]), "PersistentVolumeClaim", "rel-spearhead-models")
    assert claim["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"
    assert claim["spec"]["storageClassName"] == "fast"
