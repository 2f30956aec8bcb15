"""A worker that can be told to misbehave, for :mod:`benchmarks.trace_causes`.

``python -m benchmarks.trace_causes_worker verify|draft FAULTS [--set …]`` serves with the real service's own
code, but looks into the folder ``FAULTS`` around each forward pass: a file ``verify-sleep`` or
``draft-sleep`` holds seconds, is taken away and slept for; while ``reject`` exists, the drafts are noise.
"""

import dataclasses
import random
import sys
import time
from collections.abc import Hashable, Sequence
from pathlib import Path

import draft_service.loading
import verify_service.loading
from draft_service.config import DraftConfig
from draft_service.drafter import Drafter, DraftItem, Proposal
from draft_service.servicer import DraftServicer
from spearhead.model.engine import Failure
from spearhead.rpc import main
from spearhead.v1 import draft_pb2_grpc, verify_pb2_grpc
from spearhead.worker.serving import serve_worker
from verify_service.config import VerifyConfig
from verify_service.servicer import VerifyServicer
from verify_service.verifier import VerifiedStep, Verifier, VerifyItem


class Faults:
    """The orders in a folder."""

    def __init__(self, folder: Path, worker: str) -> None:
        self._sleep = folder / f"{worker}-sleep"
        self._reject = folder / "reject"

    def sleep(self) -> None:
        """Sleeps once if that is ordered."""
        if self._sleep.exists():
            seconds = float(self._sleep.read_text())
            self._sleep.unlink()
            time.sleep(seconds)

    @property
    def reject(self) -> bool:
        """Drafts are to be bad."""
        return self._reject.exists()


class SlowVerifier(Verifier):
    """A verifier that may sleep."""

    faults: Faults

    def step(self, items: Sequence[VerifyItem], released: Sequence[Hashable] = ()) -> VerifiedStep:
        """As the real one, perhaps later."""
        if items:
            self.faults.sleep()
        return super().step(items, released)


class HostileDrafter:
    """A drafter that may sleep, and may draft noise."""

    def __init__(self, inner: Drafter, faults: Faults, vocab_size: int) -> None:
        self._inner = inner
        self._faults = faults
        self._vocab_size = vocab_size
        self._chance = random.Random(0)

    @property
    def page_count(self) -> int:
        """As the inner one."""
        return self._inner.page_count

    @property
    def free_page_count(self) -> int:
        """As the inner one."""
        return self._inner.free_page_count

    def propose(self, items: Sequence[DraftItem]) -> tuple[list[Proposal | Failure], int]:
        """As the inner one, perhaps later or worse."""
        if any(item.max_draft_tokens for item in items):
            self._faults.sleep()
        outcomes, sample_ns = self._inner.propose(items)
        if self._faults.reject:
            outcomes = [
                self._noise(outcome) if isinstance(outcome, Proposal) else outcome for outcome in outcomes
            ]
        return outcomes, sample_ns

    def release(self, keys: Sequence[Hashable]) -> None:
        """As the inner one."""
        self._inner.release(keys)

    def live_keys(self) -> list[Hashable]:
        """As the inner one."""
        return self._inner.live_keys()

    def _noise(self, proposal: Proposal) -> Proposal:
        noise = tuple(self._chance.randrange(self._vocab_size) for _ in proposal.draft_token_ids)
        return dataclasses.replace(proposal, draft_token_ids=noise)


async def serve_verify(config: VerifyConfig, faults: Faults) -> None:
    """Serves until a signal ends it."""

    def attach(servicer: VerifyServicer) -> None:
        model, variant = verify_service.loading.load(config)
        verifier = SlowVerifier(model.engine, variant)
        verifier.faults = faults
        servicer.attach(model, verifier)

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


async def serve_draft(config: DraftConfig, faults: Faults) -> None:
    """Serves until a signal ends it."""

    def attach(servicer: DraftServicer) -> None:
        loaded = draft_service.loading.load(config)
        drafter = HostileDrafter(loaded.drafter, faults, loaded.info.vocab_size)
        settings = config.drafter
        servicer.attach(
            dataclasses.replace(loaded, drafter=drafter),
            kind=settings.kind,
            max_draft_tokens=settings.max_draft_tokens,
        )

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
    worker, folder, *rest = sys.argv[1:]
    orders = Faults(Path(folder), worker)
    if worker == "verify":
        sys.exit(main("verify_service", VerifyConfig, lambda config: serve_verify(config, orders), rest))
    sys.exit(main("draft_service", DraftConfig, lambda config: serve_draft(config, orders), rest))
