"""The handshake: what a worker says about its model."""

from spearhead import PROTOCOL_VERSION
from spearhead.errors import ModelMismatch
from spearhead.model.loading import LoadedModel
from spearhead.v1 import types_pb2


def check_protocol(version: int) -> None:
    """Refuses a caller that speaks another version of the contract.

    Raises:
        ModelMismatch: With both versions.
    """
    if version != PROTOCOL_VERSION:
        raise ModelMismatch(
            f"the caller speaks protocol version {version}, this worker {PROTOCOL_VERSION}; "
            "run the same release on both sides"
        )


def device_name(model: LoadedModel) -> str:
    """Where a model computes, such as ``cpu``, ``cuda:0`` or, over ranks, ``4 x cuda``.

    Latency tables are recognised by it: what one rank measured says nothing about several.
    """
    if model.rank_count == 1:
        return model.device
    return f"{model.rank_count} x {model.device.partition(':')[0]}"


def model_info(model: LoadedModel) -> types_pb2.ModelInfo:
    """The wire form of a loaded model."""
    engine = model.engine
    return types_pb2.ModelInfo(
        protocol_version=PROTOCOL_VERSION,
        model=model.name,
        revision=model.revision,
        tokenizer_hash=model.tokenizer_hash,
        vocab_size=engine.vocab_size,
        context_length=engine.context_length,
        kv_page_size=engine.pages.page_size,
        kv_page_count=engine.pages.page_count,
        dtype=model.dtype,
        weight_dtype=model.weight_dtype,
        device=device_name(model),
        eos_token_ids=model.eos_token_ids,
        batch_invariant=model.batch_invariant,
        weight_bytes=engine.weight_bytes,
        kv_cache_bytes=engine.decoder.storage.byte_count,
        max_compute_tokens=engine.max_rows,
    )


def lookup_info(
    *, name: str, tokenizer_hash: str, vocab_size: int, context_length: int
) -> types_pb2.ModelInfo:
    """What a drafter without weights says about itself."""
    return types_pb2.ModelInfo(
        protocol_version=PROTOCOL_VERSION,
        model=name,
        tokenizer_hash=tokenizer_hash,
        vocab_size=vocab_size,
        context_length=context_length,
        device="cpu",
        batch_invariant=True,
    )
