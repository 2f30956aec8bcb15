import logging
import os

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from spearhead import errors
from spearhead.rpc import TargetConfig, create_channel, error_from_rpc
from spearhead.rpc.auth import TokenFile
from spearhead.v1 import scheduler_pb2, scheduler_pb2_grpc, verify_pb2, verify_pb2_grpc

TOKEN = "Tr0ub4dor-and-3"


@pytest.fixture
def token_file(tmp_path):
    path = tmp_path / "tokens"
    path.write_text(f"# rotated monthly\n\nfirst-token\n  {TOKEN}  \n")
    return path


def replace(path, text):
    """Atomically, as a rotation does it."""
    fresh = path.with_suffix(".new")
    fresh.write_text(text)
    os.replace(fresh, path)


async def abort(running, authorization=None):
    metadata = (("authorization", authorization),) if authorization is not None else ()
    async with running.channel() as channel:
        stub = scheduler_pb2_grpc.SchedulerServiceStub(channel)
        await stub.Abort(scheduler_pb2.AbortRequest(), metadata=metadata)


@pytest.mark.parametrize("token", ["first-token", TOKEN])
async def test_each_token_of_the_file_opens(serve, token_file, token):
    await abort(await serve(token_file=token_file), f"Bearer {token}")


@pytest.mark.parametrize(
    "authorization",
    [None, "", "Bearer", "Bearer ", TOKEN, f"Basic {TOKEN}", f"Bearer {TOKEN}x", f"Bearer {TOKEN[:-1]}",
     f"Bearer {TOKEN.lower()}", f"Bearer {TOKEN.upper()}", "Bearer # rotated monthly", f"Bearer  {TOKEN}"],
)  # fmt: skip
async def test_anything_else_is_unauthenticated(serve, token_file, authorization):
    running = await serve(token_file=token_file)
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await abort(running, authorization)
    error = error_from_rpc(raised.value)
    assert type(error) is errors.Unauthenticated
    assert "token_file" in error.message


async def test_streams_need_a_token_too(serve, token_file):
    running = await serve(token_file=token_file)
    async with running.channel() as channel:
        with pytest.raises(grpc.aio.AioRpcError) as server_stream:
            async for _ in scheduler_pb2_grpc.SchedulerServiceStub(channel).Generate(
                scheduler_pb2.GenerateRequest()
            ):
                pass
        with pytest.raises(grpc.aio.AioRpcError) as bidirectional:
            await verify_pb2_grpc.VerifyServiceStub(channel).Step().read()
    assert server_stream.value.code() is grpc.StatusCode.UNAUTHENTICATED
    assert bidirectional.value.code() is grpc.StatusCode.UNAUTHENTICATED


async def test_health_needs_no_token_and_reflection_does(serve, token_file):
    running = await serve(token_file=token_file)
    async with running.channel() as channel:
        answer = await health_pb2_grpc.HealthStub(channel).Check(
            health_pb2.HealthCheckRequest(service="liveness")
        )
        assert answer.status == health_pb2.HealthCheckResponse.SERVING
        call = reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo(
            iter([reflection_pb2.ServerReflectionRequest(list_services="")])
        )
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            async for _ in call:
                pass
    assert raised.value.code() is grpc.StatusCode.UNAUTHENTICATED


async def test_a_channel_presents_its_token_on_calls_of_every_kind(serve, token_file, tmp_path):
    own = tmp_path / "own"
    own.write_text(f"{TOKEN}\n")
    running = await serve(token_file=token_file)
    async with create_channel(TargetConfig(address=running.address, token_file=own)) as channel:
        scheduler = scheduler_pb2_grpc.SchedulerServiceStub(channel)
        await scheduler.Abort(scheduler_pb2.AbortRequest(), metadata=(("other", "kept"),))
        stream = scheduler.Generate(scheduler_pb2.GenerateRequest())
        await stream.read()
        stream.cancel()
        call = verify_pb2_grpc.VerifyServiceStub(channel).Step(iter([verify_pb2.StepRequest(step_id=5)]))
        assert [response.step_id async for response in call] == [5]


async def test_tokens_rotate_without_a_restart_on_both_sides(serve, token_file, tmp_path):
    own = tmp_path / "own"
    own.write_text(TOKEN)
    running = await serve(token_file=token_file)
    async with create_channel(TargetConfig(address=running.address, token_file=own)) as channel:
        stub = scheduler_pb2_grpc.SchedulerServiceStub(channel)
        await stub.Abort(scheduler_pb2.AbortRequest())
        replace(token_file, "next-token\n")
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await stub.Abort(scheduler_pb2.AbortRequest())
        assert raised.value.code() is grpc.StatusCode.UNAUTHENTICATED
        replace(own, "next-token\n")
        await stub.Abort(scheduler_pb2.AbortRequest())


def test_a_file_that_becomes_unreadable_keeps_its_last_tokens_and_says_so_once(token_file, caplog):
    tokens = TokenFile(token_file)
    token_file.unlink()
    assert tokens.caller(f"Bearer {TOKEN}")
    assert tokens.caller(f"Bearer {TOKEN}")
    assert len(caplog.records) == 1
    token_file.write_text("next-token")
    assert not tokens.caller(f"Bearer {TOKEN}")
    assert tokens.caller("Bearer next-token")


def test_a_file_that_becomes_empty_lets_nobody_in(token_file):
    tokens = TokenFile(token_file)
    replace(token_file, "")
    assert not tokens.caller(f"Bearer {TOKEN}")
    assert not tokens.caller("Bearer ")


@pytest.mark.parametrize("content", [None, "", "# only a comment\n", "zwölf\n", "two words\n"])
def test_a_token_file_that_cannot_work_is_refused_at_start_up(tmp_path, content):
    path = tmp_path / "tokens"
    if content is not None:
        path.write_text(content)
    with pytest.raises(errors.ConfigError, match="put one token on each line") as raised:
        TokenFile(path)
    assert str(path) in raised.value.message


async def test_no_token_ever_reaches_a_log_or_an_error(serve, token_file, caplog):
    with caplog.at_level(logging.DEBUG):
        running = await serve(token_file=token_file)
        await abort(running, f"Bearer {TOKEN}")
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await abort(running, f"Bearer {TOKEN}-wrong")
        replace(token_file, "next-token\n")
        await abort(running, "Bearer next-token")
    assert "has changed: 1 tokens" in caplog.text
    shown = caplog.text + str(raised.value)
    assert not any(secret in shown for secret in (TOKEN, "first-token", "next-token"))


async def test_a_service_that_keeps_no_limits_refuses_a_file_that_sets_some(serve, token_file):
    replace(token_file, f"{TOKEN} name=team-a max_running=2\n")
    with pytest.raises(errors.ConfigError, match="line 1: this service keeps no limits") as raised:
        await serve(token_file=token_file)
    assert TOKEN not in raised.value.message


def test_a_rotation_to_lines_that_cannot_be_understood_keeps_the_last_tokens(token_file, caplog):
    tokens = TokenFile(token_file)
    replace(token_file, f"{TOKEN}-new name=team-a max_running=many\n")
    assert tokens.caller(f"Bearer {TOKEN}") is not None
    assert tokens.caller(f"Bearer {TOKEN}-new") is None
    assert "max_running is 'many'" in caplog.text
    assert TOKEN not in caplog.text
