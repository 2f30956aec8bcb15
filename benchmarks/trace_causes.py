"""Does the trace report name the true cause? ``python -m benchmarks.trace_causes [--count 20] [--kinds …]``.

Starts the three real services on a tiny random model, each its own process, and hurts them in eleven ways
while a request runs: a sleep in either worker's forward pass, a slow network, a large prompt of somebody
else, a hostile drafter, a stopped scheduler, a stopped worker, a killed worker, too few KV pages, a client
that does not read, and a burst of requests. Each time the request's late tokens that fall into
the time of the injection must, by how late they are in sum, carry that cause before all others. Prints a
table and, as the last line, the same as one JSON document.
"""

import argparse
import asyncio
import json
import platform
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import grpc

from benchmarks.trace_causes_stack import Stack, make_model
from spearhead.client import AsyncClient, Delta, Finished, SamplingParams
from spearhead.trace.causes import LateToken
from spearhead.trace.report import Report, build_report
from spearhead.trace.spans import read_traces
from spearhead.trace.tiles import Cause
from spearhead.v1 import scheduler_pb2, scheduler_pb2_grpc

_BEFORE, _AFTER = 12, 60
"""Outputs before the injection, and tokens after it, which make the request's own yardstick."""
_DELAY_S = 0.25
_CHANCE = random.Random(0)


@dataclass
class Trial:
    """One injection.

    Attributes:
        request_id: Whose tokens are judged.
        start_ns: When the injection began, Unix time.
        end_ns: When it was over.
        culprit: Request that the note must name; empty = none.
    """

    request_id: str
    start_ns: int = 0
    end_ns: int = 0
    culprit: str = ""


def prompt(length: int) -> list[int]:
    """A prompt that is in no cache."""
    return [_CHANCE.randrange(1, 250) for _ in range(length)]


async def victim(
    stack: Stack, trial: Trial, inject: Callable[[], Awaitable[None]], tokens: int = 320
) -> None:
    """Runs a request and injects something in its middle."""
    async with AsyncClient(stack.address) as client:
        events = _stream(client, trial.request_id, tokens)
        count = 0
        async for event in events:
            count += isinstance(event, Delta)
            if count == _BEFORE and not trial.start_ns:
                trial.start_ns = time.time_ns()
                injection = asyncio.create_task(_timed(trial, inject))
        await injection


async def _timed(trial: Trial, inject: Callable[[], Awaitable[None]]) -> None:
    await inject()
    trial.end_ns = time.time_ns()


def _stream(client: AsyncClient, request_id: str, tokens: int, length: int = 40) -> AsyncIterator[object]:
    return client.generate(
        token_ids=prompt(length),
        sampling=SamplingParams(temperature=0.0, max_tokens=tokens, ignore_eos=True),
        request_id=request_id,
        timeout_s=120.0,
    )


async def _drain(client: AsyncClient, request_id: str, tokens: int, length: int = 40) -> None:
    async for _ in _stream(client, request_id, tokens, length):
        pass


async def slow_draft(stack: Stack, trial: Trial) -> None:
    """The drafter sleeps before a forward pass."""

    async def inject() -> None:
        stack.order("draft-sleep", str(_DELAY_S))
        await asyncio.sleep(_DELAY_S)

    await victim(stack, trial, inject)


async def slow_verify(stack: Stack, trial: Trial) -> None:
    """The verifier sleeps before a forward pass."""

    async def inject() -> None:
        stack.order("verify-sleep", str(_DELAY_S))
        await asyncio.sleep(_DELAY_S)

    await victim(stack, trial, inject)


async def slow_network(stack: Stack, trial: Trial) -> None:
    """Bytes between scheduler and verifier are held back."""

    async def inject() -> None:
        stack.proxy.delay_s = 0.1
        await asyncio.sleep(_DELAY_S)
        stack.proxy.delay_s = 0.0

    await victim(stack, trial, inject)


async def foreign_prefill(stack: Stack, trial: Trial) -> None:
    """Somebody else brings a large prompt."""
    trial.culprit = f"culprit-of-{trial.request_id}"

    async def inject() -> None:
        async with AsyncClient(stack.address) as client:
            await _drain(client, trial.culprit, 1, length=2000)

    await victim(stack, trial, inject)


async def hostile_drafts(stack: Stack, trial: Trial) -> None:
    """The drafts are noise."""

    async def inject() -> None:
        stack.order("reject")
        await asyncio.sleep(2 * _DELAY_S)
        (stack.faults / "reject").unlink()

    await victim(stack, trial, inject)


async def stopped_scheduler(stack: Stack, trial: Trial) -> None:
    """The scheduler's process is stopped."""
    await victim(stack, trial, lambda: stack.pause("scheduler", _DELAY_S))


async def stopped_worker(stack: Stack, trial: Trial) -> None:
    """The verifier's process is stopped."""
    await victim(stack, trial, lambda: stack.pause("verify", _DELAY_S))


async def killed_worker(stack: Stack, trial: Trial) -> None:
    """The verifier's process is killed and started again."""
    await victim(stack, trial, lambda: stack.kill_and_restart("verify"))
    await stack.ready()


async def frozen_reader(stack: Stack, trial: Trial) -> None:
    """The client stops reading; its window is small, so that few outputs fit on the way."""
    options = (("grpc.http2.lookahead_bytes", 1024), ("grpc.http2.bdp_probe", 0))
    async with grpc.aio.insecure_channel(stack.address, options=options) as channel:
        request = scheduler_pb2.GenerateRequest(
            request_id=trial.request_id,
            tokens=scheduler_pb2.TokenInput(token_ids=prompt(40)),
            sampling=scheduler_pb2.SamplingParams(
                temperature=0, max_tokens=700, ignore_eos=True, logprobs=20
            ),
        )
        stub = scheduler_pb2_grpc.SchedulerServiceStub(channel)  # type: ignore[no-untyped-call]
        call = stub.Generate(request, timeout=120.0)
        for _ in range(_BEFORE):
            await call.read()
        trial.start_ns = time.time_ns()
        await asyncio.sleep(3.0)
        trial.end_ns = time.time_ns()
        while await call.read() is not grpc.aio.EOF:
            pass


async def burst(stack: Stack, trial: Trial) -> None:
    """Many requests are there before it."""
    async with AsyncClient(stack.address) as client, asyncio.TaskGroup() as group:
        trial.start_ns = time.time_ns()
        for index in range(12):
            group.create_task(_drain(client, f"{trial.request_id}-before-{index}", 60))
        await asyncio.sleep(0.02)
        await group.create_task(_drain(client, trial.request_id, 30))
        trial.end_ns = time.time_ns()


async def scarce_pages(stack: Stack, trial: Trial) -> None:
    """Two requests that together need more KV pages than there are; who loses pauses longest."""
    async with AsyncClient(stack.address) as client, asyncio.TaskGroup() as group:
        for name in (f"{trial.request_id}-other", trial.request_id):
            group.create_task(_note_longest_pause(client, name, trial))


async def _note_longest_pause(client: AsyncClient, name: str, trial: Trial) -> None:
    """Sets the trial's time to the longest pause that the client of a preempted request saw."""
    last_ns, pause = time.time_ns(), (0, 0)
    async for event in _stream(client, name, 260):
        now_ns = time.time_ns()
        if isinstance(event, Delta) and now_ns - last_ns > pause[1] - pause[0]:
            pause = (last_ns, now_ns)
        if isinstance(event, Finished) and event.timings.preemptions:
            trial.start_ns, trial.end_ns = pause
        last_ns = now_ns


KINDS: dict[str, tuple[Cause, Callable[[Stack, Trial], Awaitable[None]]]] = {
    "sleep in draft": (Cause.DRAFT, slow_draft),
    "sleep in verify": (Cause.VERIFY, slow_verify),
    "delay proxy": (Cause.NETWORK, slow_network),
    "big foreign prompt": (Cause.PREFILL_OF_OTHERS, foreign_prefill),
    "hostile drafter": (Cause.REJECTION, hostile_drafts),
    "stopped scheduler": (Cause.SCHEDULER, stopped_scheduler),
    "stopped worker": (Cause.WORKER_STALL, stopped_worker),
    "frozen reader": (Cause.SLOW_READER, frozen_reader),
    "burst": (Cause.QUEUE, burst),
    "killed worker": (Cause.WORKER_RESTART, killed_worker),
    "scarce pages": (Cause.PREEMPTION, scarce_pages),
}


def judge(report: Report, trial: Trial, cause: Cause) -> tuple[bool, str]:
    """Whether the late tokens in the time of the injection are mostly due to the cause, and what they are."""
    # Either of two that fight for pages may lose; the report is right when it says so of the loser.
    names = {trial.request_id, f"{trial.request_id}-other"}
    late = [token for token in report.late if token.request.request_id in names and _during(token, trial)]
    excess_ns: Counter[Cause] = Counter()
    for token in late:
        excess_ns[token.cause] += round(token.excess_ns)
    if not late:
        return False, "nothing was late"
    named = excess_ns.most_common(1)[0][0]
    notes = [token.note for token in late if token.cause is named]
    right = named is cause and trial.culprit in notes[0]
    return right, f"{named} ({notes[0]}), {[(c.value, ns // 10**6) for c, ns in excess_ns.most_common()]}"


def _during(token: LateToken, trial: Trial) -> bool:
    return token.gap.start_ns <= trial.end_ns and token.gap.end_ns >= trial.start_ns


async def run_stack(stack: Stack, kinds: Sequence[str], count: int) -> dict[str, list[Trial]]:
    """Injects each kind of delay so often."""
    trials: dict[str, list[Trial]] = {}
    async with stack.running():
        async with AsyncClient(stack.address) as client:
            await _drain(client, "warm-up", 100)
        for kind in kinds:
            trials[kind] = [Trial(request_id=f"{kind.replace(' ', '-')}-{index}") for index in range(count)]
            for trial in trials[kind]:
                await KINDS[kind][1](stack, trial)
            print(f"injected: {kind}", file=sys.stderr, flush=True)
    return trials


def run(count: int, kinds: Sequence[str], folder: Path) -> dict[str, object]:
    """Everything. Traces are read when the services have ended: the delay proxy must not wait for that."""
    model = make_model(folder / "model")
    results: dict[str, object] = {}
    for name, pages in (("roomy", 2048), ("scarce", 30)):
        chosen = [kind for kind in kinds if (kind == "scarce pages") == (name == "scarce")]
        if not chosen:
            continue
        stack = Stack(folder / name, model, pages=pages, running=4)
        trials = asyncio.run(run_stack(stack, chosen, count))
        report = build_report(read_traces([folder / name]))
        for kind in chosen:
            cause = KINDS[kind][0]
            verdicts = [judge(report, trial, cause) for trial in trials[kind]]
            named, wrong = (
                sum(right for right, _ in verdicts),
                [text for right, text in verdicts if not right],
            )
            results[kind] = {"injected": count, "named": named, "cause": cause, "wrong": wrong}
            print(f"{kind:20s} {cause!s:18s} {named:3d} of {count}", *wrong, sep="\n    ", flush=True)
    return results


def main() -> None:
    """Parses the command line and prints the table and the JSON line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=int, default=20, help="injections of each kind (20)")
    parser.add_argument("--kinds", nargs="+", choices=list(KINDS), default=list(KINDS), help="only these")
    parser.add_argument("--folder", type=Path, help="keep traces and logs in this new folder")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="trace-causes-") as temporary:
        folder = arguments.folder or Path(temporary)
        results = run(arguments.count, arguments.kinds, folder)
    print(json.dumps({"benchmark": "trace_causes", "machine": platform.platform(), "kinds": results}))


if __name__ == "__main__":
    main()
