"""Tiny random models on disk, complete enough to start whole services on them."""

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import hypothesis
import pytest

# A gate must not depend on luck: CI always tries the same examples, everybody else new ones.
hypothesis.settings.register_profile("ci", derandomize=True)
if os.environ.get("CI"):
    hypothesis.settings.load_profile("ci")

_TEXT = [
    "The quick brown fox jumps over the lazy dog while the rain falls on the hills.",
    "Speculative decoding drafts tokens with a small model and verifies them with a large one.",
    "Ein Versuch über Größe und Maß; naïve café, 東京, 🙂🙃.",
    "def verify(draft, target):\n    return [a for a, b in zip(draft, target) if a == b]\n",
]
_SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
_CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + "
    "'<|im_end|>\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
_SHAPE: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 256,
}
_UNUSED_ROWS = 8  # the embedding is padded, as real ones are

CheckpointFactory = Callable[..., Path]


@pytest.fixture(scope="session")
def tiny_tokenizer() -> Any:
    """A byte-level BPE of a few hundred tokens (``tokenizers.Tokenizer``)."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=320,
        special_tokens=_SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_TEXT, trainer)
    return tokenizer


@pytest.fixture
def tiny_checkpoint(tmp_path: Path, tiny_tokenizer: Any) -> CheckpointFactory:
    """``tiny_checkpoint(architecture, *, seed=0, dtype="float32", **config_overrides) -> folder``.

    The folder is what ``save_pretrained`` writes, plus tokenizer.json, its configuration and a chat
    template. Every parameter is random: biases and norms too, which transformers would start as 0 and 1.
    """
    count = 0

    def make(architecture: str, *, seed: int = 0, dtype: str = "float32", **overrides: Any) -> Path:
        nonlocal count
        count += 1
        folder = tmp_path / f"{architecture}-{count}"
        _save_model(folder, architecture, tiny_tokenizer, seed, dtype, overrides)
        _save_tokenizer(folder, tiny_tokenizer)
        return folder

    return make


def _save_model(
    folder: Path, architecture: str, tokenizer: Any, seed: int, dtype: str, overrides: dict[str, Any]
) -> None:
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    settings = _SHAPE | {
        "vocab_size": tokenizer.get_vocab_size() + _UNUSED_ROWS,
        "bos_token_id": tokenizer.token_to_id("<|endoftext|>"),
        "eos_token_id": tokenizer.token_to_id("<|im_end|>"),
        "pad_token_id": None,
    }
    config = AutoConfig.for_model(architecture, **(settings | overrides))
    model = AutoModelForCausalLM.from_config(config)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            center = 1.0 if "norm" in name else 0.0
            parameter.copy_(center + 0.2 * torch.randn(parameter.shape, generator=generator))
    model.to(getattr(torch, dtype)).save_pretrained(folder)


def _save_tokenizer(folder: Path, tokenizer: Any) -> None:
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<|endoftext|>",
        "eos_token": "<|im_end|>",
        "clean_up_tokenization_spaces": False,
        "chat_template": _CHAT_TEMPLATE,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")


@pytest.fixture
def tiny_gguf(tmp_path: Path, tiny_tokenizer: Any) -> Callable[..., Path]:
    """``tiny_gguf(folder, kind="F32", tensors={}, **metadata) -> file``: the same model as a GGUF file.

    ``kind`` is the GGML type of matrices; ``tensors`` are added; ``__`` in a key stands for a dot.
    Llama's query and key rows are permuted, as converters do.
    """
    count = 0

    def make(
        folder: Path, kind: str = "F32", tensors: Mapping[str, Any] = MappingProxyType({}), **extra: Any
    ) -> Path:
        nonlocal count
        count += 1
        path = tmp_path / f"tiny-{count}.gguf"
        _write_gguf(path, folder, tiny_tokenizer, kind, tensors, extra)
        return path

    return make


def _write_gguf(
    path: Path, folder: Path, tokenizer: Any, kind: str, added: Mapping[str, Any], extra: dict[str, Any]
) -> None:
    import gguf
    from gguf import GGMLQuantizationType
    from safetensors.torch import load_file

    config = json.loads((folder / "config.json").read_text())
    architecture = "llama" if config["model_type"] == "mistral" else config["model_type"]
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config["rope_parameters"]["rope_theta"])
    if config.get("sliding_window") is not None and config["model_type"] == "mistral":
        writer.add_sliding_window(config["sliding_window"])
    for key, value in extra.items():
        writer.add_key_value(key.replace("__", "."), value, gguf.GGUFValueType.get_type(value))
    _add_gguf_tokenizer(writer, tokenizer, config["vocab_size"])
    for name, tensor in load_file(folder / "model.safetensors").items():
        values = tensor.float().numpy()
        if architecture == "llama" and (".q_proj." in name or ".k_proj." in name):
            heads = config["num_attention_heads" if ".q_proj." in name else "num_key_value_heads"]
            values = values.reshape(heads, 2, -1, *values.shape[1:]).swapaxes(1, 2).reshape(values.shape)
        as_type = GGMLQuantizationType[kind if values.ndim == 2 else "F32"]
        writer.add_tensor(_gguf_name(name), gguf.quantize(values, as_type), raw_dtype=as_type)
    for name, values in added.items():
        writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add_gguf_tokenizer(writer: Any, tokenizer: Any, vocab_size: int) -> None:
    document = json.loads(tokenizer.to_str())
    tokens = [tokenizer.id_to_token(i) for i in range(tokenizer.get_vocab_size())]
    kinds = [3 if token in _SPECIAL else 1 for token in tokens]
    padding = [f"<unused{i}>" for i in range(vocab_size - len(tokens))]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens + padding)
    writer.add_token_types(kinds + [5] * len(padding))
    writer.add_token_merges([" ".join(merge) for merge in document["model"]["merges"]])
    writer.add_bos_token_id(tokenizer.token_to_id("<|endoftext|>"))
    writer.add_eos_token_id(tokenizer.token_to_id("<|im_end|>"))
    writer.add_chat_template(_CHAT_TEMPLATE)


def _gguf_name(name: str) -> str:
    names = {
        "model.embed_tokens": "token_embd",
        "model.norm": "output_norm",
        "lm_head": "output",
        "model.layers": "blk",
        "input_layernorm": "attn_norm",
        "post_attention_layernorm": "ffn_norm",
        "self_attn.q_proj": "attn_q",
        "self_attn.k_proj": "attn_k",
        "self_attn.v_proj": "attn_v",
        "self_attn.o_proj": "attn_output",
        "self_attn.q_norm": "attn_q_norm",
        "self_attn.k_norm": "attn_k_norm",
        "mlp.gate_proj": "ffn_gate",
        "mlp.up_proj": "ffn_up",
        "mlp.down_proj": "ffn_down",
    }
    for theirs, ours in names.items():
        name = name.replace(theirs, ours)
    return name
