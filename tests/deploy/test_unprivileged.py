"""The services run as the chart runs them: user 10001, a read-only root, one writable folder."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from spearhead.client import Client, SamplingParams
from tests.deploy.cases import CASES
from tests.deploy.helm import ROOT, render
from tests.deploy.manifests import workloads

# What a container runtime does: mounts of one's own, a read-only root, then another user. Reading is left
# free, since everybody can read an image, and perhaps not this machine's Python.
CONFINE = """
mount --bind "$1" "$1"
mount --options remount,ro,bind /
shift
exec setpriv --reuid=10001 --regid=10001 --clear-groups --no-new-privs --inh-caps=+dac_read_search \
    --ambient-caps=+dac_read_search --bounding-set=-all,+dac_read_search env --ignore-environment "$@"
"""


def confined(writable: Path, environment, command):
    """The command line that runs a command as a pod would."""
    settings = [f"{name}={value}" for name, value in environment.items()]
    script = ["unshare", "--mount", "sh", "-euc", CONFINE, "sh", str(writable)]
    return [*script, *settings, *command]


class Pod:
    """A folder that stands for the volumes: models to read, ``tmp`` to write."""

    def __init__(self, folder: Path) -> None:
        self.models, self.tmp = folder / "models", folder / "tmp"
        self.models.mkdir()
        self.tmp.mkdir()
        os.chown(self.tmp, 10001, 10001)
        folder.chmod(0o755)
        self._log = folder / "log"
        self._processes: list[subprocess.Popen[bytes]] = []

    def run(self, *command):
        """Runs a command to its end; says whether it succeeded."""
        return subprocess.run(
            confined(self.tmp, {}, command), cwd="/", capture_output=True, text=True, check=False
        )  # fmt: skip

    def serve(self, workload):
        """Starts a service with the arguments and the environment of its container."""
        given = {item["name"]: item["value"] for item in workload.container["env"] if "value" in item}
        environment = {name: value.replace("/tmp", str(self.tmp)) for name, value in given.items()}
        module, _, *arguments = workload.container["args"]
        moved = [argument.replace("/models/", f"{self.models}/") for argument in arguments]
        config = f"--config={ROOT}/deploy/config/{workload.component}.toml"
        own = [f"--set={key}={value}" for key, value in self._places(workload.component).items()]
        environment |= {"PYTHONPATH": str(ROOT), "TMPDIR": str(self.tmp), "OMP_WAIT_POLICY": "PASSIVE"}
        command = [sys.executable, "-m", module, config, *moved, *own]
        with self._log.open("ab") as log:
            process = subprocess.Popen(
                confined(self.tmp, environment, command), cwd="/", stdout=subprocess.DEVNULL, stderr=log
            )  # fmt: skip
        self._processes.append(process)
        return process

    def _places(self, component):
        places = {"server.listen": self.address(component), "telemetry.metrics_listen": "127.0.0.1:0"}
        if component == "scheduler":
            return places | {f"{name}.address": self.address(name) for name in ("verify", "draft")}
        return places | {"model.threads": "1"}

    def address(self, component):
        return f"unix:{self.tmp}/{component}.sock"

    def log(self):
        return self._log.read_text()

    def kill(self):
        for process in self._processes:
            process.kill()
            process.wait()


@pytest.fixture
def pod():
    if os.geteuid() != 0:
        pytest.skip("only root can become another user")
    with tempfile.TemporaryDirectory(prefix="pod") as folder:
        pod = Pod(Path(folder))
        if (done := pod.run("true")).returncode != 0:
            pytest.skip(f"this machine lets nobody mount or change users: {done.stderr.strip()}")
        yield pod
        pod.kill()


def test_three_services_answer_and_drain_with_nothing_but_tmp_to_write(pod, tiny_checkpoint):
    shutil.copytree(tiny_checkpoint("llama"), pod.models / "target")
    processes = [pod.serve(workload) for workload in workloads(render(CASES["n-gram draft"]))]
    with Client(pod.address("scheduler")) as client:
        client.wait_ready(timeout_s=120)
        sampling = SamplingParams(temperature=0.0, max_tokens=8)
        events = list(client.generate(prompt="The quick brown fox", sampling=sampling))
    assert events, pod.log()
    for process in processes:
        process.send_signal(signal.SIGTERM)
    assert [process.wait(timeout=60) for process in processes] == [0, 0, 0], pod.log()


def test_what_is_confined_is_user_10001_and_writes_nowhere_else(pod):
    assert pod.run("id", "-u").stdout.strip() == "10001"
    assert pod.run("touch", str(pod.tmp / "x")).returncode == 0
    for folder in (ROOT, pod.models, Path("/tmp"), Path("/var/tmp")):
        assert "Read-only file system" in pod.run("touch", str(folder / "x")).stderr
