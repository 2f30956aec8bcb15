"""The scripts that fill the model volume, run by a real shell."""

import os
import subprocess
from pathlib import Path

import pytest

from tests.deploy.cases import CASES, merged
from tests.deploy.helm import render
from tests.deploy.manifests import workloads

# Stands in for the interpreter of the image: writes down how it was called, and makes the artefact.
PYTHON = (
    '#!/bin/sh\necho "$@" >> "$CALLS"\nfor target; do :; done\nmkdir "$target"\ntouch "$target/config.json"\n'
)


def init_container(case, component="verify", changes=None):
    objects = render(merged(CASES[case], changes or {}))
    (workload,) = [item for item in workloads(objects) if item.component == component]
    (container,) = workload.pod["spec"]["initContainers"]
    return container


class Volume:
    """A model volume in a folder, and a shell to run init containers on it."""

    def __init__(self, folder: Path) -> None:
        self.models = folder / "models"
        self.calls = folder / "calls"
        self._bin = folder / "bin"
        for path in (self.models, self._bin):
            path.mkdir()
        (self._bin / "python").write_text(PYTHON)
        (self._bin / "python").chmod(0o755)

    def run(self, container, **environment):
        """Runs the container's script with its paths moved into the folder."""
        given = {item["name"]: item["value"] for item in container["env"] if "value" in item}
        moved = {name: value.replace("/models", str(self.models)) for name, value in given.items()}
        (script,) = container["args"]
        return subprocess.run(
            [*container["command"], script],
            env=moved | {"PATH": f"{self._bin}:/usr/bin:/bin", "CALLS": str(self.calls)} | environment,
            capture_output=True, text=True, check=False,
        )  # fmt: skip

    def called(self):
        return self.calls.read_text().splitlines() if self.calls.exists() else []


@pytest.fixture
def volume(tmp_path):
    return Volume(tmp_path)


@pytest.fixture
def source(tmp_path):
    folder = tmp_path / "image"
    (folder / "target").mkdir(parents=True)
    (folder / "target" / "config.json").write_text("{}")
    return folder


def test_models_are_copied_once(volume, source):
    container = init_container("copied models")
    assert volume.run(container, SOURCE=str(source)).returncode == 0
    copied = volume.models / "target" / "config.json"
    assert copied.read_text() == "{}"
    os.utime(copied, (1, 1))
    assert volume.run(container, SOURCE=str(source)).returncode == 0
    assert copied.stat().st_mtime == 1


def test_a_copy_that_failed_is_not_taken_for_whole(volume, tmp_path):
    container = init_container("copied models")
    assert volume.run(container, SOURCE=str(tmp_path / "nothing")).returncode != 0
    assert not list(volume.models.glob(".prepared-*"))


def test_quantising_runs_once_with_the_options_of_the_values(volume):
    container = init_container("quantised with token")
    for _ in range(2):
        done = volume.run(container)
        assert done.returncode == 0, done.stderr
    options = "-m spearhead.cli quantize --scheme group32 --method gptq"
    assert volume.called() == [f"{options} owner/name {volume.models}/target"]


def test_a_full_precision_model_on_the_volume_is_found_there(volume):
    (volume.models / "full").mkdir()
    assert volume.run(init_container("quantised on host path")).returncode == 0
    assert volume.called()[0].endswith(f"{volume.models}/full {volume.models}/target")


def test_an_artefact_of_other_settings_is_not_passed_off(volume):
    volume.run(init_container("quantised models"))
    other = init_container("quantised models", changes={"model": {"prepare": {"scheme": "channel"}}})
    done = volume.run(other)
    assert done.returncode == 1
    assert "was made with other settings" in done.stderr


def test_an_artefact_that_was_finished_right_before_a_crash_is_kept(volume):
    container = init_container("quantised models")
    volume.run(container)
    (mark,) = [path for path in volume.models.glob(".prepared-*") if path.suffix != ".started"]
    mark.unlink()
    assert volume.run(container).returncode == 0
    assert len(volume.called()) == 1


def test_the_pods_that_do_not_prepare_wait_for_the_mark_of_the_one_that_does(volume):
    prepare, wait = init_container("quantised models"), init_container("quantised models", "scheduler")
    assert (prepare["name"], wait["name"]) == ("prepare-models", "wait-for-models")
    volume.run(prepare)
    assert volume.run(wait).returncode == 0


def test_each_pod_prepares_a_volume_of_its_own():
    names = {init_container("copied models", name)["name"] for name in ("scheduler", "verify", "draft")}
    assert names == {"prepare-models"}


def test_a_token_of_the_hub_is_a_reference_that_only_the_preparing_pod_holds():
    def token(component):
        environment = init_container("quantised with token", component)["env"]
        return [item["valueFrom"] for item in environment if item["name"] == "HF_TOKEN"]

    assert token("verify") == [{"secretKeyRef": {"name": "hub", "key": "token"}}]
    assert token("scheduler") == []
