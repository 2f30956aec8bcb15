"""The scheduler's data as worker messages, and back."""

import sys
from array import array
from collections.abc import Iterable, Sequence

from scheduler_service.spec import GenerationSpec
from spearhead.v1 import types_pb2

RETRY_AFTER_S = 1.0
"""After a worker was lost or found no room, a retry makes sense so soon."""
RESTART_REASONS = frozenset({types_pb2.ITEM_ERROR_REASON_CACHE_MISS, types_pb2.ITEM_ERROR_REASON_STALE_EPOCH})
"""Errors after which a worker must be sent the sequence from the start."""

# "I" is 4 bytes on every platform that CPython's wheels of grpcio exist for.
_UINT32, _FLOAT32 = "I", "f"


def pack_token_ids(token_ids: Iterable[int]) -> bytes:
    """Token ids as little-endian uint32."""
    return _pack(_UINT32, token_ids)


def unpack_token_ids(data: bytes) -> list[int]:
    """Token ids from little-endian uint32.

    Raises:
        ValueError: The number of bytes is not a multiple of 4.
    """
    values = array(_UINT32)
    values.frombytes(data)
    if sys.byteorder == "big":
        values.byteswap()
    return values.tolist()


def worker_sampling(spec: GenerationSpec) -> types_pb2.WorkerSampling:
    """The sampling message of a request. Both workers get the same one in every step."""
    sampling, prompt_length = spec.sampling, len(spec.prompt_token_ids)
    suppressed = sorted(spec.stop_token_ids) if spec.min_tokens else []
    return types_pb2.WorkerSampling(
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_k=sampling.top_k,
        min_p=sampling.min_p,
        seed=sampling.seed,
        presence_penalty=sampling.presence_penalty,
        frequency_penalty=sampling.frequency_penalty,
        repetition_penalty=sampling.repetition_penalty,
        logit_bias_token_ids=pack_token_ids(token_id for token_id, _ in sampling.logit_bias),
        logit_bias_values=_pack(_FLOAT32, (bias for _, bias in sampling.logit_bias)),
        suppressed_token_ids=pack_token_ids(suppressed),
        suppress_below_length=prompt_length + spec.min_tokens if suppressed else 0,
        prompt_length=prompt_length,
    )


def worker_precision(spec: GenerationSpec) -> types_pb2.Precision:
    """The precision of a request in the contract's words."""
    return types_pb2.PRECISION_FULL if spec.precision == "full" else types_pb2.PRECISION_DEFAULT


def releases(sequence_ids: Sequence[int]) -> list[types_pb2.SequenceRelease]:
    """One release a sequence."""
    return [types_pb2.SequenceRelease(sequence_id=sequence_id) for sequence_id in sequence_ids]


def _pack(typecode: str, values: Iterable[float]) -> bytes:
    packed = array(typecode, values)
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tobytes()
