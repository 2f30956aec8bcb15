"""Conversion between worker messages and plain data."""

import numpy as np
import numpy.typing as npt

from spearhead.errors import InvalidRequest
from spearhead.model.engine import Failure, FailureReason
from spearhead.model.sampling import Logprobs, SamplingParameters
from spearhead.v1 import types_pb2

_REASONS = {
    FailureReason.CACHE_MISS: types_pb2.ITEM_ERROR_REASON_CACHE_MISS,
    FailureReason.STALE_EPOCH: types_pb2.ITEM_ERROR_REASON_STALE_EPOCH,
    FailureReason.OUT_OF_PAGES: types_pb2.ITEM_ERROR_REASON_OUT_OF_PAGES,
    FailureReason.INVALID: types_pb2.ITEM_ERROR_REASON_INVALID,
    FailureReason.NON_FINITE: types_pb2.ITEM_ERROR_REASON_NON_FINITE,
    FailureReason.PRECISION_UNAVAILABLE: types_pb2.ITEM_ERROR_REASON_PRECISION_UNAVAILABLE,
}


def decode_token_ids(data: bytes, field: str) -> list[int]:
    """Little-endian uint32 bytes to token ids.

    Raises:
        InvalidRequest: The length is no multiple of four.
    """
    if len(data) % 4:
        raise InvalidRequest(f"{field} has {len(data)} bytes, which is no multiple of 4", field=field)
    token_ids: list[int] = np.frombuffer(data, "<u4").tolist()
    return token_ids


def encode_token_ids(token_ids: npt.ArrayLike) -> bytes:
    """Token ids to little-endian uint32 bytes."""
    return np.asarray(token_ids, "<u4").tobytes()


def encode_floats(values: npt.ArrayLike) -> bytes:
    """Numbers to little-endian float32 bytes."""
    return np.asarray(values, "<f4").tobytes()


def sampling_parameters(message: types_pb2.WorkerSampling) -> SamplingParameters:
    """The sampling law of one item.

    Raises:
        InvalidRequest: Biased token ids and biases differ in number.
    """
    bias_ids = np.frombuffer(message.logit_bias_token_ids, "<u4").astype(np.int64)
    bias_values = np.frombuffer(message.logit_bias_values, "<f4").astype(np.float32)
    if len(bias_ids) != len(bias_values):
        raise InvalidRequest(
            f"{len(bias_ids)} biased token ids but {len(bias_values)} biases", field="sampling.logit_bias"
        )
    return SamplingParameters(
        temperature=message.temperature,
        top_p=message.top_p,
        top_k=message.top_k,
        min_p=message.min_p,
        seed=message.seed,
        presence_penalty=message.presence_penalty,
        frequency_penalty=message.frequency_penalty,
        repetition_penalty=message.repetition_penalty,
        bias_token_ids=bias_ids,
        bias_values=bias_values,
        suppressed_token_ids=np.frombuffer(message.suppressed_token_ids, "<u4").astype(np.int64),
        suppress_below_length=message.suppress_below_length,
        prompt_length=message.prompt_length,
    )


def item_error(failure: Failure) -> types_pb2.ItemError:
    """The wire form of a failure."""
    return types_pb2.ItemError(reason=_REASONS[failure.reason], message=failure.message)


def token_logprobs(token_id: int, logprobs: Logprobs) -> types_pb2.TokenLogprobs:
    """The wire form of log-probabilities."""
    return types_pb2.TokenLogprobs(
        token_id=token_id,
        logprob=logprobs.logprob,
        rank=logprobs.rank,
        top_token_ids=encode_token_ids(logprobs.top_token_ids),
        top_logprobs=encode_floats(logprobs.top_logprobs),
    )
