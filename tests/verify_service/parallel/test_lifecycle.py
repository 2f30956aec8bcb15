"""A rank that is lost or stuck ends the service, soon and aloud; the end of the service ends all ranks."""

import signal

import grpc
import psutil
import pytest

from spearhead.errors import RankFailure
from spearhead.rpc import error_from_rpc

PROMPT = list(range(1, 20))


def gone(processes: list[psutil.Process]) -> bool:
    """Waits for processes to end."""
    _, alive = psutil.wait_procs(processes, timeout=20)
    return not [process for process in alive if process.status() != psutil.STATUS_ZOMBIE]


def fails_with_unavailable(step, item) -> bool:
    with pytest.raises(grpc.RpcError) as caught:
        step(item)
    error = error_from_rpc(caught.value)
    assert isinstance(error, RankFailure), error
    assert "rank" in error.message
    return caught.value.code() is grpc.StatusCode.UNAVAILABLE


@pytest.mark.parametrize(
    ("number", "by", "lost_after_s"),
    [(signal.SIGKILL, "torchrun", 20), (signal.SIGSTOP, "spawn", 3)],
    ids=["killed", "stopped"],
)
def test_a_lost_rank_fails_the_step_turns_health_red_and_ends_the_service(
    number, by, lost_after_s, start_ranks, tiny_checkpoint, step_item
):
    service = start_ranks(tiny_checkpoint("llama"), by=by, **{"parallel.lost_after_s": lost_after_s})
    readiness = service.readiness()
    assert next(readiness)
    with service.stepping() as step:
        assert step(step_item(1, PROMPT)).results[0].computed_length == len(PROMPT)
        service.followers[0].send_signal(number)
        assert fails_with_unavailable(step, step_item(2, PROMPT))
    assert not next(readiness)
    assert service.leader.wait(timeout=20) == 1
    assert "rank 1 of 2" in service.log.read_text()
    assert gone(service.followers)  # one that hangs, too


def test_an_idle_service_notices_a_rank_that_is_gone(start_ranks, tiny_checkpoint):
    service = start_ranks(tiny_checkpoint("llama", num_key_value_heads=4), by="torchrun", size=3)
    readiness = service.readiness()
    assert next(readiness)
    service.followers[1].kill()
    assert not next(readiness)
    assert service.leader.wait(timeout=20) == 1
    assert gone(service.followers)


def test_a_drain_ends_the_step_in_hand_and_then_all_ranks_without_an_error(
    start_ranks, tiny_checkpoint, step_item
):
    service = start_ranks(tiny_checkpoint("llama"), by="torchrun")
    with service.stepping() as step:
        assert step(step_item(1, PROMPT)).results[0].computed_length == len(PROMPT)
        service.followers[0].terminate()  # as torchrun does it: to all ranks
        assert step(step_item(2, PROMPT)).results[0].computed_length == len(PROMPT)
        service.leader.terminate()
    assert service.leader.wait(timeout=20) == 0
    assert gone(service.followers)
    log = service.log.read_text()
    assert "rank 0 ends first" in log
    assert "CRITICAL" not in log


def test_a_pod_without_the_leader_answers_probes_and_ends_when_the_leader_is_killed(
    start_ranks, tiny_checkpoint, probe
):
    service = start_ranks(tiny_checkpoint("llama"), by="pods")
    for name in ("startup", "readiness", "liveness"):
        assert probe(f"{service.address}.1", name)
    assert service.info().rank_count == 2
    service.leader.kill()
    assert gone(service.followers)
    assert "rank 0, which leads, is lost" in service.log.read_text()
