"""gRPC on the outside, :class:`Verifier` on the inside; converts, calls, converts."""

import logging
from collections.abc import AsyncIterator, Sequence
from functools import partial

import grpc

from spearhead.errors import InvalidRequest, NotReady
from spearhead.model.engine import Failure
from spearhead.model.loading import LoadedModel
from spearhead.model.profiler import Latency, profile_engine
from spearhead.telemetry import Telemetry
from spearhead.v1 import types_pb2, verify_pb2, verify_pb2_grpc
from spearhead.worker.info import check_protocol, model_info
from spearhead.worker.metrics import WorkerMetrics
from spearhead.worker.model_thread import ModelThread
from spearhead.worker.profile import check_profile_size, kernel_profile
from spearhead.worker.stream import StreamKeys, in_stream, serve_stream
from spearhead.worker.timing import Receipt, record_step_spans, worker_timing
from spearhead.worker.wire import (
    InvalidItem,
    decode_token_ids,
    invalid,
    item_error,
    sampling_parameters,
    token_logprobs,
)
from verify_service.verifier import Verified, Verifier, VerifyItem

METHOD = "spearhead.v1.VerifyService/Step"
_MAX_LOGPROBS = 20

_log = logging.getLogger("spearhead.verify")


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
            rank_count=model.rank_count,
        )

    async def Step(  # noqa: N802
        self, request_iterator: AsyncIterator[verify_pb2.StepRequest], context: grpc.aio.ServicerContext
    ) -> AsyncIterator[verify_pb2.StepResponse]:
        """Answers the steps of one scheduler until it, or a drain, ends the stream."""
        _, verifier = self._loaded()
        await context.send_initial_metadata(())  # the scheduler shakes hands once it knows who has the stream
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
        previous = (await self._thread.run(partial(verifier.set_variant, request.variant))).result
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
        check_profile_size(verifier.engine, request.rows, request.contexts)

        def measure() -> tuple[str, list[Latency]]:
            variant = verifier.variant
            profile = profile_engine(
                verifier.engine, variant, request.rows, request.contexts, on_progress=self._thread.beat
            )
            return variant, profile

        variant, latencies = (await self._thread.run(measure)).result
        return verify_pb2.VerifyServiceProfileKernelsResponse(
            profile=kernel_profile(model, variant, latencies)
        )

    async def _step(
        self, stream: int, verifier: Verifier, request: verify_pb2.StepRequest, receipt: Receipt
    ) -> verify_pb2.StepResponse:
        vocab_size = verifier.engine.vocab_size
        parsed = [_to_item(stream, item, vocab_size) for item in request.items]
        items = [item for item in parsed if isinstance(item, VerifyItem)]
        released = [(stream, release.sequence_id) for release in request.releases]
        timed = await self._thread.run(partial(verifier.step, items, released))
        computed = iter(timed.result.outcomes)
        outcomes = [item if isinstance(item, Failure) else next(computed) for item in parsed]
        response = verify_pb2.StepResponse(
            step_id=request.step_id,
            results=[
                _to_result(item, outcome) for item, outcome in zip(request.items, outcomes, strict=True)
            ],
            free_page_count=verifier.engine.pages.free_page_count,
            variant=timed.result.variant,
        )
        response.timing.CopyFrom(worker_timing(receipt, timed, timed.result.sample_ns))
        self._count(verifier, outcomes, response.timing.compute_ns)
        record_step_spans(
            self._tracer, method=METHOD, worker="verify", traceparent=request.traceparent,
            timing=response.timing,
            attributes={**_span_attributes(request.step_id, items, outcomes), **timed.device},
        )  # fmt: skip
        return response

    def _count(self, verifier: Verifier, outcomes: Sequence[Verified | Failure], compute_ns: int) -> None:
        pages = verifier.engine.pages
        self._metrics.step(_computed_tokens(outcomes), compute_ns)
        self._metrics.item_errors(outcomes)
        self._metrics.set_sequences(
            verifier.engine.sequence_count, held_pages=pages.held_page_count, page_count=pages.page_count
        )

    def _loaded(self) -> tuple[LoadedModel, Verifier]:
        if self._model is None or self._verifier is None:
            raise NotReady("the model is still loading; retry when readiness serves", retry_after_s=1.0)
        return self._model, self._verifier


def _to_item(stream: int, item: verify_pb2.StepItem, vocab_size: int) -> VerifyItem | Failure:
    try:
        token_ids = decode_token_ids(item.token_ids, "token_ids")
        _check(item, len(token_ids))
        sampling = sampling_parameters(item.sampling, vocab_size) if item.sample else None
    except InvalidItem as error:
        return invalid(error)
    return VerifyItem(
        key=(stream, item.sequence_id),
        epoch=item.epoch,
        committed_length=item.committed_length,
        token_ids=token_ids,
        draft_count=item.draft_token_count,
        max_compute_tokens=item.max_compute_tokens if item.HasField("max_compute_tokens") else None,
        sampling=sampling,
        full_precision=item.precision == types_pb2.PRECISION_FULL,
        logprob_count=item.logprob_count if item.HasField("logprob_count") else None,
    )


def _check(item: verify_pb2.StepItem, token_count: int) -> None:
    if item.draft_token_count and item.draft_token_count >= token_count:
        raise InvalidItem(
            f"{item.draft_token_count} of {token_count} tokens are drafts; at least one must be committed"
        )
    if item.draft_token_count and not item.sample:
        raise InvalidItem("drafts can only be verified by sampling; set sample")
    if item.sample and not item.HasField("sampling"):
        raise InvalidItem("sample is set without sampling")
    if item.logprob_count > _MAX_LOGPROBS:
        raise InvalidItem(f"logprob_count is {item.logprob_count}; the limit is {_MAX_LOGPROBS}")
    if item.precision not in types_pb2.Precision.values():
        raise InvalidItem(f"precision {item.precision} is unknown; use a value of the enum Precision")


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
        "spearhead.batch.tokens": _computed_tokens(outcomes),
        "spearhead.batch.draft_tokens": sum(item.draft_count for item in items),
        "spearhead.batch.accepted_tokens": sum(
            outcome.accepted_count for outcome in outcomes if isinstance(outcome, Verified)
        ),
        "spearhead.batch.failed_items": sum(isinstance(outcome, Failure) for outcome in outcomes),
    }


def _computed_tokens(outcomes: Sequence[Verified | Failure]) -> int:
    """Tokens computed for items that did not fail: a long prompt is sent whole and computed in chunks."""
    return sum(outcome.computed_token_count for outcome in outcomes if isinstance(outcome, Verified))
