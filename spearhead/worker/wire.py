"""Conversion between worker messages and plain data."""

import numpy as np
import numpy.typing as npt

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

_TINY = 1e-30
_RANGES = {
    "temperature": (0.0, 100.0),
    "top_p": (_TINY, 1.0),
    "min_p": (0.0, 1.0),
    "presence_penalty": (-2.0, 2.0),
    "frequency_penalty": (-2.0, 2.0),
    "repetition_penalty": (_TINY, 100.0),
}


class InvalidItem(Exception):
    """One item breaks the contract; the text says how. It becomes that item's error."""


def _array(data: bytes, dtype: str, field: str) -> npt.NDArray[np.generic]:
    if len(data) % 4:
        raise InvalidItem(f"{field} has {len(data)} bytes, which is no multiple of 4")
    return np.frombuffer(data, dtype)


def decode_token_ids(data: bytes, field: str) -> list[int]:
    """Little-endian uint32 bytes to token ids.

    Raises:
        InvalidItem: The length is no multiple of four.
    """
    token_ids: list[int] = _array(data, "<u4", field).tolist()
    return token_ids


def encode_token_ids(token_ids: npt.ArrayLike) -> bytes:
    """Token ids to little-endian uint32 bytes."""
    return np.asarray(token_ids, "<u4").tobytes()


def encode_floats(values: npt.ArrayLike) -> bytes:
    """Numbers to little-endian float32 bytes."""
    return np.asarray(values, "<f4").tobytes()


def sampling_parameters(message: types_pb2.WorkerSampling, vocab_size: int) -> SamplingParameters:
    """The sampling law of one item.

    Args:
        message: From the wire.
        vocab_size: Ids at or above it can never be sampled; to bias or suppress them has no effect.

    Raises:
        InvalidItem: A value is out of range, or biased token ids and biases differ in number.
    """
    for name, (low, high) in _RANGES.items():
        value = getattr(message, name)
        if not low <= value <= high:  # NaN is in no range
            raise InvalidItem(f"sampling.{name} is {value}; it must be from {low:g} to {high:g}")
    bias_ids = _array(message.logit_bias_token_ids, "<u4", "sampling.logit_bias_token_ids").astype(np.int64)
    biases = _array(message.logit_bias_values, "<f4", "sampling.logit_bias_values").astype(np.float32)
    if len(bias_ids) != len(biases) or not np.isfinite(biases).all():
        raise InvalidItem(
            f"{len(bias_ids)} biased token ids have {int(np.isfinite(biases).sum())} finite biases; each "
            "needs one"
        )
    suppressed = _array(message.suppressed_token_ids, "<u4", "sampling.suppressed_token_ids").astype(np.int64)
    known = bias_ids < vocab_size
    return SamplingParameters(
        temperature=message.temperature,
        top_p=message.top_p,
        top_k=message.top_k,
        min_p=message.min_p,
        seed=message.seed,
        presence_penalty=message.presence_penalty,
        frequency_penalty=message.frequency_penalty,
        repetition_penalty=message.repetition_penalty,
        bias_token_ids=bias_ids[known],
        bias_values=biases[known],
        suppressed_token_ids=suppressed[suppressed < vocab_size],
        suppress_below_length=message.suppress_below_length,
        prompt_length=message.prompt_length,
    )


def invalid(error: InvalidItem) -> Failure:
    """The failure of an item that breaks the contract."""
    return Failure(reason=FailureReason.INVALID, message=str(error))


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
