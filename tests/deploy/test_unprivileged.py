"""The services run as the chart runs them: user 10001, read-only root, one writable folder, secret files."""

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from types import MappingProxyType

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from spearhead.client import Client
from spearhead.rpc import TargetConfig
from tests.deploy.cases import AUTH, CASES, TLS, merged
from tests.deploy.helm import ROOT, render
from tests.deploy.manifests import of_kind, workloads

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


class Pods:
    """Folders that stand for the volumes of all pods: models and secrets to read, ``tmp`` to write."""

    def __init__(self, folder: Path) -> None:
        self.models, self.secrets, self.tmp = folder / "models", folder / "secrets", folder / "tmp"
        for path in (self.models, self.secrets, self.tmp):
            path.mkdir()
        os.chown(self.tmp, 10001, 10001)
        folder.chmod(0o755)
        self._log = folder / "log"
        self._processes: list[subprocess.Popen[bytes]] = []

    def run(self, *command, environment=MappingProxyType({})):
        """Runs a command to its end."""
        return subprocess.run(
            confined(self.tmp, environment, command), cwd="/", capture_output=True, text=True, check=False
        )  # fmt: skip

    def ask(self, objects, port):
        """Runs the container of `helm test` against the scheduler's port."""
        (container,) = of_kind(objects, "Pod")[0]["spec"]["containers"]
        module, *arguments = [self._moved(argument) for argument in container["args"]]
        command = [sys.executable, "-m", module, *arguments]
        index = next(i for i, argument in enumerate(command) if argument.startswith("--address="))
        command[index] = f"--address=localhost:{port}"
        return self.run(*command, environment=self._environment(container))

    def _environment(self, container):
        given = {item["name"]: item["value"] for item in container["env"] if "value" in item}
        moved = {name: value.replace("/tmp", str(self.tmp)) for name, value in given.items()}
        return moved | {"PYTHONPATH": str(ROOT), "TMPDIR": str(self.tmp), "OMP_WAIT_POLICY": "PASSIVE"}

    def serve(self, workload, ports):
        """Starts a service with the arguments and the environment of its container."""
        environment = self._environment(workload.container)
        module, _, *arguments = workload.container["args"]
        command = [sys.executable, "-m", module, f"--config={ROOT}/deploy/config/{workload.component}.toml"]
        command += [self._moved(argument) for argument in arguments]
        if workload.component == "scheduler":  # there is no DNS of a cluster here
            command += [f"--set={name}.address=localhost:{ports[name]}" for name in ("verify", "draft")]
        with self._log.open("ab") as log:
            process = subprocess.Popen(
                confined(self.tmp, environment, command), cwd="/", stdout=subprocess.DEVNULL, stderr=log
            )  # fmt: skip
        self._processes.append(process)
        return process

    def _moved(self, argument):
        return argument.replace("/models/", f"{self.models}/").replace("/etc/spearhead/", f"{self.secrets}/")

    def log(self):
        return self._log.read_text()

    def kill(self):
        for process in self._processes:
            process.kill()
            process.wait()


@pytest.fixture
def pods():
    if os.geteuid() != 0:
        pytest.skip("only root can become another user")
    with tempfile.TemporaryDirectory(prefix="pods") as folder:
        pods = Pods(Path(folder))
        if (done := pods.run("true")).returncode != 0:
            pytest.skip(f"this machine lets nobody mount or change users: {done.stderr.strip()}")
        yield pods
        pods.kill()


def names_of_workers(scheduler):
    """What the chart's scheduler wants to read in its workers' certificate."""
    return re.findall(r"tls_name=\"([^\"]+)\"", "\n".join(scheduler.container["args"]))


def write_secrets(folder: Path, worker_names) -> None:
    """The secrets of the values ``TLS`` and ``AUTH``, mounted where the chart mounts them."""
    for name, hosts in (("tls-public", ["localhost"]), ("tls-internal", worker_names)):
        place = folder / name
        place.mkdir()
        names = ",".join(f"DNS:{host}" for host in hosts)
        key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", "tls.key"]
        subject = ["-days", "2", "-subj", f"/CN={name}", "-addext", f"subjectAltName={names}"]
        command = ["openssl", "req", "-x509", *key, "-out", "tls.crt", *subject]
        subprocess.run(command, cwd=place, check=True, capture_output=True)
        shutil.copy(place / "tls.crt", place / "ca.crt")
    for name, key in (("tokens-public", "tokens"), ("tokens-internal", "token")):
        (folder / name).mkdir()
        (folder / name / key).write_text(f"secret-of-{name}\n")


def free_ports(count):
    """Ports that nobody listens on now."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [item.getsockname()[1] for item in sockets]
    for item in sockets:
        item.close()
    return ports


def rendered():
    """The chart on loopback with everything secured, and the gRPC port of each service."""
    components = ("scheduler", "verify", "draft")
    ports = iter(free_ports(9))
    values = {
        name: {key: next(ports) for key in ("port", "healthPort", "metricsPort")} for name in components
    }
    own = {"listenAddress": "127.0.0.1", "tls": TLS, "auth": AUTH, **values}
    objects = render(merged(CASES["n-gram draft"], {"verify": {"config": {"model": {"threads": 1}}}}, own))
    return objects, {name: values[name]["port"] for name in components}


def probe(workload, name):
    """What the kubelet's probe of a container answers."""
    asked = workload.container[name]["grpc"]
    with grpc.insecure_channel(f"127.0.0.1:{asked['port']}") as channel:
        request = health_pb2.HealthCheckRequest(service=asked["service"])
        return health_pb2_grpc.HealthStub(channel).Check(request, timeout=20).status


def test_secured_services_answer_clients_and_probes_and_drain_with_nothing_but_tmp_to_write(
    pods, tiny_checkpoint
):
    shutil.copytree(tiny_checkpoint("llama"), pods.models / "target")
    objects, ports = rendered()
    services = workloads(objects)
    write_secrets(pods.secrets, names_of_workers(services[0]))
    processes = [pods.serve(workload, ports) for workload in services]
    target = TargetConfig(
        address=f"localhost:{ports['scheduler']}",
        tls_ca=pods.secrets / "tls-public" / "ca.crt",
        token_file=pods.secrets / "tokens-public" / "tokens",
    )
    with Client(target) as client:
        client.wait_ready(timeout_s=120)
    asked = pods.ask(objects, ports["scheduler"])
    assert asked.returncode == 0, asked.stderr + pods.log()
    assert asked.stdout
    probes = ("startupProbe", "readinessProbe", "livenessProbe")
    answers = {(item.component, name): probe(item, name) for item in services[:2] for name in probes}
    assert set(answers.values()) == {health_pb2.HealthCheckResponse.SERVING}, answers
    for process in processes:
        process.send_signal(signal.SIGTERM)
    assert [process.wait(timeout=60) for process in processes] == [0, 0, 0], pods.log()
    assert "secret-of-" not in pods.log()


def test_what_is_confined_is_user_10001_and_writes_nowhere_else(pods):
    assert pods.run("id", "-u").stdout.strip() == "10001"
    assert pods.run("touch", str(pods.tmp / "x")).returncode == 0
    for folder in (ROOT, pods.models, Path("/tmp"), Path("/var/tmp")):
        assert "Read-only file system" in pods.run("touch", str(folder / "x")).stderr
