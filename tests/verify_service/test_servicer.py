"""The verify service over real gRPC: items fail alone, streams own their sequences."""

import contextlib

import grpc
import numpy as np
import pytest
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from spearhead import PROTOCOL_VERSION
from spearhead.model.loading import LoadedModel
from spearhead.rpc import EndpointConfig, Server, TargetConfig, create_channel, error_from_rpc
from spearhead.telemetry import Telemetry, TelemetryConfig
from spearhead.v1 import types_pb2, verify_pb2, verify_pb2_grpc
from spearhead.worker.model_thread import ModelThread
from verify_service.servicer import VerifyServicer

TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
GREEDY = types_pb2.WorkerSampling(temperature=0, top_p=1, repetition_penalty=1)


def packed(ids):
    return np.asarray(ids, "<u4").tobytes()


def item(sequence_id, ids=(1, 2, 3), **changes):
    fields = {"sample": True, "sampling": GREEDY, "token_ids": packed(ids)} | changes
    return verify_pb2.StepItem(sequence_id=sequence_id, **fields)


@pytest.fixture
def exporter():
    return InMemorySpanExporter()


@pytest.fixture
def telemetry(exporter):
    telemetry = Telemetry.start("verify", TelemetryConfig(), span_processors=[SimpleSpanProcessor(exporter)])
    yield telemetry
    telemetry.shutdown()


@pytest.fixture
async def service(make_verifier, tmp_path, telemetry):
    thread = ModelThread("test")
    server = Server(
        EndpointConfig(listen=f"unix:{tmp_path / 'v.sock'}"),
        service_names=["spearhead.v1.VerifyService"],
        telemetry=telemetry,
    )
    servicer = VerifyServicer(thread, telemetry)
    verify_pb2_grpc.add_VerifyServiceServicer_to_server(servicer, server.grpc_server)
    address = await server.start()
    verifier = make_verifier()
    model = LoadedModel(
        engine=verifier.engine, name="tiny", revision="sha256:0", tokenizer_hash="sha256:1",
        eos_token_ids=(2,),
        dtype="float32", weight_dtype="float32", device="cpu", batch_invariant=True,
    )  # fmt: skip
    async with create_channel(TargetConfig(address=address)) as channel:
        stub = verify_pb2_grpc.VerifyServiceStub(channel)
        yield stub, servicer, verifier, thread, lambda: servicer.attach(model, verifier)
    await server.drain(0)
    thread.close()


@contextlib.asynccontextmanager
async def steps(stub):
    call = stub.Step()

    async def step(*items, releases=(), step_id=1):
        await call.write(
            verify_pb2.StepRequest(
                step_id=step_id,
                traceparent=TRACEPARENT,
                items=items,
                releases=[types_pb2.SequenceRelease(sequence_id=i) for i in releases],
            )
        )
        return await call.read()

    yield step
    await call.done_writing()
    assert await call.read() is grpc.aio.EOF


async def code_of(call):
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return caught.value.code(), error_from_rpc(caught.value)


async def test_nothing_is_served_before_the_model_is_there(service):
    stub, *_ = service
    code, error = await code_of(stub.ListVariants(verify_pb2.ListVariantsRequest()))
    assert code is grpc.StatusCode.UNAVAILABLE
    assert error.retry_after_s == 1.0


async def test_the_handshake_names_the_model_and_refuses_another_protocol(service):
    stub, _, verifier, _, attach = service
    attach()
    request = verify_pb2.VerifyServiceGetModelInfoRequest(protocol_version=PROTOCOL_VERSION)
    answer = await stub.GetModelInfo(request)
    assert (answer.variant, list(answer.variants)) == ("fp16", ["fp16", "w4"])
    assert answer.info.vocab_size == verifier.engine.vocab_size
    assert answer.info.max_compute_tokens == 1024
    code, _ = await code_of(
        stub.GetModelInfo(verify_pb2.VerifyServiceGetModelInfoRequest(protocol_version=99))
    )
    assert code is grpc.StatusCode.FAILED_PRECONDITION


async def test_an_item_that_breaks_the_contract_fails_alone(service):
    stub, _, _, _, attach = service
    attach()
    bad = [
        item(1, token_ids=b"12345"),
        item(2, draft_token_count=3),
        item(3, draft_token_count=1, sample=False),
        verify_pb2.StepItem(sequence_id=4, token_ids=packed([1]), sample=True),
        item(5, logprob_count=21),
        item(6, precision=9),
        item(7, sampling=types_pb2.WorkerSampling(temperature=float("nan"), top_p=1, repetition_penalty=1)),
        item(8, ids=[10**6]),
        item(9, max_compute_tokens=0),
    ]
    async with steps(stub) as step:
        reply = await step(item(100), *bad, item(101))
        assert [result.sequence_id for result in reply.results] == [100, *range(1, 10), 101]
        assert not reply.results[0].HasField("error")
        assert not reply.results[-1].HasField("error")
        assert {result.error.reason for result in reply.results[1:-1]} == {
            types_pb2.ITEM_ERROR_REASON_INVALID
        }
        again = await step(item(100, ids=[reply.results[0].next_token_id], committed_length=3))
        assert again.results[0].computed_length == 4


async def test_a_reply_carries_step_id_timing_pages_and_variant(service):
    stub, _, verifier, _, attach = service
    attach()
    async with steps(stub) as step:
        reply = await step(item(1), step_id=77)
    assert (reply.step_id, reply.variant) == (77, "fp16")
    assert reply.free_page_count == verifier.engine.pages.page_count - 1
    timing = reply.timing
    assert 0 < timing.compute_ns <= timing.total_ns
    assert timing.queue_ns + timing.compute_ns <= timing.total_ns
    assert timing.sample_ns < timing.compute_ns


async def test_spans_and_metrics_count_the_tokens_that_were_computed_not_those_that_were_sent(
    service, telemetry, exporter
):
    stub, _, _, _, attach = service
    attach()
    prompt = list(range(1, 41))
    async with steps(stub) as step:
        await step(item(1, ids=prompt, max_compute_tokens=24))
        await step(item(1, ids=prompt[24:], committed_length=24))
        reply = await step(item(2, ids=prompt), item(3, committed_length=9))
    assert reply.results[0].cached_token_count == 32
    spans = [span for span in exporter.get_finished_spans() if span.name == "spearhead.v1.VerifyService/Step"]
    counts = [span.attributes["spearhead.batch.tokens"] for span in spans if span.parent is not None]
    assert counts == [24, 16, 8]
    assert telemetry.registry.get_sample_value("spearhead_verify_tokens_total") == 48


async def test_the_end_of_a_stream_frees_its_sequences_and_no_others(service):
    stub, _, verifier, thread, attach = service
    attach()
    async with steps(stub) as first:
        await first(item(1), item(2))
        async with steps(stub) as second:
            await second(item(1))
        await thread.run(lambda: None)
        assert verifier.engine.sequence_count == 2
        reply = await first(item(1, ids=[5], committed_length=3), releases=[2])
        assert not reply.results[0].HasField("error")
        assert verifier.engine.sequence_count == 1
    await thread.run(lambda: None)
    assert verifier.engine.pages.free_page_count == verifier.engine.pages.page_count


async def test_a_drain_ends_the_stream_after_the_message_in_hand(service):
    stub, servicer, _, _, attach = service
    attach()
    call = stub.Step()
    await call.write(verify_pb2.StepRequest(items=[item(1)]))
    assert (await call.read()).results[0].computed_length == 3
    servicer.end_streams()
    assert await call.read() is grpc.aio.EOF


async def test_variants_are_listed_switched_and_refused_by_name(service):
    stub, _, verifier, _, attach = service
    attach()
    listed = (await stub.ListVariants(verify_pb2.ListVariantsRequest())).variants
    assert {v.name: v.current for v in listed} == {"fp16": True, "w4": False}
    sizes = {v.name: v.stored_bytes for v in listed}
    assert sizes["w4"] < sizes["fp16"]
    answer = await stub.SetVariant(verify_pb2.SetVariantRequest(variant="w4"))
    assert (answer.previous_variant, answer.variant, verifier.variant) == ("fp16", "w4", "w4")
    code, error = await code_of(stub.SetVariant(verify_pb2.SetVariantRequest(variant="w8")))
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert "w8" in error.message
    assert error.field == "variant"


async def test_a_profile_measures_every_operation_and_touches_no_sequence(service):
    stub, _, verifier, _, attach = service
    attach()
    async with steps(stub) as step:
        before = await step(item(1, ids=range(40)))
        request = verify_pb2.VerifyServiceProfileKernelsRequest(rows=[1, 4], contexts=[16])
        profile = (await stub.ProfileKernels(request)).profile
        assert {entry.op for entry in profile.latencies} == {"linear", "attention", "head", "overhead"}
        linear = [entry for entry in profile.latencies if entry.op == "linear"]
        assert {entry.rows for entry in linear} == {1, 4}
        assert sum(e.calls_per_forward for e in linear if e.rows == 1) == 4 * 2  # four a layer, two layers
        assert all(entry.median_us >= 0 for entry in profile.latencies)
        assert (profile.variant, profile.revision) == ("fp16", "sha256:0")
        after = await step(item(1, ids=range(40)))
        assert after.results[0].next_token_id == before.results[0].next_token_id
        verifier.engine.check_integrity()
    code, error = await code_of(
        stub.ProfileKernels(verify_pb2.VerifyServiceProfileKernelsRequest(rows=[4_000_000_000]))
    )
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert "rows" in error.message
