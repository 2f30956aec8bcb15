"""A connection that is old enough takes no new calls, and what runs on it goes on."""

import asyncio

from spearhead.rpc import EndpointConfig, Server, TargetConfig, create_channel
from spearhead.telemetry import Telemetry
from spearhead.v1 import scheduler_pb2, scheduler_pb2_grpc


class Peers(scheduler_pb2_grpc.SchedulerServiceServicer):
    """Notes from which connection each call comes; streams last until they are told to end."""

    def __init__(self):
        self.seen = set()
        self.end = asyncio.Event()

    async def GetLoad(self, request, context):  # noqa: N802
        self.seen.add(context.peer())
        return scheduler_pb2.GetLoadResponse()

    async def Generate(self, request, context):  # noqa: N802
        await context.write(scheduler_pb2.GenerateResponse())
        await self.end.wait()
        await context.write(scheduler_pb2.GenerateResponse())


async def test_calls_move_to_new_connections_and_a_running_stream_keeps_its_own():
    endpoint = EndpointConfig(listen="127.0.0.1:0", max_connection_age_s=0.1)
    servicer = Peers()
    async with Server(endpoint, service_names=[], telemetry=Telemetry.disabled()) as server:
        scheduler_pb2_grpc.add_SchedulerServiceServicer_to_server(servicer, server.grpc_server)
        address = await server.start()
        async with create_channel(TargetConfig(address=address)) as channel, asyncio.timeout(20):
            stub = scheduler_pb2_grpc.SchedulerServiceStub(channel)
            stream = stub.Generate(scheduler_pb2.GenerateRequest())
            await stream.read()
            while len(servicer.seen) < 3:
                await stub.GetLoad(scheduler_pb2.GetLoadRequest())
            servicer.end.set()
            assert await stream.read() == scheduler_pb2.GenerateResponse()
