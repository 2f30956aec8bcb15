"""``python -m verify_service --config verify.toml``."""

import sys

from spearhead.rpc import main
from spearhead.v1 import verify_pb2_grpc
from spearhead.worker.serving import serve_worker
from verify_service.config import VerifyConfig
from verify_service.loading import load
from verify_service.servicer import VerifyServicer
from verify_service.verifier import Verifier


async def serve(config: VerifyConfig) -> None:
    """Serves until a signal ends it."""

    def attach(servicer: VerifyServicer) -> None:
        model, variant = load(config)
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
    )


if __name__ == "__main__":
    sys.exit(main("verify_service", VerifyConfig, serve))
