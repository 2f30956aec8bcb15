"""The wire side of the draft service."""

import numpy as np
import pytest
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from draft_service.config import DraftConfig
from draft_service.loading import load
from draft_service.servicer import METHOD, DraftServicer
from spearhead.model.settings import KvCacheSettings, ModelSettings
from spearhead.rpc import EndpointConfig, Server, TargetConfig, create_channel
from spearhead.telemetry import Telemetry, TelemetryConfig
from spearhead.v1 import draft_pb2, draft_pb2_grpc, types_pb2
from spearhead.worker.model_thread import ModelThread

TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
GREEDY = types_pb2.WorkerSampling(temperature=0, top_p=1, repetition_penalty=1)


def item(sequence_id, ids, **changes):
    fields = {"sampling": GREEDY, "token_ids": np.asarray(ids, "<u4").tobytes()} | changes
    return draft_pb2.ProposeItem(sequence_id=sequence_id, **fields)


@pytest.fixture
def exporter():
    return InMemorySpanExporter()


@pytest.fixture
def telemetry(exporter):
    telemetry = Telemetry.start("draft", TelemetryConfig(), span_processors=[SimpleSpanProcessor(exporter)])
    yield telemetry
    telemetry.shutdown()


@pytest.fixture
async def stub(tiny_checkpoint, tmp_path, telemetry):
    thread = ModelThread("test")
    server = Server(
        EndpointConfig(listen=f"unix:{tmp_path / 'd.sock'}"),
        service_names=["spearhead.v1.DraftService"],
        telemetry=telemetry,
    )
    servicer = DraftServicer(thread, telemetry)
    draft_pb2_grpc.add_DraftServiceServicer_to_server(servicer, server.grpc_server)
    config = DraftConfig(
        model=ModelSettings(path=str(tiny_checkpoint("llama")), dtype="float32"),
        kv_cache=KvCacheSettings(page_count=64),
    )
    servicer.attach(load(config), kind="model", max_draft_tokens=8)
    async with create_channel(TargetConfig(address=await server.start())) as channel:
        yield draft_pb2_grpc.DraftServiceStub(channel)
    await server.drain(0)
    thread.close()


async def test_spans_and_metrics_count_the_tokens_that_were_computed_not_those_that_were_sent(
    stub, telemetry, exporter
):
    prompt, wanted, replies = list(range(1, 41)), {"max_draft_tokens": 3}, []
    call = stub.Propose()
    for items in (
        [item(1, prompt, max_compute_tokens=24, **wanted)],
        [item(1, prompt[24:], committed_length=24, **wanted)],
        [item(2, prompt, **wanted), item(3, prompt, committed_length=9)],
    ):
        await call.write(draft_pb2.ProposeRequest(step_id=1, traceparent=TRACEPARENT, items=items))
        replies.append(await call.read())
    await call.done_writing()
    assert [len(reply.results[0].draft_token_ids) // 4 for reply in replies] == [0, 3, 3]
    assert replies[2].results[0].cached_token_count == 32
    assert replies[2].results[1].error.reason == types_pb2.ITEM_ERROR_REASON_CACHE_MISS
    spans = [
        span for span in exporter.get_finished_spans() if span.name == METHOD and span.parent is not None
    ]
    assert [span.attributes["spearhead.batch.tokens"] for span in spans] == [24, 16, 8]
    assert [span.attributes["spearhead.batch.draft_tokens"] for span in spans] == [0, 3, 3]
    assert telemetry.registry.get_sample_value("spearhead_draft_tokens_total") == 24 + 16 + 8 + 6
