"""``python -m verify_service --config verify.toml``."""

import os
import sys
from collections.abc import Sequence

from spearhead.model.parallel.group import LeaderGroup
from spearhead.model.parallel.place import RankPlace, find_place
from spearhead.rpc import main
from spearhead.v1 import verify_pb2_grpc
from spearhead.worker.ending import Ending
from spearhead.worker.serving import serve_worker
from verify_service.config import VerifyConfig
from verify_service.loading import load
from verify_service.ranks import children, follow, of_rank
from verify_service.servicer import VerifyServicer
from verify_service.verifier import Verifier


async def serve(config: VerifyConfig, arguments: Sequence[str]) -> None:
    """Serves until a signal ends it, or computes what another rank's leader asks for."""
    if config.parallel.tensor_parallel_size == 1:
        await _serve(config)
        return
    place = find_place(config.parallel, os.environ)
    if place.rank:
        await follow(config, place, arguments)
    else:
        await _lead(of_rank(config, place), place, arguments)


async def _lead(config: VerifyConfig, place: RankPlace, arguments: Sequence[str]) -> None:
    ending = Ending()
    group = LeaderGroup(config.parallel, place, children(config, arguments), ending.reach)
    try:
        await _serve(config, group, ending)
    finally:
        group.close()


async def _serve(
    config: VerifyConfig, group: LeaderGroup | None = None, ending: Ending | None = None
) -> None:
    def attach(servicer: VerifyServicer) -> None:
        model, variant = load(config, group)
        if group is not None:
            model.engine.decoder = group.lead(model.engine.decoder)
        servicer.attach(model, Verifier(model.engine, variant, model.draw))

    await serve_worker(
        "verify_service",
        "spearhead.v1.VerifyService",
        server_config=config.server,
        telemetry_config=config.telemetry,
        stuck_after_s=config.stuck_after_s,
        make_servicer=VerifyServicer,
        register=verify_pb2_grpc.add_VerifyServiceServicer_to_server,
        load=attach,
        ending=ending,
        abandon=group.abandon if group is not None else lambda: None,
    )


if __name__ == "__main__":
    sys.exit(main("verify_service", VerifyConfig, lambda config: serve(config, sys.argv[1:])))
