"""``spearhead profile``: measures the workers on this machine and writes the scheduler's latency table."""

import argparse
import asyncio
import itertools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc

from scheduler_service.latency_table import LatencyTable, ModelProfile
from spearhead.cli.connection import CREDENTIALS, add_credential_options, target_at
from spearhead.cli.interruption import run_interruptibly
from spearhead.cli.options import given, refuse_idle
from spearhead.cli.supervisor import Supervisor
from spearhead.cli.up import add_stack_options, print_line, stack_options_from
from spearhead.errors import ConfigError, InvalidRequest
from spearhead.rpc import TargetConfig, create_channel, error_from_rpc
from spearhead.v1 import draft_pb2, draft_pb2_grpc, verify_pb2, verify_pb2_grpc

_TIMEOUT_S = 1800.0
_PROGRESS_EVERY_S = 10


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Adds the command."""
    parser = commands.add_parser("profile", help="measure this machine and write a latency table")
    parser.set_defaults(run=run)
    parser.add_argument("--output", type=Path, required=True, metavar="FILE", help="the table, JSON")
    parser.add_argument("--rows", type=_numbers, default=(), metavar="N,N,…", help="batch rows to measure")
    parser.add_argument("--contexts", type=_numbers, default=(), metavar="N,N,…", help="context lengths")
    group = parser.add_argument_group("running workers (else they are started as by `spearhead up`)")
    group.add_argument("--verify-address", metavar="ADDRESS", help="a running verify service")
    group.add_argument("--draft-address", metavar="ADDRESS", help="a running draft service")
    add_credential_options(group)
    add_stack_options(parser)


def run(arguments: argparse.Namespace) -> int:
    """Measures and writes the table.

    Raises:
        ConfigError: The table has no place, or an option would have no effect.
    """
    if not arguments.output.parent.is_dir():
        raise ConfigError(f"--output {arguments.output}: the folder {arguments.output.parent} does not exist")
    if not arguments.verify_address:
        refuse_idle(given(arguments, ("draft_address", *CREDENTIALS)), "without --verify-address")
    table = run_interruptibly(_measure(arguments))
    table.save(arguments.output)
    print(
        f"{arguments.output}: {len(table.target.latencies)} latencies of the target"
        + (f", {len(table.draft.latencies)} of the draft" if table.draft else "")
        + f' on {table.target.device}; use it with policy.kind = "table", policy.table = "{arguments.output}"'
    )
    return 0


async def _measure(arguments: argparse.Namespace) -> LatencyTable:
    if arguments.verify_address:
        verify = target_at(arguments.verify_address, arguments)
        draft = target_at(arguments.draft_address, arguments) if arguments.draft_address else None
        return await _profile(verify, draft, arguments)
    options = stack_options_from(arguments, listen="")
    async with Supervisor(options, log=print_line, progress=print_line, workers_only=True) as workers:
        verify_address, draft_address = workers.worker_address("verify"), workers.worker_address("draft")
        assert verify_address is not None
        return await _profile(
            TargetConfig(address=verify_address),
            TargetConfig(address=draft_address) if draft_address else None,
            arguments,
        )


async def _profile(
    verify: TargetConfig, draft: TargetConfig | None, arguments: argparse.Namespace
) -> LatencyTable:
    shapes = {"rows": arguments.rows, "contexts": arguments.contexts}
    request = verify_pb2.VerifyServiceProfileKernelsRequest(**shapes)
    target = await _ask(verify, verify_pb2_grpc.VerifyServiceStub, request)
    if draft is None:
        return LatencyTable(target=target)
    try:
        drafter = await _ask(
            draft, draft_pb2_grpc.DraftServiceStub, draft_pb2.DraftServiceProfileKernelsRequest(**shapes)
        )
    except InvalidRequest as error:  # a drafter without a model
        print(f"no measurements of the draft: {error.message}", file=sys.stderr)
        return LatencyTable(target=target)
    return LatencyTable(target=target, draft=drafter)


async def _ask(target: TargetConfig, stub: Callable[[grpc.aio.Channel], Any], request: Any) -> ModelProfile:
    async with create_channel(target) as channel:
        ticking = asyncio.create_task(_tell_time(target.address))
        try:
            response = await stub(channel).ProfileKernels(request, timeout=_TIMEOUT_S)
        except grpc.RpcError as error:
            raise error_from_rpc(error, target.address) from error
        finally:
            ticking.cancel()
    return ModelProfile.from_profile(response.profile)


async def _tell_time(address: str) -> None:
    for elapsed_s in itertools.count(0, _PROGRESS_EVERY_S):
        print(f"measuring the worker at {address}: {elapsed_s} s", file=sys.stderr, flush=True)
        await asyncio.sleep(_PROGRESS_EVERY_S)


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(","))
