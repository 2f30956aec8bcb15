"""A small byte-level BPE trained here, as a GGUF file and as the folder that a model's authors publish."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, trainers

UNICODE_CORPUS = (
    "The quick brown fox doesn't jump; it'll rest. I'VE SEEN IT, WE'LL GO.",
    "Zahlen: 0 7 42 1234567890 3.14159 ½ ² Ⅷ ٣٤٥ 12ab34",
    "naïve café résumé - Ångström, na\u0301ive cafe\u0301 (combining), Tiê\u0301ng Viê\u0323t",
    "emoji: 🙂 👩‍👩‍👧‍👦 🏳️‍🌈 🇩🇪 👍🏽 🫠 end",
    "中文分词 日本語のテキスト 한국어 ひらがなカタカナ",
    "שלום עולם مرحبا بالعالم ‏RTL‎ mark",
    "हिन्दी ไทย தமிழ் ქართული አማርኛ",
    "def f(x):\n    return {'a': x**2}  # comment\n\tif x != 0x1F:\n\t\tpass\r\n",
    "  leading, trailing  \n\n\n   and   runs \t\t of    white\u00a0space\u2003\u3000 ",
    'http://example.org/a?b=c&d=%20#f a_b-c/d\\e ~`|^ <tag attr="1">&amp;</tag>',
    "𝔘𝔫𝔦𝔠𝔬𝔡𝔢 𐍈 \ufffd \u200b\u200d \x00\x07 \x7f",
    "ſ'ſ I'M O'Neil 'tis 'LL",
    "",
    " ",
)
SPECIAL = ("<|unk|>", "<|start|>", "<|end|>", "<|turn|>")
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|start|>' + message['role'] + '\n' + message['content'] + '<|end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start|>assistant\n' }}{% endif %}"
)
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def _split(pattern: str) -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pattern), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )


# How the models' own tokenizer.json files cut words, written as they write it.
REFERENCE_PRE_TOKENIZERS: dict[str, Callable[[], pre_tokenizers.PreTokenizer]] = {
    "gpt-2": lambda: pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
    "smollm": lambda: pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    ),
    "llama-bpe": lambda: _split(LLAMA3),
    "qwen2": lambda: _split(LLAMA3.replace("{1,3}", "")),
}


def train_reference(pre: str) -> tokenizers.Tokenizer:
    """A tokenizer as a model's authors would publish it."""
    backend = tokenizers.Tokenizer(models.BPE(ignore_merges=pre == "llama-bpe"))
    backend.pre_tokenizer = REFERENCE_PRE_TOKENIZERS[pre]()
    backend.normalizer = normalizers.NFC() if pre == "qwen2" else None
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=700,
        show_progress=False,
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    backend.train_from_iterator([*UNICODE_CORPUS] * 3, trainer)
    backend.add_tokens([AddedToken("<tool>", normalized=False)])
    return backend


def gguf_fields(backend: tokenizers.Tokenizer, pre: str) -> dict[str, Any]:
    """The same tokenizer as GGUF metadata, with two unused entries that pad the vocabulary."""
    document = json.loads(backend.to_str())
    by_id = {i: token for token, i in backend.get_vocab(with_added_tokens=True).items()}
    tokens = [by_id[i] for i in range(len(by_id))] + ["[PAD0]", "[PAD1]"]
    kinds = [1] * len(tokens)
    for added in document["added_tokens"]:
        kinds[added["id"]] = 3 if added["special"] else 4
    kinds[-2:] = [5, 5]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": kinds,
        "tokenizer.ggml.merges": [" ".join(merge) for merge in document["model"]["merges"]],
        "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.padding_token_id": 2,
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.chat_template": CHAT_TEMPLATE,
    }


def write_gguf(path: Path, fields: dict[str, Any]) -> Path:
    """Writes metadata with the library that model converters use."""
    writer = gguf.GGUFWriter(path, "llama")
    for key, value in fields.items():
        if isinstance(value, bool):
            writer.add_bool(key, value)
        elif isinstance(value, int):
            writer.add_uint32(key, value)
        elif isinstance(value, str):
            writer.add_string(key, value)
        else:
            writer.add_array(key, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return path


def write_reference_folder(folder: Path, backend: tokenizers.Tokenizer) -> Path:
    """Writes the folder that a model's authors would publish."""
    folder.mkdir(parents=True, exist_ok=True)
    backend.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<|start|>",
        "eos_token": {"content": "<|end|>", "special": True},
        "unk_token": "<|unk|>",
        "pad_token": "<|end|>",
        "chat_template": CHAT_TEMPLATE,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder
