import socket

import pytest

from spearhead.errors import ConfigError
from spearhead.rpc import EndpointConfig, Server
from spearhead.telemetry import Telemetry
from spearhead.v1 import scheduler_pb2, scheduler_pb2_grpc


@pytest.fixture
async def started(serve):
    async def start(listen):
        return (await serve(listen=listen)).address

    return start


async def refusal(listen, **endpoint):
    server = Server(
        EndpointConfig(listen=listen, **endpoint), service_names=[], telemetry=Telemetry.disabled()
    )
    with pytest.raises(ConfigError) as raised:
        await server.start()
    return raised.value.message


async def test_port_0_becomes_a_real_port(started):
    host, port = (await started("127.0.0.1:0")).split(":")
    assert host == "127.0.0.1"
    assert int(port) > 0


async def test_a_port_in_use_is_refused_with_the_address_and_a_remedy(started):
    address = await started("127.0.0.1:0")
    message = await refusal(address)
    assert message.startswith(f"server.listen {address} cannot be bound: Address already in use")
    assert "stop what uses it" in message


async def test_a_port_used_by_something_else_is_refused_too():
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        assert "Address already in use" in await refusal(f"127.0.0.1:{other.getsockname()[1]}")


async def test_an_address_of_another_machine_is_refused(caplog):
    assert "Cannot assign requested address" in await refusal("192.0.2.1:0")


async def test_plaintext_beyond_loopback_is_warned_about(caplog):
    await refusal("192.0.2.1:0")
    assert "192.0.2.1:0 is reachable from other machines without TLS" in caplog.text


async def test_plaintext_on_loopback_is_not_warned_about(started, caplog):
    await started("127.0.0.1:0")
    assert "without TLS" not in caplog.text


async def test_the_health_port_is_named_when_it_is_the_one_that_is_taken(started):
    address = await started("127.0.0.1:0")
    message = await refusal("127.0.0.1:0", health_listen=address)
    assert message.startswith(f"server.health_listen {address} cannot be bound")


async def test_a_unix_socket_serves_and_is_removed_at_the_end(serve, tmp_path):
    path = tmp_path / "s"
    running = await serve(listen=f"unix:{path}")
    assert running.address == f"unix:{path}"
    async with running.channel() as channel:
        await scheduler_pb2_grpc.SchedulerServiceStub(channel).Abort(scheduler_pb2.AbortRequest())
    await running.server.drain(0.0)
    assert not path.exists()


async def test_the_socket_of_a_living_server_is_refused_and_goes_on(serve, tmp_path):
    listen = f"unix:{tmp_path}/s"
    running = await serve(listen=listen)
    assert "a running process listens there" in await refusal(listen)
    async with running.channel() as channel:
        await scheduler_pb2_grpc.SchedulerServiceStub(channel).Abort(scheduler_pb2.AbortRequest())


async def test_the_socket_that_a_dead_process_left_is_replaced(serve, tmp_path):
    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as dead:  # closing a socket leaves its file, as dying does
        dead.bind(str(path))
        dead.listen()
    assert path.is_socket()
    running = await serve(listen=f"unix:{path}")
    async with running.channel() as channel:
        await scheduler_pb2_grpc.SchedulerServiceStub(channel).Abort(scheduler_pb2.AbortRequest())


async def test_a_file_that_is_no_socket_is_left_alone(tmp_path):
    path = tmp_path / "s"
    path.write_text("precious")
    assert "is no socket" in await refusal(f"unix:{path}")
    assert path.read_text() == "precious"


async def test_a_socket_in_a_folder_that_does_not_exist_is_refused(tmp_path):
    assert "No such file or directory" in await refusal(f"unix:{tmp_path}/missing/s")


async def test_a_path_too_long_for_a_socket_is_refused(tmp_path):
    assert "too long" in await refusal(f"unix:{tmp_path}/{'x' * 120}")
