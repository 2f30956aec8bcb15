"""gRPC on the outside, :class:`Verifier` on the inside; converts, calls, converts."""

import logging
from collections.abc import AsyncIterator, Sequence
from functools import partial

import grpc

from spearhead.errors import InvalidRequest, NotReady
from spearhead.model.engine import Failure
from spearhead.model.loading import LoadedModel
from spearhead.model.profiler import profile_engine
from spearhead.telemetry import Telemetry
from spearhead.v1 import types_pb2, verify_pb2, verify_pb2_grpc
from spearhead.worker.info import check_protocol, model_info
from spearhead.worker.metrics import WorkerMetrics
from spearhead.worker.model_thread import ModelThread, Timed
from spearhead.worker.profile import kernel_profile
from spearhead.worker.stream import StreamKeys, in_stream, serve_stream
from spearhead.worker.timing import Receipt, record_step_spans, worker_timing
from spearhead.worker.wire import (
    decode_token_ids,
    item_error,
    sampling_parameters,
    token_logprobs,
)
from verify_service.verifier import Verified, Verifier, VerifyItem

METHOD = "spearhead.v1.VerifyService/Step"
_MAX_LOGPROBS = 20

_log = logging.getLogger("spearhead.verify")

Outcomes = tuple[list[Verified | Failure], int]


class VerifyServicer(verify_pb2_grpc.VerifyServiceServicer):
    """Serves ``spearhead.v1.VerifyService``; refuses everything with NotReady until a model is attached.

    Args:
        thread: Runs the model.
        telemetry: Tracer and metrics registry.
    """

    def __init__(self, thread: ModelThread, telemetry: Telemetry) -> None:
        self._thread = thread
        self._tracer = telemetry.tracer
        self._metrics = WorkerMetrics(telemetry.registry, "verify")
        self._model: LoadedModel | None = None
        self._verifier: Verifier | None = None
        self._streams = StreamKeys()

    def attach(self, model: LoadedModel, verifier: Verifier) -> None:
        """Starts to serve a loaded model."""
        self._model, self._verifier = model, verifier
        self._metrics.set_sizes(
            weight_bytes=model.engine.weight_bytes, kv_bytes=model.engine.decoder.storage.byte_count
        )
        self._metrics.set_variant(verifier.variant)

    def end_streams(self) -> None:
        """Ends every step stream after the message it is computing (drain)."""
        self._streams.end_all()

    async def GetModelInfo(  # noqa: N802
        self, request: verify_pb2.VerifyServiceGetModelInfoRequest, context: grpc.aio.ServicerContext
    ) -> verify_pb2.VerifyServiceGetModelInfoResponse:
        """The handshake."""
        model, verifier = self._loaded()
        check_protocol(request.protocol_version)
        variants = verifier.engine.variants
        return verify_pb2.VerifyServiceGetModelInfoResponse(
            info=model_info(model),
            variant=verifier.variant,
            variants=list(variants),
            compensator_digest=next(
                (w.compensator_digest for w in variants.values() if w.compensator_digest), ""
            ),
            rank_count=1,
        )

    async def Step(  # noqa: N802
        self, request_iterator: AsyncIterator[verify_pb2.StepRequest], context: grpc.aio.ServicerContext
    ) -> AsyncIterator[verify_pb2.StepResponse]:
        """Answers the steps of one scheduler until it, or a drain, ends the stream."""
        _, verifier = self._loaded()
        stream = self._streams.open()
        try:
            async for request, receipt in serve_stream(request_iterator, stream.ended):
                yield await self._step(stream.number, verifier, request, receipt)
        finally:
            self._streams.close(stream)
            engine = verifier.engine
            self._thread.submit(lambda: engine.release_where(in_stream(engine.live_keys(), stream.number)))

    async def SetVariant(  # noqa: N802
        self, request: verify_pb2.SetVariantRequest, context: grpc.aio.ServicerContext
    ) -> verify_pb2.SetVariantResponse:
        """Switches between two steps."""
        _, verifier = self._loaded()
        held = verifier.engine.variants
        if request.variant not in held:
            raise InvalidRequest(
                f"variant {request.variant!r} is not held; held are {', '.join(held)}. "
                "To hold more, set variants.hold and restart",
                field="variant",
            )
        previous = verifier.variant
        await self._thread.run(partial(verifier.set_variant, request.variant))
        self._metrics.set_variant(request.variant)
        _log.info("variant %s serves instead of %s", request.variant, previous)
        return verify_pb2.SetVariantResponse(previous_variant=previous, variant=request.variant)

    async def ListVariants(  # noqa: N802
        self, request: verify_pb2.ListVariantsRequest, context: grpc.aio.ServicerContext
    ) -> verify_pb2.ListVariantsResponse:
        """All variants that are held."""
        _, verifier = self._loaded()
        return verify_pb2.ListVariantsResponse(
            variants=[
                verify_pb2.VariantInfo(
                    name=name,
                    current=name == verifier.variant,
                    stored_bytes=weights.stored_bytes,
                    resident_bytes=weights.resident_bytes,
                    quantization=weights.quantization,
                )
                for name, weights in verifier.engine.variants.items()
            ]
        )

    async def ProfileKernels(  # noqa: N802
        self, request: verify_pb2.VerifyServiceProfileKernelsRequest, context: grpc.aio.ServicerContext
    ) -> verify_pb2.VerifyServiceProfileKernelsResponse:
        """Measures on the model thread; steps wait meanwhile."""
        model, verifier = self._loaded()
        variant = verifier.variant
        timed = await self._thread.run(
            partial(profile_engine, verifier.engine, variant, request.rows, request.contexts)
        )
        return verify_pb2.VerifyServiceProfileKernelsResponse(
            profile=kernel_profile(model, variant, timed.result)
        )

    async def _step(
        self, stream: int, verifier: Verifier, request: verify_pb2.StepRequest, receipt: Receipt
    ) -> verify_pb2.StepResponse:
        items = [_to_item(stream, item, index) for index, item in enumerate(request.items)]
        released = [(stream, release.sequence_id) for release in request.releases]
        timed: Timed[Outcomes] = await self._thread.run(partial(verifier.step, items, released))
        outcomes, sample_ns = timed.result
        response = verify_pb2.StepResponse(
            step_id=request.step_id,
            results=[
                _to_result(item, outcome) for item, outcome in zip(request.items, outcomes, strict=True)
            ],
            free_page_count=verifier.engine.pages.free_page_count,
            variant=verifier.variant,
        )
        response.timing.CopyFrom(worker_timing(receipt, timed, sample_ns))
        tokens = sum(len(item.token_ids) for item in items)
        self._metrics.step(tokens, response.timing.compute_ns)
        pages = verifier.engine.pages
        self._metrics.set_sequences(
            verifier.engine.sequence_count, held_pages=pages.held_page_count, page_count=pages.page_count
        )
        record_step_spans(
            self._tracer, method=METHOD, worker="verify", traceparent=request.traceparent,
            timing=response.timing, attributes=_span_attributes(request.step_id, items, outcomes),
        )  # fmt: skip
        return response

    def _loaded(self) -> tuple[LoadedModel, Verifier]:
        if self._model is None or self._verifier is None:
            raise NotReady("the model is still loading; retry when readiness serves", retry_after_s=1.0)
        return self._model, self._verifier


def _to_item(stream: int, item: verify_pb2.StepItem, index: int) -> VerifyItem:
    field = f"items[{index}]"
    token_ids = decode_token_ids(item.token_ids, f"{field}.token_ids")
    if item.draft_token_count and item.draft_token_count >= len(token_ids):
        raise InvalidRequest(
            f"{item.draft_token_count} of {len(token_ids)} tokens are drafts; at least one must be committed",
            field=f"{field}.draft_token_count",
        )
    if item.draft_token_count and not item.sample:
        raise InvalidRequest("drafts can only be verified by sampling; set sample", field=f"{field}.sample")
    if item.sample and not item.HasField("sampling"):
        raise InvalidRequest("sample is set without sampling", field=f"{field}.sampling")
    if item.logprob_count > _MAX_LOGPROBS:
        raise InvalidRequest(
            f"logprob_count is {item.logprob_count}; the limit is {_MAX_LOGPROBS}",
            field=f"{field}.logprob_count",
        )
    return VerifyItem(
        key=(stream, item.sequence_id),
        epoch=item.epoch,
        committed_length=item.committed_length,
        token_ids=token_ids,
        draft_count=item.draft_token_count,
        max_compute_tokens=item.max_compute_tokens if item.HasField("max_compute_tokens") else None,
        sampling=sampling_parameters(item.sampling) if item.sample else None,
        full_precision=item.precision == types_pb2.PRECISION_FULL,
        logprob_count=item.logprob_count if item.HasField("logprob_count") else None,
    )


def _to_result(item: verify_pb2.StepItem, outcome: Verified | Failure) -> verify_pb2.StepItemResult:
    if isinstance(outcome, Failure):
        return verify_pb2.StepItemResult(
            sequence_id=item.sequence_id, epoch=item.epoch, error=item_error(outcome)
        )
    return verify_pb2.StepItemResult(
        sequence_id=item.sequence_id,
        epoch=item.epoch,
        computed_length=outcome.computed_length,
        cached_token_count=outcome.cached_token_count,
        accepted_draft_count=outcome.accepted_count,
        next_token_id=outcome.emitted[-1] if outcome.emitted else None,
        logprobs=[token_logprobs(t, p) for t, p in zip(outcome.emitted, outcome.logprobs, strict=False)],
        top2_margin=outcome.margin,
    )


def _span_attributes(
    step_id: int, items: Sequence[VerifyItem], outcomes: Sequence[Verified | Failure]
) -> dict[str, int | str | float]:
    return {
        "spearhead.step.id": step_id,
        "spearhead.batch.requests": len(items),
        "spearhead.batch.tokens": sum(len(item.token_ids) for item in items),
        "spearhead.batch.draft_tokens": sum(item.draft_count for item in items),
        "spearhead.batch.accepted_tokens": sum(
            outcome.accepted_count for outcome in outcomes if isinstance(outcome, Verified)
        ),
        "spearhead.batch.failed_items": sum(isinstance(outcome, Failure) for outcome in outcomes),
    }
