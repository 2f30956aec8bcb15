from spearhead.cli.bench.drive import DriveOptions, drive
from spearhead.cli.bench.workload import PlannedRequest, WorkloadOptions, plan_requests
from spearhead.client import AsyncClient
from spearhead.errors import Overloaded


async def run(running, requests, **options):
    done = []
    async with AsyncClient(running.address) as client:
        outcomes = await drive(client, requests, DriveOptions(**options), done.append)
    assert len(done) == len(requests)
    return outcomes


async def test_every_request_gets_an_outcome_in_the_workloads_order(running):
    requests = plan_requests(WorkloadOptions(requests=6, output_tokens=(1, 9)))
    outcomes = await run(running, requests, concurrency=2)
    assert [outcome.token_count for outcome in outcomes] == [request.max_tokens for request in requests]
    assert all(outcome.finished for outcome in outcomes)


async def test_a_client_hangs_up_after_its_number_of_tokens(running):
    request = PlannedRequest(index=0, prompt="x", max_tokens=9, seed=1, cancel_after_tokens=2)
    (outcome,) = await run(running, [request])
    assert outcome.cancelled
    assert outcome.token_count == 2
    assert outcome.finished is None


async def test_a_failure_is_recorded_with_its_status_and_the_others_go_on(running):
    running.scheduler.failures = [Overloaded("full")]
    outcomes = await run(running, plan_requests(WorkloadOptions(requests=2)), concurrency=1)
    assert outcomes[0].error == "RESOURCE_EXHAUSTED: full"
    assert outcomes[1].finished


async def test_the_options_reach_every_request(running):
    requests = plan_requests(WorkloadOptions(requests=1))
    await run(running, requests, temperature=0.5, draft_tokens=0)
    sent = running.scheduler.requests[0][0]
    assert sent.sampling.temperature == 0.5
    assert sent.sampling.seed == requests[0].seed
    assert sent.sampling.ignore_eos
    assert sent.speculation.HasField("max_draft_tokens")
