"""gRPC on the outside, a :class:`Drafter` on the inside; converts, calls, converts."""

from collections.abc import AsyncIterator, Sequence
from functools import partial

import grpc

from draft_service.drafter import Drafter, DraftItem, Proposal
from draft_service.loading import LoadedDrafter
from spearhead.errors import InvalidRequest, NotReady
from spearhead.model.checkpoint import FP16
from spearhead.model.engine import Failure
from spearhead.model.profiler import profile_engine
from spearhead.telemetry import Telemetry
from spearhead.v1 import draft_pb2, draft_pb2_grpc
from spearhead.worker.info import check_protocol
from spearhead.worker.metrics import WorkerMetrics
from spearhead.worker.model_thread import ModelThread
from spearhead.worker.profile import check_profile_size, kernel_profile
from spearhead.worker.stream import StreamKeys, in_stream, serve_stream
from spearhead.worker.timing import Receipt, record_step_spans, worker_timing
from spearhead.worker.wire import (
    InvalidItem,
    decode_token_ids,
    encode_floats,
    encode_token_ids,
    invalid,
    item_error,
    sampling_parameters,
)

METHOD = "spearhead.v1.DraftService/Propose"


class DraftServicer(draft_pb2_grpc.DraftServiceServicer):
    """Serves ``spearhead.v1.DraftService``; refuses everything with NotReady until a drafter is attached.

    Args:
        thread: Runs the drafter.
        telemetry: Tracer and metrics registry.
    """

    def __init__(self, thread: ModelThread, telemetry: Telemetry) -> None:
        self._thread = thread
        self._tracer = telemetry.tracer
        self._metrics = WorkerMetrics(telemetry.registry, "draft")
        self._streams = StreamKeys()
        self._loaded: LoadedDrafter | None = None
        self._kind = ""
        self._max_draft_tokens = 0

    def attach(self, loaded: LoadedDrafter, *, kind: str, max_draft_tokens: int) -> None:
        """Starts to serve."""
        self._kind, self._max_draft_tokens = kind, max_draft_tokens
        self._metrics.set_sizes(weight_bytes=loaded.info.weight_bytes, kv_bytes=loaded.info.kv_cache_bytes)
        self._loaded = loaded

    def end_streams(self) -> None:
        """Ends every stream after the message it is computing (drain)."""
        self._streams.end_all()

    async def GetModelInfo(  # noqa: N802
        self, request: draft_pb2.DraftServiceGetModelInfoRequest, context: grpc.aio.ServicerContext
    ) -> draft_pb2.DraftServiceGetModelInfoResponse:
        """The handshake."""
        loaded = self._require()
        check_protocol(request.protocol_version)
        return draft_pb2.DraftServiceGetModelInfoResponse(
            info=loaded.info, drafter=self._kind, max_draft_tokens=self._max_draft_tokens
        )

    async def Propose(  # noqa: N802
        self, request_iterator: AsyncIterator[draft_pb2.ProposeRequest], context: grpc.aio.ServicerContext
    ) -> AsyncIterator[draft_pb2.ProposeResponse]:
        """Answers one scheduler until it, or a drain, ends the stream."""
        drafter = self._require().drafter
        await context.send_initial_metadata(())  # the scheduler shakes hands once it knows who has the stream
        stream = self._streams.open()
        try:
            async for request, receipt in serve_stream(request_iterator, stream.ended):
                yield await self._propose(stream.number, drafter, request, receipt)
        finally:
            self._streams.close(stream)
            self._thread.submit(lambda: drafter.release(in_stream(drafter.live_keys(), stream.number)))

    async def ProfileKernels(  # noqa: N802
        self, request: draft_pb2.DraftServiceProfileKernelsRequest, context: grpc.aio.ServicerContext
    ) -> draft_pb2.DraftServiceProfileKernelsResponse:
        """Measures on the model thread; steps wait meanwhile."""
        model = self._require().model
        if model is None:
            raise InvalidRequest(f"the {self._kind} drafter runs no model; there is nothing to measure")
        check_profile_size(model.engine, request.rows, request.contexts)
        timed = await self._thread.run(
            partial(
                profile_engine, model.engine, FP16, request.rows, request.contexts,
                on_progress=self._thread.beat,
            )
        )  # fmt: skip
        return draft_pb2.DraftServiceProfileKernelsResponse(profile=kernel_profile(model, FP16, timed.result))

    async def _propose(
        self, stream: int, drafter: Drafter, request: draft_pb2.ProposeRequest, receipt: Receipt
    ) -> draft_pb2.ProposeResponse:
        vocab_size = self._require().info.vocab_size
        parsed = [self._to_item(stream, item, vocab_size) for item in request.items]
        items = [item for item in parsed if isinstance(item, DraftItem)]
        released = [(stream, release.sequence_id) for release in request.releases]

        def compute() -> tuple[list[Proposal | Failure], int]:
            drafter.release(released)
            return drafter.propose(items)

        timed = await self._thread.run(compute)
        proposals, sample_ns = timed.result
        computed = iter(proposals)
        outcomes = [item if isinstance(item, Failure) else next(computed) for item in parsed]
        response = draft_pb2.ProposeResponse(
            step_id=request.step_id,
            results=[
                _to_result(item, outcome) for item, outcome in zip(request.items, outcomes, strict=True)
            ],
            free_page_count=drafter.free_page_count,
        )
        response.timing.CopyFrom(worker_timing(receipt, timed, sample_ns))
        drafted = sum(len(outcome.draft_token_ids) for outcome in outcomes if isinstance(outcome, Proposal))
        known = _computed_tokens(items, proposals)
        self._metrics.step(known + drafted, response.timing.compute_ns)
        self._metrics.item_errors(outcomes)
        self._metrics.set_sequences(
            len(drafter.live_keys()), held_pages=drafter.page_count - drafter.free_page_count,
            page_count=drafter.page_count,
        )  # fmt: skip
        record_step_spans(
            self._tracer, method=METHOD, worker="draft", traceparent=request.traceparent,
            timing=response.timing,
            attributes={
                **timed.device,
                "spearhead.step.id": request.step_id,
                "spearhead.batch.requests": len(items),
                "spearhead.batch.tokens": known,
                "spearhead.batch.draft_tokens": drafted,
                "spearhead.batch.failed_items": sum(isinstance(outcome, Failure) for outcome in outcomes),
            },
        )  # fmt: skip
        return response

    def _to_item(self, stream: int, item: draft_pb2.ProposeItem, vocab_size: int) -> DraftItem | Failure:
        wanted = item.max_draft_tokens
        try:
            if wanted > self._max_draft_tokens:
                raise InvalidItem(f"max_draft_tokens is {wanted}; the limit is {self._max_draft_tokens}")
            if wanted and not item.HasField("sampling"):
                raise InvalidItem("drafts are wanted without sampling")
            token_ids = decode_token_ids(item.token_ids, "token_ids")
            sampling = sampling_parameters(item.sampling, vocab_size) if wanted else None
        except InvalidItem as error:
            return invalid(error)
        return DraftItem(
            key=(stream, item.sequence_id),
            epoch=item.epoch,
            committed_length=item.committed_length,
            token_ids=token_ids,
            max_draft_tokens=wanted,
            max_compute_tokens=item.max_compute_tokens if item.HasField("max_compute_tokens") else None,
            sampling=sampling,
        )

    def _require(self) -> LoadedDrafter:
        if self._loaded is None:
            raise NotReady("the draft model is still loading; retry when readiness serves", retry_after_s=1.0)
        return self._loaded


def _computed_tokens(items: Sequence[DraftItem], proposals: Sequence[Proposal | Failure]) -> int:
    """Known tokens computed for items that did not fail, beyond cached prefixes; drafts count apart.

    A sequence is sent whole, so that prefixes can be looked up, and computed in chunks.
    """
    return sum(
        min(proposal.computed_length, item.committed_length + len(item.token_ids))
        - item.committed_length
        - proposal.cached_token_count
        for item, proposal in zip(items, proposals, strict=True)
        if isinstance(proposal, Proposal)
    )


def _to_result(item: draft_pb2.ProposeItem, outcome: Proposal | Failure) -> draft_pb2.ProposeItemResult:
    if isinstance(outcome, Failure):
        return draft_pb2.ProposeItemResult(
            sequence_id=item.sequence_id, epoch=item.epoch, error=item_error(outcome)
        )
    return draft_pb2.ProposeItemResult(
        sequence_id=item.sequence_id,
        epoch=item.epoch,
        computed_length=outcome.computed_length,
        cached_token_count=outcome.cached_token_count,
        draft_token_ids=encode_token_ids(outcome.draft_token_ids),
        confidences=encode_floats(outcome.confidences),
    )
