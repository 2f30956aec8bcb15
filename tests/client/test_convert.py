import numpy as np
import pytest

from spearhead.client import Message, SamplingParams, Slo, Speculation
from spearhead.client.convert import event_from_proto, request_to_proto
from spearhead.errors import InvalidRequest, SpearheadError
from spearhead.v1 import scheduler_pb2, types_pb2


def test_values_that_are_left_out_stay_unset_on_the_wire():
    request = request_to_proto("hello", {"sampling": SamplingParams(temperature=0.0)})
    assert request.sampling.HasField("temperature")
    assert not request.sampling.HasField("top_p")
    assert not request.HasField("speculation")
    assert not request.HasField("priority")


def test_every_sampling_parameter_reaches_its_field():
    given = SamplingParams(
        temperature=0.5, top_p=0.9, top_k=7, min_p=0.125, seed=2**64 - 1, max_tokens=5, min_tokens=2,
        stop=["a", "b"], stop_token_ids=[1, 2], ignore_eos=True, presence_penalty=-1.0,
        frequency_penalty=1.5, repetition_penalty=1.25, logit_bias={3: -2.0}, logprobs=4,
    )  # fmt: skip
    sampling = request_to_proto("x", {"sampling": given}).sampling
    for name in SamplingParams.__slots__:
        value = getattr(sampling, name)
        wanted = getattr(given, name)
        if name == "logit_bias":
            assert dict(value) == wanted
        elif name in ("stop", "stop_token_ids"):
            assert list(value) == wanted
        else:
            assert value == pytest.approx(wanted), name


def test_speculation_slo_precision_and_priority_reach_their_fields():
    request = request_to_proto(
        "x",
        {
            "speculation": Speculation(max_draft_tokens=0),
            "slo": Slo(itl_ms=16.0),
            "precision": "full",
            "priority": -3,
        },
    )
    assert request.speculation.HasField("max_draft_tokens")
    assert request.speculation.max_draft_tokens == 0
    assert request.slo.itl_ms == 16.0
    assert request.precision == types_pb2.PRECISION_FULL
    assert request.priority == -3


def test_messages_may_be_dataclasses_or_mappings():
    messages = [Message(role="system", content="s"), {"role": "user", "content": "u"}]
    chat = request_to_proto(None, {"messages": messages}).chat
    assert [(turn.role, turn.content) for turn in chat.messages] == [("system", "s"), ("user", "u")]


def test_a_request_id_is_chosen_when_none_is_given():
    first, second = request_to_proto("x", {}), request_to_proto("x", {})
    assert first.request_id
    assert first.request_id != second.request_id
    assert request_to_proto("x", {"request_id": "mine"}).request_id == "mine"


@pytest.mark.parametrize(
    ("prompt", "options"),
    [(None, {}), ("x", {"token_ids": [1]}), (None, {"token_ids": [1], "messages": []})],
)
def test_not_exactly_one_input_is_refused(prompt, options):
    with pytest.raises(InvalidRequest, match="give exactly one") as caught:
        request_to_proto(prompt, options)
    assert caught.value.field == "input"


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"sampling": SamplingParams(top_k=-1)}, "sampling.top_k"),
        ({"sampling": SamplingParams(seed=2**64)}, "sampling.seed"),
        ({"sampling": SamplingParams(temperature="hot")}, "sampling.temperature"),
        ({"sampling": SamplingParams(stop=[1])}, "sampling.stop"),
        ({"speculation": Speculation(max_draft_tokens=-2)}, "speculation.max_draft_tokens"),
        ({"priority": 2**40}, "priority"),
        ({"precision": "half"}, "precision"),
    ],
)
def test_a_value_that_its_field_cannot_hold_is_refused_by_name(options, field):
    with pytest.raises(InvalidRequest) as caught:
        request_to_proto("x", options)
    assert caught.value.field == field


def test_a_lone_surrogate_in_the_prompt_is_refused():
    with pytest.raises(InvalidRequest) as caught:
        request_to_proto("\ud800", {})
    assert caught.value.field == "prompt"


def test_a_message_with_an_unknown_key_is_refused():
    with pytest.raises(InvalidRequest) as caught:
        request_to_proto(None, {"messages": [{"role": "user", "text": "u"}]})
    assert caught.value.field == "chat.messages"


def test_log_probabilities_are_decoded_with_their_alternatives():
    entry = types_pb2.TokenLogprobs(
        token_id=5, logprob=-0.5, rank=1,
        top_token_ids=np.array([5, 9], "<u4").tobytes(), top_logprobs=np.array([-0.5, -1.5], "<f4").tobytes(),
    )  # fmt: skip
    delta = scheduler_pb2.GenerationDelta(token_ids=[5], logprobs=[entry])
    event = event_from_proto(scheduler_pb2.GenerateResponse(delta=delta))
    assert event.logprobs[0].top == ((5, -0.5), (9, -1.5))


def test_the_last_message_keeps_what_is_unset_apart_from_zero():
    finished = scheduler_pb2.GenerationFinished(reason=scheduler_pb2.FINISH_REASON_STOP, stop_token_id=0)
    finished.timings.verify.FromMicroseconds(2_500_001)
    event = event_from_proto(scheduler_pb2.GenerateResponse(finished=finished))
    assert event.reason == "stop"
    assert event.stop_token_id == 0
    assert event.stop_string is None
    assert event.speculation.acceptance is None
    assert event.timings.verify_s == pytest.approx(2.500001)


def test_an_event_of_a_newer_contract_is_an_error():
    with pytest.raises(SpearheadError, match="upgrade the client"):
        event_from_proto(scheduler_pb2.GenerateResponse())
