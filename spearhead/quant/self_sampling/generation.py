"""Generates one batch of sequences, all rows in step."""

import hashlib
from collections.abc import Callable

import torch
from torch import Tensor

from spearhead.errors import CalibrationError
from spearhead.quant.decoder import KeyValues, Rotary, layer_forward, rms_norm
from spearhead.quant.layers import LayerSource
from spearhead.quant.self_sampling.config import SamplingTokens, SelfSamplingConfig
from spearhead.quant.self_sampling.documents import Documents
from spearhead.quant.self_sampling.drawing import draw_tokens


def generate(
    source: LayerSource,
    config: SelfSamplingConfig,
    tokens: SamplingTokens,
    *,
    batch: int,
    rows: int,
    on_token: Callable[[int], None],
) -> tuple[Tensor, Tensor]:
    """The sequences of one batch; they depend on nothing but the arguments.

    Args:
        source: The model.
        config: How to draw.
        tokens: The frame.
        batch: Its index, which the random numbers depend on.
        rows: B, how many sequences.
        on_token: Called with the number of tokens of each row so far.

    Returns:
        int32 ``(B, T)`` token ids and bool ``(B, T)`` starts of documents, on the CPU.

    Raises:
        CalibrationError: Keys and values do not fit into memory, or logits are not finite.
    """
    uniform, first_ids = _random_numbers(config, tokens, batch, rows)
    documents = Documents(config, tokens, first_ids.to(source.device))
    try:
        with torch.inference_mode():
            written = _write(source, config, tokens, documents, uniform.to(source.device), on_token)
    except torch.OutOfMemoryError as error:
        raise CalibrationError(
            f"{rows} sequences of {config.length} tokens in step do not fit into the memory of "
            f"{source.device}: keys and values alone take "
            f"{_cache_bytes(source, rows, config.length) / 2**30:.1f} GiB; lower batch_size (of calibrate: "
            "--sampling-batch)"
        ) from error
    return written


def _write(
    source: LayerSource,
    config: SelfSamplingConfig,
    tokens: SamplingTokens,
    documents: Documents,
    uniform: Tensor,
    on_token: Callable[[int], None],
) -> tuple[Tensor, Tensor]:
    rows = uniform.shape[1]
    past = _empty_cache(source, rows, config.length)
    rotary = Rotary.build(source.config, config.length, source.device)
    head = source.head[: tokens.vocab_size]
    token_ids = torch.empty(config.length, rows, dtype=torch.int64, device=source.device)
    starts = torch.empty(config.length, rows, dtype=torch.bool, device=source.device)
    sound = torch.ones((), dtype=torch.bool, device=source.device)
    drawn = torch.zeros(rows, dtype=torch.int64, device=source.device)
    for position in range(config.length):
        token_ids[position], starts[position] = documents.place(position, drawn)
        if position + 1 < config.length:
            hidden = _step(source, token_ids[position], rotary.part(position, position + 1), past)
            sound &= hidden.isfinite().all()
            drawn = draw_tokens(hidden, head, documents.temperature(), uniform[position])
        on_token(position + 1)
    if not bool(sound):
        raise CalibrationError(
            f"the final hidden state holds NaN or infinity in {str(source.dtype).removeprefix('torch.')} "
            "while sampling; the weights overflow: use float32 or bfloat16, or mend the checkpoint"
        )
    return token_ids.T.to("cpu", torch.int32).contiguous(), starts.T.cpu().contiguous()


def _step(source: LayerSource, token_ids: Tensor, rotary: Rotary, past: list[KeyValues]) -> Tensor:
    """The final hidden state (B, D) of one more token a row."""
    hidden = source.embedding[token_ids][:, None]
    for index, key_values in enumerate(past):
        hidden = layer_forward(source.config, index, source.layer(index), hidden, rotary, past=key_values)
    return rms_norm(hidden[:, 0], source.final_norm, source.config.rms_norm_eps)


def _empty_cache(source: LayerSource, rows: int, length: int) -> list[KeyValues]:
    shape = (rows, source.config.kv_head_count, length, source.config.head_dim)
    return [
        KeyValues(
            keys=torch.empty(shape, dtype=source.dtype, device=source.device),
            values=torch.empty(shape, dtype=source.dtype, device=source.device),
        )
        for _ in range(source.config.layer_count)
    ]


def _cache_bytes(source: LayerSource, rows: int, length: int) -> int:
    config = source.config
    values = 2 * config.layer_count * config.kv_head_count * config.head_dim * rows * length
    return values * source.dtype.itemsize


def _random_numbers(
    config: SelfSamplingConfig, tokens: SamplingTokens, batch: int, rows: int
) -> tuple[Tensor, Tensor]:
    """float64 ``(T, B)`` in [0, 1) and int64 ``(T, B)`` random first ids; the same on every device."""
    digest = hashlib.sha256(f"{config.seed}/{batch}".encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest[:8], "little") >> 1)
    shape = (config.length, rows)
    uniform = torch.rand(shape, dtype=torch.float64, generator=generator)
    excluded = {*tokens.eos_token_ids, *tokens.control_token_ids}
    choices = torch.tensor([i for i in range(tokens.vocab_size) if i not in excluded])
    return uniform, choices[torch.randint(len(choices), shape, generator=generator)]
