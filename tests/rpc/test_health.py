import asyncio

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from spearhead.rpc import HealthState

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
SERVICE_UNKNOWN = health_pb2.HealthCheckResponse.SERVICE_UNKNOWN
SERVICE = "spearhead.v1.SchedulerService"
READINESS_NAMES = ("", "readiness", SERVICE)


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


@pytest.fixture
async def clock():
    return Clock()


@pytest.fixture
async def state(clock):
    return HealthState([SERVICE], clock=clock)


def serving(state):
    return {name for name in state.names if state.serving(name)}


async def test_a_loading_service_is_alive_and_nothing_else(state):
    assert serving(state) == {"liveness"}
    assert state.reason == "starting"


async def test_start_up_and_readiness_are_told_apart(state):
    state.set_started()
    state.set_ready(False, "the verify service is away")
    assert serving(state) == {"liveness", "startup"}
    assert (state.ready, state.reason) == (False, "the verify service is away")
    state.set_ready(True)
    assert serving(state) == {"liveness", "startup", *READINESS_NAMES}
    assert (state.ready, state.reason) == (True, "")


async def test_draining_turns_off_readiness_for_good_and_never_liveness(state):
    state.set_started()
    state.set_ready(True)
    state.set_draining()
    state.set_ready(True)
    assert serving(state) == {"liveness", "startup"}
    assert state.reason == "draining"


async def test_a_busy_engine_without_progress_is_not_alive(state, clock):
    busy = True
    state.watch_heartbeat(lambda: 100.0, lambda: busy, limit_s=30.0)
    clock.now = 130.0
    assert state.serving("liveness")
    clock.now = 130.1
    assert not state.serving("liveness")
    busy = False  # idle is no hang
    assert state.serving("liveness")


async def test_a_heartbeat_does_not_touch_readiness(state, clock):
    state.set_ready(True)
    state.watch_heartbeat(lambda: 0.0, lambda: True, limit_s=1.0)
    assert not state.serving("liveness")
    assert all(state.serving(name) for name in READINESS_NAMES)


async def test_any_stuck_engine_is_enough(state, clock):
    state.watch_heartbeat(lambda: clock.now, lambda: True, limit_s=1.0)
    state.watch_heartbeat(lambda: clock.now - 2.0, lambda: True, limit_s=1.0)
    assert not state.serving("liveness")


async def test_every_name_is_answered_over_the_wire(serve):
    running = await serve()
    running.server.health.set_started()
    async with running.channel() as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        answers = {
            name: (await stub.Check(health_pb2.HealthCheckRequest(service=name))).status
            for name in ("", "startup", "readiness", "liveness", SERVICE, "spearhead.v1.VerifyService")
        }
    assert answers == {
        "": NOT_SERVING, "startup": SERVING, "readiness": NOT_SERVING, "liveness": SERVING,
        SERVICE: NOT_SERVING, "spearhead.v1.VerifyService": NOT_SERVING,
    }  # fmt: skip


async def test_an_unknown_name_is_not_found_and_the_answer_lists_the_known_ones(serve):
    running = await serve()
    async with running.channel() as channel:
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(service="live"))
    assert raised.value.code() is grpc.StatusCode.NOT_FOUND
    assert "liveness" in raised.value.details()


async def test_watchers_see_every_change_and_do_not_disturb_each_other(serve):
    running = await serve()
    async with running.channel() as channel, asyncio.timeout(20):
        stub = health_pb2_grpc.HealthStub(channel)
        watches = [stub.Watch(health_pb2.HealthCheckRequest(service="readiness")) for _ in range(3)]
        assert [(await watch.read()).status for watch in watches] == [NOT_SERVING] * 3
        watches.pop().cancel()
        running.server.health.set_ready(True)
        assert [(await watch.read()).status for watch in watches] == [SERVING] * 2
        running.server.health.set_draining()
        assert [(await watch.read()).status for watch in watches] == [NOT_SERVING] * 2


async def test_watching_an_unknown_name_says_that_it_is_unknown(serve):
    running = await serve()
    async with running.channel() as channel:
        watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest(service="live"))
        assert (await watch.read()).status == SERVICE_UNKNOWN


async def test_a_watcher_of_liveness_learns_that_the_engine_is_stuck(serve):
    running = await serve()
    stuck = False
    running.server.health.watch_heartbeat(lambda: 0.0, lambda: stuck, limit_s=1.0)
    async with running.channel() as channel, asyncio.timeout(20):
        watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest(service="liveness"))
        assert (await watch.read()).status == SERVING
        stuck = True
        assert (await watch.read()).status == NOT_SERVING


async def test_a_part_has_a_name_of_its_own_and_nothing_depends_on_it(state):
    state.set_started()
    state.set_ready(True)
    assert state.serving("draft") is None
    state.set_part("draft", False)
    assert serving(state) == {"liveness", "startup", *READINESS_NAMES}
    state.set_part("draft", True)
    assert serving(state) == {"liveness", "startup", "draft", *READINESS_NAMES}
    state.set_draining()
    assert serving(state) == {"liveness", "startup", "draft"}
