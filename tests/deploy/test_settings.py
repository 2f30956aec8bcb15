"""The services accept the configuration that the chart gives them, and it says what the values say."""

import pytest

from draft_service.config import DraftConfig
from scheduler_service.config import SchedulerConfig
from spearhead.config import load
from tests.deploy.cases import BASE, CASES
from tests.deploy.helm import CHART, ROOT, render
from tests.deploy.manifests import every_case, named, of_kind, workloads
from verify_service.config import VerifyConfig

CONFIGS = {"scheduler": SchedulerConfig, "verify": VerifyConfig, "draft": DraftConfig}


@pytest.fixture
def configuration(tmp_path):
    """``configuration(objects)`` → what each service would make of its file and arguments."""

    def read(objects):
        found = {}
        for workload in workloads(objects):
            name = workload.manifest["metadata"]["name"]
            path = tmp_path / f"{workload.component}.toml"
            (text,) = named(objects, "ConfigMap", name)["data"].values()
            path.write_text(text, encoding="utf-8")
            found[workload.component] = load(CONFIGS[workload.component], path, workload.overrides)
        return found

    return read


def test_every_service_accepts_what_every_combination_gives_it(configuration):
    for case, objects in every_case():
        assert configuration(objects).keys() == {item.component for item in workloads(objects)}, case


def test_a_service_is_started_with_the_file_that_is_mounted():
    for workload in workloads(render(BASE)):
        module, config, *_ = workload.container["args"]
        assert module == f"{workload.component}_service"
        assert config == f"--config=/etc/spearhead/config/{workload.component}.toml"
        (volume,) = [item for item in workload.pod["spec"]["volumes"] if item["name"] == "config"]
        assert volume["configMap"]["name"] == workload.manifest["metadata"]["name"]


def test_the_files_are_those_of_deploy_config():
    assert (CHART / "config").resolve() == ROOT / "deploy" / "config"
    for item in of_kind(render(BASE), "ConfigMap"):
        ((name, text),) = item["data"].items()
        assert text.strip() == (ROOT / "deploy" / "config" / name).read_text(encoding="utf-8").strip()


def test_without_a_draft_service_the_scheduler_knows_of_none(configuration):
    assert configuration(render(BASE))["scheduler"].draft is not None
    without = configuration(render(CASES["no draft"]))["scheduler"]
    assert without.draft is None
    assert without.acceptance == configuration(render(BASE))["scheduler"].acceptance


def test_the_scheduler_calls_the_workers_where_their_services_are(configuration):
    for case, objects in every_case():
        found = configuration(objects)
        domain = CASES[case].get("clusterDomain", "cluster.local")
        services = {
            f"{item['metadata']['name']}.serving.svc.{domain}:{item['spec']['ports'][0]['port']}"
            for item in of_kind(objects, "Service")
        }
        scheduler = found["scheduler"]
        targets = [scheduler.verify, *([scheduler.draft] if scheduler.draft else [])]
        assert {target.address.removeprefix("dns:///") for target in targets} <= services, case
        assert len({target.address for target in targets}) == len(found) - 1, case


def test_of_several_workers_the_scheduler_finds_every_pod_and_of_one_the_lasting_address(configuration):
    several = configuration(render(CASES["several workers"]))["scheduler"]
    assert several.verify.address == "dns:///rel-spearhead-verify-pods.serving.svc.cluster.local:50052"
    assert several.draft.address == "dns:///rel-spearhead-draft-pods.serving.svc.cluster.local:50053"
    one = configuration(render(BASE))["scheduler"]
    assert one.verify.address == "rel-spearhead-verify.serving.svc.cluster.local:50052"


def test_however_many_pods_a_worker_has_its_certificate_names_one_service(configuration):
    target = configuration(render(CASES["several workers with TLS"]))["scheduler"].verify
    assert target.tls_name == "rel-spearhead-verify.serving.svc.cluster.local"


def test_both_ends_of_a_connection_agree_on_tls_and_tokens(configuration):
    for case, objects in every_case():
        found = configuration(objects)
        scheduler = found["scheduler"]
        targets = {"verify": scheduler.verify, "draft": scheduler.draft}
        for name in found.keys() - {"scheduler"}:
            target, server = targets[name], found[name].server
            assert (target.tls_ca is None) == (server.tls_certificate is None), case
            assert (target.tls_certificate is None) == (server.tls_client_ca is None), case
            assert target.token_file == server.token_file, case


def test_services_listen_where_other_machines_reach_them(configuration):
    for case, objects in every_case():
        for config in configuration(objects).values():
            host = CASES[case].get("listenAddress", "0.0.0.0")
            assert config.server.listen.startswith(f"{host}:"), case
            assert config.telemetry.metrics_listen.startswith(f"{host}:"), case


def test_values_of_every_type_arrive_as_they_are(configuration):
    verify = configuration(render(CASES["settings of all kinds"]))["verify"]
    assert verify.stuck_after_s == 60.5
    assert verify.variants.hold == ("w4", "fp16")
    assert verify.variants.keep_four_bits is False
    assert verify.kv_cache.memory_mib == 65536
    assert verify.model.name == 'with "quotes", <b> & $(HOME)'


def test_large_numbers_are_not_rounded(configuration):
    limits = configuration(render(CASES["limits of the scheduler"]))["scheduler"].limits
    assert (limits.max_waiting_tokens, limits.verify_timeout_s) == (2_000_000, 90.0)


def test_a_latency_table_turns_its_policy_on(configuration):
    policy = configuration(render(CASES["latency table"]))["scheduler"].policy
    assert (policy.kind, str(policy.table)) == ("table", "/etc/spearhead/latency-table/latency-table.json")
    assert configuration(render(CASES["linear policy"]))["scheduler"].policy.kind == "linear"


def test_models_are_looked_for_below_the_mount(configuration):
    found = configuration(render(CASES["other mount path"]))
    assert found["verify"].model.path == "/srv/weights/a/b"
    assert found["draft"].model.path == "/srv/weights/draft"
    assert str(found["scheduler"].model.tokenizer) == "/srv/weights/c"


def test_a_drafter_without_weights_reads_the_target(configuration):
    assert configuration(render(CASES["n-gram draft"]))["draft"].model.path == "/models/target"


def test_threads_follow_whole_cores_unless_they_are_given(configuration):
    def threads(case):
        return configuration(render(CASES[case]))["verify"].model.threads

    assert [threads(case) for case in ("defaults", "whole cores", "parts of cores", "threads and cores")] == [
        0, 8, 0, 4,
    ]  # fmt: skip


def test_a_gpu_is_computed_on(configuration):
    assert configuration(render(CASES["gpu"]))["verify"].model.device == "cuda"
    assert configuration(render(BASE))["verify"].model.device == "cpu"


def test_logs_are_for_machines(configuration):
    assert {item.telemetry.log_format for item in configuration(render(BASE)).values()} == {"json"}
