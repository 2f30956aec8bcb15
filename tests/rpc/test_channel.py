import asyncio
import logging

import grpc
import pytest

from spearhead.errors import ConfigError, InvalidRequest, NotReady
from spearhead.rpc import TargetConfig, create_channel, error_from_rpc
from spearhead.v1 import scheduler_pb2, scheduler_pb2_grpc
from tests.certificates import make_certificates


async def abort(channel):
    return await scheduler_pb2_grpc.SchedulerServiceStub(channel).Abort(
        scheduler_pb2.AbortRequest(), timeout=20
    )


async def test_tls_works_with_the_authority_that_signed(serve, certificates):
    running = await serve(tls_certificate=certificates.server, tls_key=certificates.server_key)
    async with running.channel(tls_ca=certificates.ca) as channel:
        assert await abort(channel) == scheduler_pb2.AbortResponse()


async def test_plaintext_to_a_tls_server_says_to_check_tls(serve, certificates):
    running = await serve(tls_certificate=certificates.server, tls_key=certificates.server_key)
    async with running.channel() as channel:
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await abort(channel)
    error = error_from_rpc(raised.value)
    assert isinstance(error, NotReady)
    assert error.message.endswith("and that TLS options match the server's")


async def test_a_certificate_for_another_name_is_a_failure_of_tls_and_says_what_to_set(serve, tmp_path):
    certificates = make_certificates(tmp_path, names="DNS:elsewhere")
    running = await serve(tls_certificate=certificates.server, tls_key=certificates.server_key)
    async with running.channel(tls_ca=certificates.ca) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await abort(channel)
    error = error_from_rpc(raised.value, running.address)
    assert isinstance(error, NotReady)
    assert error.message.startswith(f"TLS with {running.address} failed")
    assert "the server's certificate is for another name: set tls_name (--tls-name)" in error.message


async def test_tls_to_a_plaintext_server_says_to_check_tls(serve, certificates):
    running = await serve()
    async with running.channel(tls_ca=certificates.ca) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await abort(channel)
    error = error_from_rpc(raised.value, running.address)
    assert isinstance(error, NotReady)
    assert error.message.startswith(f"TLS with {running.address} failed")


async def test_mutual_tls_lets_in_whoever_the_authority_signed_and_nobody_else(serve, certificates):
    running = await serve(
        tls_certificate=certificates.server, tls_key=certificates.server_key, tls_client_ca=certificates.ca
    )
    async with running.channel(
        tls_ca=certificates.ca, tls_certificate=certificates.client, tls_key=certificates.client_key
    ) as channel:
        assert await abort(channel) == scheduler_pb2.AbortResponse()
    async with running.channel(tls_ca=certificates.ca) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await abort(channel)
    assert raised.value.code() is grpc.StatusCode.UNAVAILABLE


@pytest.mark.parametrize("content", [None, "not a certificate"])
async def test_a_certificate_that_cannot_be_used_is_named(tmp_path, content):
    path = tmp_path / "ca.crt"
    if content is not None:
        path.write_text(content)
    with pytest.raises(ConfigError, match=f"tls_ca {path}"):
        create_channel(TargetConfig(address="localhost:1", tls_ca=path))


async def test_a_token_that_leaves_the_machine_in_plaintext_is_warned_about(tmp_path, caplog):
    token_file = tmp_path / "token"
    token_file.write_text("secret")
    async with create_channel(TargetConfig(address="192.0.2.1:7000", token_file=token_file)):
        pass
    assert "192.0.2.1:7000" in caplog.text
    assert "plaintext" in caplog.text
    assert "secret" not in caplog.text


async def test_a_token_within_the_machine_is_not_warned_about(tmp_path, caplog):
    token_file = tmp_path / "token"
    token_file.write_text("secret")
    with caplog.at_level(logging.WARNING):
        async with create_channel(TargetConfig(address="unix:/run/x", token_file=token_file)):
            pass
    assert caplog.text == ""


@pytest.mark.parametrize("listen", ["127.0.0.1:0", "unix"])
async def test_messages_of_5_mb_pass_both_ways(serve, tmp_path, listen):
    class Echo(scheduler_pb2_grpc.SchedulerServiceServicer):
        async def Generate(self, request, context):  # noqa: N802
            started = scheduler_pb2.GenerationStarted(request_id=request.prompt)
            yield scheduler_pb2.GenerateResponse(started=started)

    running = await serve(listen=f"unix:{tmp_path}/s" if listen == "unix" else listen, scheduler=Echo())
    async with running.channel() as channel:
        call = scheduler_pb2_grpc.SchedulerServiceStub(channel).Generate(
            scheduler_pb2.GenerateRequest(prompt="x" * 5_000_000)
        )
        assert [len(response.started.request_id) async for response in call] == [5_000_000]


async def test_an_answer_over_the_channels_limit_is_refused_with_the_limit(serve):
    class Large(scheduler_pb2_grpc.SchedulerServiceServicer):
        async def Generate(self, request, context):  # noqa: N802
            started = scheduler_pb2.GenerationStarted(request_id="x" * 5_000_000)
            yield scheduler_pb2.GenerateResponse(started=started)

    running = await serve(scheduler=Large())
    async with running.channel(max_message_bytes=1 << 20) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            async for _ in scheduler_pb2_grpc.SchedulerServiceStub(channel).Generate(
                scheduler_pb2.GenerateRequest()
            ):
                pass
    error = error_from_rpc(raised.value, running.address)
    assert isinstance(error, InvalidRequest)
    assert str(1 << 20) in error.message


async def test_a_restarted_server_is_found_again_on_the_same_channel(serve, tmp_path):
    listen = f"unix:{tmp_path}/s"
    first = await serve(listen=listen)
    async with first.channel() as channel:
        await abort(channel)
        await first.server.drain(0.0)
        with pytest.raises(grpc.aio.AioRpcError):
            await abort(channel)
        await serve(listen=listen)
        async with asyncio.timeout(20):
            await channel.channel_ready()
        assert await abort(channel) == scheduler_pb2.AbortResponse()


async def test_the_state_of_the_channel_can_be_watched(serve):
    running = await serve()
    async with running.channel() as channel:
        assert channel.get_state(try_to_connect=True) is grpc.ChannelConnectivity.IDLE
        async with asyncio.timeout(20):
            await channel.wait_for_state_change(grpc.ChannelConnectivity.IDLE)
            await channel.channel_ready()
        assert channel.get_state() is grpc.ChannelConnectivity.READY


async def test_interceptors_of_the_callers_own_are_used(serve):
    seen = []

    class Interceptor(grpc.aio.UnaryUnaryClientInterceptor):
        async def intercept_unary_unary(self, continuation, client_call_details, request):
            seen.append(client_call_details.method)
            return await continuation(client_call_details, request)

    running = await serve()
    async with create_channel(TargetConfig(address=running.address), [Interceptor()]) as channel:
        await abort(channel)
    assert seen == [b"/spearhead.v1.SchedulerService/Abort"]
