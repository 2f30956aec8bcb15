"""Messages to plain data: exact, and refused where they break the contract."""

import numpy as np
import pytest

from spearhead.v1 import types_pb2
from spearhead.worker.wire import (
    InvalidItem,
    decode_token_ids,
    encode_floats,
    encode_token_ids,
    sampling_parameters,
)


def message(**changes):
    return types_pb2.WorkerSampling(**({"temperature": 0.5, "top_p": 1, "repetition_penalty": 1} | changes))


def test_token_ids_survive_the_round_trip():
    ids = [0, 1, 2**31, 2**32 - 1]
    assert decode_token_ids(encode_token_ids(ids), "token_ids") == ids
    assert encode_token_ids([1]) == b"\x01\x00\x00\x00"


def test_half_a_token_id_is_refused():
    with pytest.raises(InvalidItem, match="token_ids has 5 bytes"):
        decode_token_ids(b"12345", "token_ids")


def test_every_field_arrives():
    law = sampling_parameters(
        message(
            top_k=7, min_p=0.25, seed=2**64 - 1, presence_penalty=-1, frequency_penalty=1.5,
            logit_bias_token_ids=encode_token_ids([3, 9]), logit_bias_values=encode_floats([1.5, -2]),
            suppressed_token_ids=encode_token_ids([2]), suppress_below_length=11, prompt_length=4,
        ),
        vocab_size=10,
    )  # fmt: skip
    assert (law.temperature, law.top_k, law.min_p, law.seed) == (0.5, 7, 0.25, 2**64 - 1)
    assert (law.presence_penalty, law.frequency_penalty, law.repetition_penalty) == (-1, 1.5, 1)
    assert (law.bias_token_ids.tolist(), law.bias_values.tolist()) == ([3, 9], [1.5, -2])
    assert (law.suppressed_token_ids.tolist(), law.suppress_below_length, law.prompt_length) == ([2], 11, 4)


def test_ids_beyond_the_vocabulary_have_no_effect():
    law = sampling_parameters(
        message(
            logit_bias_token_ids=encode_token_ids([3, 10, 2**32 - 1]),
            logit_bias_values=encode_floats([1, 2, 3]),
            suppressed_token_ids=encode_token_ids([10, 4]),
        ),
        vocab_size=10,
    )  # fmt: skip
    assert law.bias_token_ids.tolist() == [3]
    assert law.suppressed_token_ids.tolist() == [4]


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"temperature": float("nan")}, "temperature"),
        ({"temperature": -1}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"top_p": 1.5}, "top_p"),
        ({"min_p": float("inf")}, "min_p"),
        ({"repetition_penalty": 0}, "repetition_penalty"),
        ({"presence_penalty": 3}, "presence_penalty"),
        ({"frequency_penalty": float("nan")}, "frequency_penalty"),
        ({"logit_bias_token_ids": b"\x01\x00\x00\x00"}, "biased token ids"),
        (
            {"logit_bias_token_ids": encode_token_ids([1]), "logit_bias_values": np.float32("nan").tobytes()},
            "finite",
        ),
        ({"suppressed_token_ids": b"abc"}, "suppressed_token_ids"),
        ({"logit_bias_values": b"abc"}, "logit_bias_values"),
    ],
)
def test_a_law_out_of_range_is_refused_by_name(changes, named):
    with pytest.raises(InvalidItem, match=named):
        sampling_parameters(message(**changes), vocab_size=10)
