"""The images hold what they need, as somebody who may do little, from parts that do not move."""

import re
import tomllib

import pytest

from tests.deploy.cases import BASE, GPU, merged
from tests.deploy.dockerfile import lineage, read_stages
from tests.deploy.helm import ROOT, render
from tests.deploy.manifests import workloads

DOCKERFILE = ROOT / "deploy" / "Dockerfile"
TEXT = DOCKERFILE.read_text(encoding="utf-8")
STAGES = read_stages(DOCKERFILE)
TARGETS = ("scheduler", "gpu", "cpu")
PACKAGES = set(
    tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["hatch"]["build"]["targets"][
        "wheel"
    ]["packages"]
)


def steps(target, word):
    return [rest for name, rest in lineage(STAGES, target) if name == word]


def copied(target):
    return {
        source
        for rest in steps(target, "COPY")
        if not rest.startswith("--from")
        for source in rest.split()[:-1]
    }


def environment(target):
    pairs = " ".join(steps(target, "ENV")).split()
    return dict(pair.split("=", 1) for pair in pairs)


@pytest.mark.parametrize("target", TARGETS)
def test_an_image_runs_as_a_number_that_the_chart_names(target):
    assert steps(target, "USER") == ["10001:10001"]
    assert lineage(STAGES, target)[-2][0] == "USER"


@pytest.mark.parametrize("target", TARGETS)
def test_an_image_takes_the_arguments_of_the_chart(target):
    assert steps(target, "ENTRYPOINT") == ['["python", "-m"]']


def test_the_bases_are_an_argument_with_a_full_version():
    (default,) = re.findall(r"^ARG PYTHON_IMAGE=(\S+)$", TEXT, re.MULTILINE)
    assert re.fullmatch(r"python:3\.1[12]\.\d+-slim-[a-z]+", default)
    outside = {stage.base for stage in STAGES.values()} - STAGES.keys()
    assert outside == {"${PYTHON_IMAGE}"}


def test_nothing_is_taken_by_a_version_that_moves():
    assert ":latest" not in TEXT
    assert not re.search(r"^(ADD|VOLUME|EXPOSE)\b", TEXT, re.MULTILINE)
    assert "curl" not in TEXT and "wget" not in TEXT


def test_every_locked_install_checks_hashes():
    installs = [line for stage in STAGES.values() for word, line in stage.steps if "pip install" in line]
    locked = [line for line in installs if "--requirement" in line]
    assert len(locked) == 3
    assert all("--require-hashes" in line and "--no-deps" in line for line in locked)
    assert all("--no-cache-dir" in line for line in installs)


def test_the_scheduler_is_installed_without_torch():
    assert copied("scheduler") == {"LICENSE", "spearhead", "scheduler_service"}
    assert not re.search(r"^(torch|triton|transformers|nvidia-\S+)==", locked("scheduler.txt"), re.MULTILINE)


def test_the_model_images_hold_what_their_services_import():
    assert copied("gpu") == {"LICENSE"} | PACKAGES - {"scheduler_service"}
    assert copied("cpu") == {"LICENSE"} | PACKAGES


def test_the_context_of_the_build_is_what_the_images_copy():
    lines = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    assert lines[1] == "*"
    kept = {line.removeprefix("!") for line in lines if line.startswith("!")}
    assert kept == PACKAGES | {"LICENSE", "deploy/requirements"}
    assert all((ROOT / path).exists() for path in kept)


@pytest.mark.parametrize("target", TARGETS)
def test_image_and_chart_agree_on_where_caches_lie(target):
    (container,) = workloads(render(BASE))[0].pod["spec"]["containers"]
    chart = {item["name"]: item["value"] for item in container["env"] if "/tmp" in item.get("value", "")}
    assert len(chart) >= 6
    assert chart.items() <= environment(target).items()


def test_the_chart_asks_for_images_that_are_built():
    cpu, gpu = render(BASE), render(merged(BASE, GPU))
    asked = {item.container["image"].split(":")[0] for item in [*workloads(cpu), *workloads(gpu)]}
    assert asked == {f"spearhead-{target}" for target in TARGETS}
    assert set(re.findall(r"--target (\w+)", TEXT)) == set(TARGETS)


def locked(name):
    return (ROOT / "deploy" / "requirements" / name).read_text(encoding="utf-8")
