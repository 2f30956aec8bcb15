"""The keepalive pair against a real peer, with the intervals of the pair scaled down together."""

import asyncio

import grpc

from spearhead.rpc import EndpointConfig, TargetConfig
from spearhead.rpc.endpoint import (
    CLIENT_KEEPALIVE_MS,
    SERVER_MIN_PING_INTERVAL_MS,
    channel_options,
    server_options,
)

SCALE = 200  # a silent second stands for more than three minutes
PING_MS = CLIENT_KEEPALIVE_MS // SCALE


async def silent_stream(request, context):
    await context.write(b"started")
    await asyncio.Event().wait()


def scaled(options):
    return [
        (key, value // SCALE if key.endswith(("keepalive_time_ms", "without_data_ms")) else value)
        for key, value in options
    ]


async def outcome(server_side, silence_s):
    """What the reader of a silent stream gets within ``silence_s`` seconds; ``None`` = nothing."""
    server = grpc.aio.server(options=server_side)
    handlers = {"Silent": grpc.unary_stream_rpc_method_handler(silent_stream)}
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("test.Test", handlers)])
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        async with grpc.aio.insecure_channel(
            f"127.0.0.1:{port}",
            scaled(channel_options(TargetConfig(address="a:1", max_message_bytes=1 << 20))),
        ) as channel:
            call = channel.unary_stream("/test.Test/Silent")(b"")
            await call.read()
            async with asyncio.timeout(silence_s):
                await call.read()
    except TimeoutError:
        return None
    except grpc.aio.AioRpcError as error:
        return error.details()
    finally:
        await server.stop(None)


async def test_a_silent_stream_survives_its_pings():
    # Without the server's half the stream below is cut after 3 s, so twice that tells them apart.
    assert SERVER_MIN_PING_INTERVAL_MS // SCALE < PING_MS
    assert await outcome(scaled(server_options(EndpointConfig())), silence_s=6.0) is None


async def test_without_the_servers_half_the_same_stream_is_cut():
    details = await outcome([], silence_s=20.0)
    assert details is not None
    assert "too_many_pings" in details or "Too many pings" in details
