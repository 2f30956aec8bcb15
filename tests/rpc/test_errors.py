import asyncio
import logging
import socket

import grpc
import pytest
from google.rpc import error_details_pb2, status_pb2

from spearhead import errors
from spearhead.rpc import TargetConfig, create_channel, error_from_rpc
from spearhead.rpc.errors import status_details
from spearhead.v1 import scheduler_pb2, scheduler_pb2_grpc


def wire_classes(cls=errors.SpearheadError):
    if cls is errors.StartupError:
        return []
    return [cls, *(found for child in cls.__subclasses__() for found in wire_classes(child))]


async def failure(running, request_id="raise", **options):
    async with running.channel() as channel:
        stub = scheduler_pb2_grpc.SchedulerServiceStub(channel)
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await stub.Abort(scheduler_pb2.AbortRequest(request_id=request_id), **options)
    return raised.value


@pytest.mark.parametrize("cls", wire_classes(), ids=lambda cls: cls.__name__)
async def test_the_client_gets_the_class_that_the_server_raised(serve, scheduler, cls):
    scheduler.error = cls("x is 7; at most 5; ask for less", retry_after_s=1.25, field="sampling.top_k")
    running = await serve()
    error = error_from_rpc(await failure(running))
    assert type(error) is cls
    assert error.code is cls.code
    assert error.message == "x is 7; at most 5; ask for less"
    assert (error.retry_after_s, error.field) == (1.25, "sampling.top_k")


async def test_details_that_were_not_given_are_not_sent(serve, scheduler):
    scheduler.error = errors.Overloaded("full")
    error = error_from_rpc(await failure(await serve()))
    assert (error.retry_after_s, error.field) == (None, "")


def test_the_status_speaks_googles_error_model():
    error = errors.InvalidRequest("bad", field="sampling.temperature", retry_after_s=0.5)
    status = status_details(error, "bad")
    info, request, retry = (
        error_details_pb2.ErrorInfo(), error_details_pb2.BadRequest(), error_details_pb2.RetryInfo()
    )  # fmt: skip
    assert [
        packed.Unpack(detail) for packed, detail in zip(status.details, (info, request, retry), strict=True)
    ]
    assert (status.code, status.message) == (3, "bad")
    assert (info.reason, info.domain) == ("INVALID_REQUEST", "spearhead.v1")
    assert request.field_violations[0].field == "sampling.temperature"
    assert retry.retry_delay.ToMilliseconds() == 500


async def test_a_bug_shows_the_caller_nothing_and_the_log_everything(serve, caplog):
    running = await serve()
    with caplog.at_level(logging.ERROR, "spearhead.rpc"):
        raised = await failure(running, "bug")
    assert raised.code() is grpc.StatusCode.INTERNAL
    assert "secret" not in raised.details()
    assert "a secret of this machine" in caplog.text
    assert "Traceback" in caplog.text


async def test_an_internal_error_names_the_trace_that_the_log_has(serve, span_log, caplog):
    with caplog.at_level(logging.ERROR, "spearhead.rpc"):
        raised = await failure(await serve(), "bug")
    span = await span_log.first("SERVER", "spearhead.v1.SchedulerService/Abort")
    assert f"{span.context.trace_id:032x}" in raised.details()


async def test_a_start_up_error_never_shows_its_text_on_the_wire(serve, scheduler, caplog):
    scheduler.error = errors.ConfigError("/etc/secret is missing")
    with caplog.at_level(logging.ERROR, "spearhead.rpc"):
        raised = await failure(await serve())
    assert raised.code() is grpc.StatusCode.INTERNAL
    assert "/etc/secret" not in raised.details()


async def test_a_call_whose_handler_is_cancelled_from_within_is_answered(serve, caplog):
    with caplog.at_level(logging.ERROR, "spearhead.rpc"):
        raised = await failure(await serve(), "cancelled within", timeout=20)
    assert raised.code() is grpc.StatusCode.INTERNAL


async def test_an_error_in_the_middle_of_a_stream_keeps_its_class(serve):
    class Failing(scheduler_pb2_grpc.SchedulerServiceServicer):
        async def Generate(self, request, context):  # noqa: N802
            yield scheduler_pb2.GenerateResponse()
            raise errors.RankFailure("rank 1 is lost")

    running = await serve(scheduler=Failing())
    async with running.channel() as channel:
        call = scheduler_pb2_grpc.SchedulerServiceStub(channel).Generate(scheduler_pb2.GenerateRequest())
        await call.read()
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await call.read()
    assert type(error_from_rpc(raised.value)) is errors.RankFailure


@pytest.mark.parametrize("text", ["x" * 100_000, "語" * 40_000, "🙂" * 30_000])
async def test_a_long_message_is_cut_to_what_a_header_holds(serve, scheduler, text):
    scheduler.error = errors.InvalidRequest(text)
    error = error_from_rpc(await failure(await serve()))
    assert type(error) is errors.InvalidRequest
    assert text.startswith(error.message.removesuffix(" …"))
    assert 300 < len(error.message.encode()) < 1100


async def test_a_refused_connection_is_not_ready_and_names_the_address():
    with socket.socket() as taken:  # bound, not listening: nobody else can get the port
        taken.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        async with create_channel(TargetConfig(address=address)) as channel:
            stub = scheduler_pb2_grpc.SchedulerServiceStub(channel)
            with pytest.raises(grpc.aio.AioRpcError) as raised:
                await stub.Abort(scheduler_pb2.AbortRequest())
    error = error_from_rpc(raised.value, address)
    assert type(error) is errors.NotReady
    assert error.message.startswith(f"{address} cannot be reached")
    assert "check that it runs" in error.message


def test_a_call_that_a_server_cuts_off_without_a_word_may_be_repeated():
    failure = grpc.aio.AioRpcError(
        grpc.StatusCode.CANCELLED, grpc.aio.Metadata(), grpc.aio.Metadata(), "CANCELLED"
    )
    error = error_from_rpc(failure, "10.0.0.7:7001")
    assert (type(error), error.code) == (errors.NotReady, grpc.StatusCode.CANCELLED)
    assert "10.0.0.7:7001" in error.message


async def test_a_deadline_is_its_own_class_and_names_the_address(serve):
    running = await serve()
    error = error_from_rpc(await failure(running, "wait", timeout=0.1), running.address)
    assert type(error) is errors.DeadlineExceeded
    assert running.address in error.message


async def test_a_message_over_the_limit_is_told_with_the_limit_and_is_not_worth_a_retry(serve):
    running = await serve(max_message_bytes=1 << 20)
    error = error_from_rpc(await failure(running, "x" * (2 << 20)), running.address)
    assert type(error) is errors.InvalidRequest
    assert error.code is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert str(1 << 20) in error.message
    assert "max_message_bytes" in error.message


async def test_a_wrong_service_is_told_as_such(serve):
    running = await serve()
    async with running.channel() as channel:
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await channel.unary_unary("/other.Service/Method")(b"")
    error = error_from_rpc(raised.value, running.address)
    assert type(error) is errors.SpearheadError
    assert error.code is grpc.StatusCode.UNIMPLEMENTED
    assert "check that the address is the right service" in error.message


async def test_details_of_another_domain_fall_back_to_the_code(serve):
    class Foreign(scheduler_pb2_grpc.SchedulerServiceServicer):
        async def Abort(self, request, context):  # noqa: N802
            status = status_pb2.Status(code=14, message="away")
            status.details.add().Pack(error_details_pb2.ErrorInfo(reason="RANK_FAILURE", domain="other"))
            await context.abort(
                grpc.StatusCode.UNAVAILABLE,
                "away",
                (("grpc-status-details-bin", status.SerializeToString()),),
            )

    assert type(error_from_rpc(await failure(await serve(scheduler=Foreign())))) is errors.NotReady


async def test_details_that_are_no_status_fall_back_to_the_code(serve):
    class Broken(scheduler_pb2_grpc.SchedulerServiceServicer):
        async def Abort(self, request, context):  # noqa: N802
            await context.abort(
                grpc.StatusCode.NOT_FOUND, "gone", (("grpc-status-details-bin", b"\xff\xff\xff"),)
            )

    assert type(error_from_rpc(await failure(await serve(scheduler=Broken())))) is errors.SequenceNotFound


async def test_errors_of_the_synchronous_api_are_rebuilt_too(serve):
    running = await serve()

    def call():
        with grpc.insecure_channel(running.address) as channel:
            stub = scheduler_pb2_grpc.SchedulerServiceStub(channel)
            stub.Abort(scheduler_pb2.AbortRequest(request_id="raise"))

    with pytest.raises(grpc.RpcError) as raised:
        await asyncio.to_thread(call)
    assert type(error_from_rpc(raised.value)) is errors.InvalidRequest


def test_an_error_without_a_status_is_still_an_error_of_the_tree():
    assert type(error_from_rpc(grpc.RpcError("odd"))) is errors.SpearheadError
