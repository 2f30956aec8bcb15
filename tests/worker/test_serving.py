"""The life of a worker process."""

import signal
import subprocess
import sys
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from spearhead.trace.spans import read_traces

SCRIPT = Path(__file__).with_name("slow_worker.py")
ROOT = Path(__file__).parents[2]


@pytest.fixture
def loading(tmp_path):
    address = f"unix:{tmp_path / 'w.sock'}"
    process = subprocess.Popen(
        [sys.executable, str(SCRIPT), address], cwd=ROOT, env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin"},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.readline() == "loading\n"
    yield process, address
    process.kill()
    process.wait()


def test_a_loading_worker_is_alive_but_neither_started_nor_ready(loading):
    _, address = loading
    with grpc.insecure_channel(address) as channel:
        check = health_pb2_grpc.HealthStub(channel).Check
        states = {
            name: check(health_pb2.HealthCheckRequest(service=name), timeout=20, wait_for_ready=True).status
            for name in ("liveness", "startup", "readiness")
        }
    serving, not_serving = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING
    assert states == {"liveness": serving, "startup": not_serving, "readiness": not_serving}


def test_sigterm_while_loading_ends_the_process_without_waiting_for_the_load(loading):
    process, _ = loading
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=30) == 0


def test_reading_the_model_is_a_span(tmp_path):
    traces = tmp_path / "traces.jsonl"
    process = subprocess.Popen(
        [sys.executable, str(SCRIPT), f"unix:{tmp_path / 'w.sock'}", str(traces)], cwd=ROOT,
        env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin"}, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == "loading\n"
        with grpc.insecure_channel(f"unix:{tmp_path / 'w.sock'}") as channel:
            watch = health_pb2_grpc.HealthStub(channel).Watch(
                health_pb2.HealthCheckRequest(service="readiness"), timeout=20, wait_for_ready=True
            )
            assert any(state.status == health_pb2.HealthCheckResponse.SERVING for state in watch)
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=30) == 0
    # The collection that follows the load may be long enough to be told as a stall.
    names = [span.name for span in read_traces([traces]).spans]
    assert [name for name in names if name != "process.stall"] == ["model.load"]
