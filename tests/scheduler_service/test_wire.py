import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler_service.spec import GenerationSpec, SamplingSpec
from scheduler_service.wire import pack_token_ids, unpack_token_ids, worker_precision, worker_sampling
from spearhead.v1 import types_pb2


@given(st.lists(st.integers(0, 2**32 - 1)))
def test_token_ids_are_little_endian_uint32(token_ids: list[int]) -> None:
    packed = pack_token_ids(token_ids)
    assert packed == struct.pack(f"<{len(token_ids)}I", *token_ids)
    assert unpack_token_ids(packed) == token_ids


def test_a_torn_token_id_is_refused() -> None:
    with pytest.raises(ValueError):
        unpack_token_ids(b"\0\0\0\0\0")


def spec(**fields: object) -> GenerationSpec:
    return GenerationSpec(request_id="r", prompt_token_ids=(1, 2, 3), max_tokens=9, **fields)


def test_without_min_tokens_nothing_is_suppressed() -> None:
    sampling = worker_sampling(spec(stop_token_ids=frozenset({5})))
    assert (sampling.suppressed_token_ids, sampling.suppress_below_length) == (b"", 0)


def test_min_tokens_suppress_every_stop_token_below_its_length() -> None:
    sampling = worker_sampling(spec(stop_token_ids=frozenset({9, 5}), min_tokens=4))
    assert unpack_token_ids(sampling.suppressed_token_ids) == [5, 9]
    assert (sampling.prompt_length, sampling.suppress_below_length) == (3, 7)


def test_biases_keep_their_tokens() -> None:
    sampling = worker_sampling(spec(sampling=SamplingSpec(logit_bias=((4, -1.5), (7, 0.25)))))
    assert unpack_token_ids(sampling.logit_bias_token_ids) == [4, 7]
    assert struct.unpack("<2f", sampling.logit_bias_values) == (-1.5, 0.25)


def test_precision_is_passed_on() -> None:
    assert worker_precision(spec(precision="full")) == types_pb2.PRECISION_FULL
    assert worker_precision(spec()) == types_pb2.PRECISION_DEFAULT
