"""``python -m draft_service --config draft.toml``."""

import sys

from draft_service.config import DraftConfig
from draft_service.loading import load
from draft_service.servicer import DraftServicer
from spearhead.rpc import main
from spearhead.v1 import draft_pb2_grpc
from spearhead.worker.serving import serve_worker


async def serve(config: DraftConfig) -> None:
    """Serves until a signal ends it."""

    def attach(servicer: DraftServicer) -> None:
        drafter = config.drafter
        servicer.attach(load(config), kind=drafter.kind, max_draft_tokens=drafter.max_draft_tokens)

    await serve_worker(
        "draft_service",
        "spearhead.v1.DraftService",
        server_config=config.server,
        telemetry_config=config.telemetry,
        stuck_after_s=config.stuck_after_s,
        make_servicer=DraftServicer,
        register=draft_pb2_grpc.add_DraftServiceServicer_to_server,
        load=attach,
    )


if __name__ == "__main__":
    sys.exit(main("draft_service", DraftConfig, serve))
