import asyncio

import grpc
import pytest

from spearhead.v1 import scheduler_pb2, scheduler_pb2_grpc, verify_pb2, verify_pb2_grpc


async def test_a_generator_is_closed_when_its_caller_cancels_while_it_is_suspended(serve, scheduler):
    running = await serve()
    async with running.channel() as channel:
        call = scheduler_pb2_grpc.SchedulerServiceStub(channel).Generate(scheduler_pb2.GenerateRequest())
        await call.read()
        call.cancel()
        async with asyncio.timeout(20):
            await scheduler.ended.wait()
    assert scheduler.log == ["closed"]


async def test_a_generator_is_closed_when_its_caller_does_not_read(serve, scheduler):
    class Flood(scheduler_pb2_grpc.SchedulerServiceServicer):
        async def Generate(self, request, context):  # noqa: N802
            large = scheduler_pb2.GenerateResponse(
                started=scheduler_pb2.GenerationStarted(request_id="x" * 65536)
            )
            try:
                while True:
                    yield large
                    scheduler.log.append("sent")
            finally:
                scheduler.ended.set()

    running = await serve(scheduler=Flood())
    async with running.channel() as channel:
        call = scheduler_pb2_grpc.SchedulerServiceStub(channel).Generate(scheduler_pb2.GenerateRequest())
        await call.read()
    async with asyncio.timeout(20):
        await scheduler.ended.wait()
    assert len(scheduler.log) < 10_000


async def test_read_and_write_handlers_work(serve):
    class ReaderVerify(verify_pb2_grpc.VerifyServiceServicer):
        async def Step(self, request_iterator, context):  # noqa: N802
            while (request := await context.read()) is not grpc.aio.EOF:
                await context.write(verify_pb2.StepResponse(step_id=request.step_id))

    running = await serve(verify=ReaderVerify())
    async with running.channel() as channel:
        call = verify_pb2_grpc.VerifyServiceStub(channel).Step(
            iter([verify_pb2.StepRequest(step_id=number) for number in (7, 8)])
        )
        assert [response.step_id async for response in call] == [7, 8]


async def test_generator_handlers_of_bidirectional_streams_work(serve):
    running = await serve()
    async with running.channel() as channel:
        call = verify_pb2_grpc.VerifyServiceStub(channel).Step()
        for number in (1, 2, 3):
            await call.write(verify_pb2.StepRequest(step_id=number))
            assert (await call.read()).step_id == number
        await call.done_writing()
        assert await call.read() is grpc.aio.EOF


async def test_a_method_without_an_async_handler_is_unimplemented(serve):
    running = await serve()
    async with running.channel() as channel:
        stub = scheduler_pb2_grpc.SchedulerServiceStub(channel)
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await stub.GetLoad(scheduler_pb2.GetLoadRequest())
    assert raised.value.code() is grpc.StatusCode.UNIMPLEMENTED


@pytest.mark.parametrize("attempt", range(10))
async def test_a_caller_that_cancels_never_looks_like_one_that_has_finished(serve, scheduler, attempt):
    class Listener(verify_pb2_grpc.VerifyServiceServicer):
        async def Step(self, request_iterator, context):  # noqa: N802
            try:
                async for request in request_iterator:
                    yield verify_pb2.StepResponse(step_id=request.step_id)
                scheduler.log.append("finished")
            except asyncio.CancelledError:
                scheduler.log.append("cancelled")
                raise
            finally:
                scheduler.ended.set()

    running = await serve(verify=Listener())
    async with running.channel() as channel:
        call = verify_pb2_grpc.VerifyServiceStub(channel).Step()
        await call.write(verify_pb2.StepRequest())
        await call.read()
        call.cancel()
        async with asyncio.timeout(20):
            await scheduler.ended.wait()
    assert scheduler.log == ["cancelled"]


async def test_a_message_that_does_not_parse_is_the_callers_mistake(serve):
    running = await serve()
    async with running.channel() as channel:
        generate = channel.unary_stream("/spearhead.v1.SchedulerService/Generate")
        call = generate(b"\x0a\x02\xff\xfe")  # field 1 is a string, here with invalid UTF-8
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call.read()
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "UTF-8" in caught.value.details()
