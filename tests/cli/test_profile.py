# ruff: noqa: N802  (the contract names the methods)
import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from scheduler_service.latency_table import LatencyTable
from spearhead.rpc import EndpointConfig, Server
from spearhead.telemetry import Telemetry
from spearhead.v1 import draft_pb2, draft_pb2_grpc, types_pb2, verify_pb2, verify_pb2_grpc
from tests.certificates import Certificates, make_certificates

ROOT = Path(__file__).resolve().parents[2]
SERVICES = ("spearhead.v1.VerifyService", "spearhead.v1.DraftService")
PROFILE = types_pb2.KernelProfile(
    device="cpu: test",
    revision="r",
    latencies=[
        types_pb2.KernelLatency(op="linear", n=8, k=8, rows=rows, calls_per_forward=1, median_us=10.0 * rows)
        for rows in (1, 2)
    ],
)


class Worker(verify_pb2_grpc.VerifyServiceServicer, draft_pb2_grpc.DraftServiceServicer):
    """Both workers behind one address: answers with one measurement, and keeps what it was asked."""

    def __init__(self) -> None:
        self.asked: list[object] = []

    async def ProfileKernels(self, request, context):
        self.asked.append(request)
        if isinstance(request, verify_pb2.VerifyServiceProfileKernelsRequest):
            return verify_pb2.VerifyServiceProfileKernelsResponse(profile=PROFILE)
        return draft_pb2.DraftServiceProfileKernelsResponse(profile=PROFILE)


Serve = Callable[..., Awaitable[str]]


@pytest.fixture
def worker() -> Worker:
    return Worker()


@pytest.fixture
async def serve(worker: Worker) -> AsyncIterator[Serve]:
    """``await serve(**endpoint) -> address`` of the worker."""
    async with contextlib.AsyncExitStack() as stack:

        async def start(**endpoint: object) -> str:
            settings = EndpointConfig(listen="127.0.0.1:0", **endpoint)
            server = Server(settings, service_names=SERVICES, telemetry=Telemetry.disabled())
            verify_pb2_grpc.add_VerifyServiceServicer_to_server(worker, server.grpc_server)
            draft_pb2_grpc.add_DraftServiceServicer_to_server(worker, server.grpc_server)
            address = await server.start()
            stack.push_async_callback(server.drain, 0.0)
            return address

        yield start


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture
def output(tmp_path: Path) -> Path:
    return tmp_path / "table.json"


async def profile(output: Path, *arguments: object) -> tuple[int, str]:
    """``spearhead profile`` as a process, since it handles signals: exit code and standard error."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "spearhead.cli", "profile", "--output", output, *map(str, arguments)),
        cwd=ROOT,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    _, errors = await process.communicate()
    return process.returncode, errors.decode()


async def test_a_worker_is_asked_for_the_shapes_and_its_answer_becomes_the_table(serve, worker, output):
    address = await serve()
    code, _ = await profile(output, "--verify-address", address, "--rows", "1,2", "--contexts", "64")
    assert code == 0
    asked = verify_pb2.VerifyServiceProfileKernelsRequest(rows=[1, 2], contexts=[64])
    assert worker.asked == [asked]
    table = LatencyTable.load(output)
    assert table.target.device == "cpu: test"
    assert table.draft is None


async def test_workers_with_tls_are_profiled_with_the_authority_that_signed(serve, certificates, output):
    address = await serve(tls_certificate=certificates.server, tls_key=certificates.server_key)
    code, _ = await profile(
        output, "--verify-address", address, "--draft-address", address, "--tls-ca", certificates.ca
    )
    assert code == 0
    assert LatencyTable.load(output).draft is not None


async def test_mutual_tls_lets_in_the_client_certificate(serve, certificates, output):
    address = await serve(
        tls_certificate=certificates.server, tls_key=certificates.server_key, tls_client_ca=certificates.ca
    )
    trusting = ("--verify-address", address, "--draft-address", address, "--tls-ca", certificates.ca)
    proof = ("--tls-certificate", certificates.client, "--tls-key", certificates.client_key)
    code, _ = await profile(output, *trusting, *proof)
    assert code == 0
    assert LatencyTable.load(output).draft is not None


async def test_mutual_tls_keeps_out_whoever_has_no_certificate(serve, worker, certificates, output):
    address = await serve(
        tls_certificate=certificates.server, tls_key=certificates.server_key, tls_client_ca=certificates.ca
    )
    code, errors = await profile(output, "--verify-address", address, "--tls-ca", certificates.ca)
    assert code == 1
    assert "spearhead profile: UNAVAILABLE: " in errors
    assert worker.asked == []
    assert not output.exists()


async def test_the_token_is_sent_to_both_workers(serve, worker, tmp_path, output):
    token_file = tmp_path / "tokens"
    token_file.write_text("a-long-secret-token\n")
    address = await serve(token_file=token_file)
    both = ("--verify-address", address, "--draft-address", address)
    code, _ = await profile(output, *both, "--token-file", token_file)
    assert code == 0
    assert len(worker.asked) == 2


async def test_without_the_token_the_worker_refuses_and_no_table_is_written(serve, worker, tmp_path, output):
    token_file = tmp_path / "tokens"
    token_file.write_text("a-long-secret-token\n")
    address = await serve(token_file=token_file)
    code, errors = await profile(output, "--verify-address", address)
    assert code == 1
    assert "spearhead profile: UNAUTHENTICATED: " in errors
    assert worker.asked == []
    assert not output.exists()


async def test_another_authority_is_exit_code_1_and_says_what_to_check(serve, certificates, tmp_path, output):
    address = await serve(tls_certificate=certificates.server, tls_key=certificates.server_key)
    other = make_certificates(tmp_path)
    code, errors = await profile(output, "--verify-address", address, "--tls-ca", other.ca)
    assert code == 1
    assert f"spearhead profile: UNAVAILABLE: TLS with {address} failed: " in errors
    assert "check that both sides use TLS, that tls_ca signed" in errors
    assert not output.exists()


async def test_a_certificate_for_another_name_is_trusted_only_under_that_name(serve, tmp_path, output):
    certificates = make_certificates(tmp_path, names="DNS:answers-verify")
    address = await serve(tls_certificate=certificates.server, tls_key=certificates.server_key)
    trusting = ("--verify-address", address, "--tls-ca", certificates.ca)
    code, errors = await profile(output, *trusting)
    assert code == 1
    assert f"spearhead profile: UNAVAILABLE: TLS with {address} failed: " in errors
    assert "the server's certificate is for another name: set tls_name (--tls-name)" in errors
    code, _ = await profile(output, *trusting, "--tls-name", "answers-verify")
    assert code == 0


async def test_a_missing_authority_file_is_exit_code_2(tmp_path, output):
    code, errors = await profile(output, "--verify-address", "127.0.0.1:1", "--tls-ca", tmp_path / "none.pem")
    assert code == 2
    assert f"tls_ca {tmp_path / 'none.pem'} cannot be read" in errors


async def test_credentials_that_do_not_go_together_are_exit_code_2(output):
    code, errors = await profile(output, "--verify-address", "127.0.0.1:1", "--tls-key", "key.pem")
    assert code == 2
    assert errors == (
        "spearhead profile: connection to 127.0.0.1:1: tls_certificate and tls_key belong together; "
        "set both or neither\n"
    )


async def test_credentials_for_workers_of_its_own_are_refused(output):
    code, errors = await profile(output, "--model", "tiny", "--tls-ca", "ca.pem", "--token-file", "token")
    assert code == 2
    assert "--tls-ca, --token-file would have no effect without --verify-address" in errors
