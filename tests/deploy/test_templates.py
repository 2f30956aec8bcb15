"""Every combination of values renders, the same with helm 3 and 4, into objects that Kubernetes knows."""

import json

import pytest

from tests.deploy.cases import BASE, CASES
from tests.deploy.helm import CHART, MAJORS, render, run, template
from tests.deploy.kubernetes_schema import VERSIONS, problems


@pytest.mark.parametrize("case", CASES)
def test_helm_3_and_4_render_the_same_objects(case):
    assert render(CASES[case], major=3) == render(CASES[case], major=4)


@pytest.mark.parametrize("version", VERSIONS)
def test_every_object_of_every_combination_keeps_the_strict_schema(version):
    objects = {json.dumps(item): item for values in CASES.values() for item in render(values)}
    assert len(CASES) >= 60
    assert len(objects) > 200
    assert [problem for item in objects.values() for problem in problems(item, version)] == []


@pytest.mark.parametrize("version", VERSIONS)
def test_the_strict_schema_finds_a_misspelt_key(version):
    budget = next(item for item in render(BASE) if item["kind"] == "PodDisruptionBudget")
    misspelt = {**budget, "spec": {**budget["spec"], "maxUnavailble": 1}}
    assert any("maxUnavailble" in problem for problem in problems(misspelt, version))


@pytest.mark.parametrize("major", MAJORS)
def test_lint_is_content(major):
    done = run(major, "lint", "--strict", str(CHART), values=BASE)
    assert done.code == 0, done.output
    assert "[WARNING]" not in done.output + done.errors


@pytest.mark.parametrize("major", MAJORS)
def test_a_packed_chart_renders_what_its_folder_does(major, tmp_path):
    packed = run(major, "package", str(CHART), "--destination", str(tmp_path), home=tmp_path)
    assert packed.code == 0, packed.errors
    (archive,) = tmp_path.glob("spearhead-*.tgz")
    done = run(major, "template", "rel", str(archive), "--namespace", "serving", values=BASE)
    assert done.output == template(BASE, major=major).output


@pytest.mark.parametrize("major", MAJORS)
def test_the_chart_works_as_a_dependency_of_another_chart(major, tmp_path):
    umbrella = tmp_path / "umbrella"
    (umbrella / "charts").mkdir(parents=True)
    (umbrella / "charts" / "spearhead").symlink_to(CHART)
    (umbrella / "Chart.yaml").write_text(
        "apiVersion: v2\nname: umbrella\nversion: 1.0.0\n"
        "dependencies: [{name: spearhead, version: 0.x, repository: ''}]\n"
    )
    done = run(major, "template", "rel", str(umbrella), values={"global": {"tier": "x"}, "spearhead": BASE})
    assert done.code == 0, done.errors
    assert "name: rel-spearhead-verify" in done.output


def test_notes_name_the_address_that_clients_use(tmp_path):
    done = run(
        4, "install", "rel", str(CHART), "--namespace=serving", "--dry-run=client", values=BASE, home=tmp_path
    )  # fmt: skip
    assert "dns:///rel-spearhead-scheduler-pods.serving.svc.cluster.local:50051" in done.output
    assert "helm test rel --namespace serving" in done.output
