"""Install, upgrade, rollback and uninstall with the real helm against an API stand-in."""

import json

import pytest

from tests.deploy.cases import BASE, CASES, merged
from tests.deploy.helm import CHART, MAJORS, run
from tests.deploy.kubernetes_api import serving
from tests.deploy.kubernetes_objects import Key, Objects
from tests.deploy.kubernetes_schema import VERSIONS

NAMESPACE = "serving"


class Cluster:
    """A stand-in with helm pointed at it."""

    def __init__(self, objects, url, home):
        self.objects = objects
        self._url, self._home = url, home

    def helm(self, major, command, *arguments, release="rel", values=None):
        options = ["--namespace", NAMESPACE, "--kube-apiserver", self._url]
        return run(major, command, release, *arguments, *options, values=values, home=self._home)

    def put(self, major, command, values, release="rel"):
        arguments = [str(CHART), "--disable-openapi-validation"]
        done = self.helm(major, command, *arguments, release=release, values=values)
        assert done.code == 0, done.errors

    def names(self):
        return {(key.resource, key.name) for key in self.objects.stored if key.resource != "secrets"}

    def deployment(self, component):
        key = Key(
            api_version="apps/v1", resource="deployments", namespace=NAMESPACE,
            name=f"rel-spearhead-{component}",
        )  # fmt: skip
        return self.objects.get(key)


@pytest.fixture
def cluster(tmp_path):
    objects = Objects(version=VERSIONS[1])
    with serving(objects) as url:
        yield Cluster(objects, url, tmp_path)


@pytest.mark.parametrize("major", MAJORS)
def test_a_release_is_installed_upgraded_rolled_back_and_gone(cluster, major):
    cluster.put(major, "install", BASE)
    first = cluster.deployment("verify")["spec"]
    cluster.put(major, "upgrade", merged(BASE, {"image": {"tag": "0.2.0"}, "verify": {"shmSize": "2Gi"}}))
    (container,) = cluster.deployment("verify")["spec"]["template"]["spec"]["containers"]
    assert container["image"] == "spearhead-cpu:0.2.0"
    assert cluster.helm(major, "rollback", "1").code == 0
    assert cluster.deployment("verify")["spec"] == first
    history = json.loads(cluster.helm(major, "history", "--output", "json").output)
    assert [entry["status"] for entry in history] == ["superseded", "superseded", "deployed"]
    assert cluster.helm(major, "uninstall").code == 0
    assert cluster.names() == set()


def test_a_release_of_helm_3_is_upgraded_by_helm_4(cluster):
    cluster.put(3, "install", CASES["production"])
    before = cluster.names()
    cluster.put(4, "upgrade", merged(CASES["production"], {"image": {"tag": "0.2.0"}}))
    assert cluster.names() == before


def test_an_upgrade_that_switches_parts_off_takes_their_objects_away(cluster):
    cluster.put(4, "install", CASES["production"])
    assert ("scaledobjects", "rel-spearhead-scheduler") in cluster.names()
    cluster.put(4, "upgrade", merged(CASES["claim"], {"draft": {"enabled": False}}))
    gone = {name for name in cluster.names() if "draft" in name[1] or name[0] == "scaledobjects"}
    assert gone == set()
    assert cluster.deployment("scheduler")["spec"]["replicas"] == 1


def test_a_claim_with_models_survives_the_release(cluster):
    cluster.put(4, "install", CASES["claim"])
    assert cluster.helm(4, "uninstall").code == 0
    assert cluster.names() == {("persistentvolumeclaims", "rel-spearhead-models")}


def test_settings_change_without_a_change_of_selectors(cluster):
    cluster.put(4, "install", BASE)
    for case in ("all tls and tokens", "other ports", "images", "hpa", "gpu"):
        cluster.put(4, "upgrade", CASES[case])


def test_a_second_release_lives_beside_the_first(cluster):
    cluster.put(4, "install", BASE)
    first = cluster.names()
    cluster.put(4, "install", BASE, release="other")
    assert len(cluster.names()) == 2 * len(first)


def test_the_stand_in_refuses_what_an_api_server_would(cluster):
    cluster.put(4, "install", BASE)
    broken = merged(BASE, {"verify": {"affinity": {"nodeAffinity": {"misspelt": 1}}}})
    done = cluster.helm(4, "upgrade", str(CHART), "--disable-openapi-validation", values=broken)
    assert done.code != 0
    assert "misspelt" in done.errors
    renamed = merged(BASE, {"nameOverride": "other", "fullnameOverride": "rel-spearhead"})
    done = cluster.helm(4, "upgrade", str(CHART), "--disable-openapi-validation", values=renamed)
    assert "field is immutable" in done.errors
