"""Ranks of the verify service: which processes there are, and the life of every one but the first."""

import asyncio
import logging
import signal
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace

import torch

from spearhead.errors import ConfigError, RankFailure, SpearheadError
from spearhead.model.parallel.children import Children
from spearhead.model.parallel.group import FollowerGroup
from spearhead.model.parallel.place import RankPlace
from spearhead.rpc import Server
from spearhead.telemetry import Telemetry, TelemetryConfig
from spearhead.worker.ending import Ending
from spearhead.worker.model_thread import ModelThread
from spearhead.worker.serving import announce, leave
from verify_service.config import VerifyConfig
from verify_service.loading import load

_CHILD_START_S = 8.0
"""A rank that another one starts finds the leader there; if not, it is gone."""

_log = logging.getLogger("spearhead.verify")


def of_rank(config: VerifyConfig, place: RankPlace) -> VerifyConfig:
    """The configuration of one rank: its own GPU, or its share of the processor.

    Args:
        config: Of all ranks.
        place: Of this rank.

    Raises:
        ConfigError: All ranks would take one GPU.
    """
    model = config.model
    if model.device.startswith("cuda:"):
        raise ConfigError(
            f'model.device is {model.device!r}, one GPU for {place.size} ranks; write "cuda", and each rank '
            "takes the GPU of its number within the machine"
        )
    if model.device == "cuda":
        return replace(config, model=replace(model, device=f"cuda:{place.local_rank}"))
    threads = model.threads or max(torch.get_num_threads() // (1 + len(place.starts)), 1)
    return replace(config, model=replace(model, threads=threads))


def children(config: VerifyConfig, arguments: Sequence[str]) -> Children:
    """Starts further ranks of this machine, as this one was started.

    Args:
        config: Of this rank.
        arguments: Command line of this process, without its name.
    """
    changes = {
        "parallel.launch": "environment",
        "parallel.start_timeout_s": str(min(_CHILD_START_S, config.parallel.start_timeout_s)),
        "model.threads": str(config.model.threads),
    }
    overrides = [word for key, value in changes.items() for word in ("--set", f"{key}={value}")]
    return Children([sys.executable, "-m", "verify_service", *arguments, *overrides])


async def follow(config: VerifyConfig, place: RankPlace, arguments: Sequence[str]) -> None:
    """Computes one rank's part until the leader stops, or is lost; then the process ends with code 1.

    The first rank of a machine without the leader answers probes there. A signal does not end a rank that
    has joined: the leader drains first, and its end is the end of all.

    Raises:
        StartupError: The configuration or the checkpoint cannot be used.
    """
    config = of_rank(config, place)
    process, ending = f"verify_service rank {place.rank}", Ending()
    telemetry = Telemetry.start(process, _logs_only(config.telemetry))
    thread, beside = ModelThread(process, ending), children(config, arguments)
    failure: SpearheadError | None = None
    try:
        async with _probes(config, place, telemetry) as server:
            group = FollowerGroup(config.parallel, place, beside, ending.reach)
            joined = asyncio.Event()
            _heed_signals(ending, joined)
            failure = await _work(config, group, thread, ending, joined, server)
    except RankFailure as error:
        failure = error
    finally:
        telemetry.shutdown()
        thread.close(wait=False)
    leave(thread, failure, beside.kill)


async def _work(
    config: VerifyConfig,
    group: FollowerGroup,
    thread: ModelThread,
    ending: Ending,
    joined: asyncio.Event,
    server: Server | None,
) -> SpearheadError | None:
    """Loads, then follows; why this rank cannot go on, ``None`` = it need not."""
    ended = asyncio.ensure_future(ending.wait())
    loading = asyncio.ensure_future(thread.run(lambda: load(config, group)))
    await asyncio.wait({loading, ended}, return_when=asyncio.FIRST_COMPLETED)
    if not loading.done():  # else its own error says more
        return ended.result()
    engine = loading.result().result[0].engine
    joined.set()
    if server is not None:
        announce(server, thread, config.stuck_after_s)
    await thread.run(lambda: group.follow(engine.decoder, engine.variants, thread.beat))
    return None


@asynccontextmanager
async def _probes(
    config: VerifyConfig, place: RankPlace, telemetry: Telemetry
) -> AsyncIterator[Server | None]:
    if place.local_rank:
        yield None
        return
    async with Server(config.server, service_names=(), telemetry=telemetry) as server:
        await server.start()
        yield server


def _heed_signals(ending: Ending, joined: asyncio.Event) -> None:
    def heed(number: signal.Signals) -> None:
        if joined.is_set():
            _log.info("%s: rank 0 ends first, then this rank", number.name)
        else:
            ending.reach(None)

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, heed, number)


def _logs_only(config: TelemetryConfig) -> TelemetryConfig:
    """Spans and metrics are rank 0's; ports and files are not shared."""
    return TelemetryConfig(log_level=config.log_level, log_format=config.log_format)
