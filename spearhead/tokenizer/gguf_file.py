"""Builds a byte-level BPE tokenizer from the metadata of a GGUF file."""

from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from spearhead.errors import CheckpointError
from spearhead.tokenizer.gguf_metadata import read_metadata
from spearhead.tokenizer.vocabulary import TokenizerParts

# Kinds of tokens in tokenizer.ggml.token_type.
_UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED = 2, 3, 4, 5

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN2 = _LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
_TEKKEN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)

# tokenizer.ggml.pre -> the patterns that cut text into words, one after the other.
_PATTERNS: dict[str, tuple[str, ...]] = {
    "gpt-2": (_GPT2,),
    "phi-2": (_GPT2,),
    "default": (r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", "[0-9][0-9][0-9]"),
    "smollm": (r"\p{N}", _GPT2),
    "starcoder": (r"\p{N}", _GPT2),
    "refact": (r"\p{N}", _GPT2),
    "llama3": (_LLAMA3,),
    "llama-v3": (_LLAMA3,),
    "llama-bpe": (_LLAMA3,),
    "qwen2": (_QWEN2,),
    "tekken": (_TEKKEN,),
}
# A word that is a token as a whole is taken as it is, even if no merge leads there.
_IGNORE_MERGES = frozenset({"llama3", "llama-v3", "llama-bpe", "tekken"})
# These add the beginning-of-sequence token unless the file says otherwise.
_ADD_BOS = frozenset({"llama3", "llama-v3", "llama-bpe", "tekken"})
_NFC = frozenset({"qwen2"})

_NAMED = {
    "bos_token": "tokenizer.ggml.bos_token_id",
    "eos_token": "tokenizer.ggml.eos_token_id",
    "unk_token": "tokenizer.ggml.unknown_token_id",
    "pad_token": "tokenizer.ggml.padding_token_id",
}
_EOS_KEYS = ("tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id")


def load_gguf(path: Path) -> TokenizerParts:
    """Reads the tokenizer of a GGUF file.

    Raises:
        CheckpointError: Damaged file, a tokenizer kind other than byte-level BPE, an unknown word pattern,
            or ids outside the vocabulary.
    """
    head = read_metadata(path)
    pre = _check_kind(path, head)
    tokens: list[str] = _required(path, head, "tokenizer.ggml.tokens")
    kinds: list[int] = head.get("tokenizer.ggml.token_type") or [1] * len(tokens)
    merges = [_split_merge(path, merge) for merge in _required(path, head, "tokenizer.ggml.merges")]
    if len(kinds) != len(tokens):
        raise CheckpointError(f"{path}: {len(kinds)} token types for {len(tokens)} tokens; download it again")
    for key in {*_NAMED.values(), *_EOS_KEYS} & head.keys():
        if not 0 <= head[key] < len(tokens):
            raise CheckpointError(
                f"{path}: {key} is {head[key]}, beyond the {len(tokens)} tokens of the file"
            )
    # Unused entries only pad the vocabulary to the size of the embedding; the model never means them.
    vocabulary = {token: i for i, token in enumerate(tokens) if kinds[i] != _UNUSED}
    backend = _build_backend(path, pre, vocabulary, merges)
    added = [i for i, kind in enumerate(kinds) if kind in (_UNKNOWN, _CONTROL, _USER_DEFINED)]
    backend.add_tokens(
        [AddedToken(tokens[i], normalized=False, special=kinds[i] != _USER_DEFINED) for i in added]
    )
    named = {name: tokens[head[key]] for name, key in _NAMED.items() if key in head}
    if head.get("tokenizer.ggml.add_bos_token", pre in _ADD_BOS) and "bos_token" in named:
        _prepend(backend, named["bos_token"], vocabulary[named["bos_token"]])
    return TokenizerParts(
        backend=backend,
        vocabulary=vocabulary,
        merges=merges,
        special_token_ids=frozenset(i for i in added if kinds[i] != _USER_DEFINED),
        eos_token_ids=tuple(dict.fromkeys(head[key] for key in _EOS_KEYS if key in head)),
        named_tokens=named,
        chat_template=head.get("tokenizer.chat_template"),
    )


def _check_kind(path: Path, head: dict[str, Any]) -> str:
    model = _required(path, head, "tokenizer.ggml.model")
    if model != "gpt2":
        raise CheckpointError(
            f"{path} has a {model!r} tokenizer (tokenizer.ggml.model); from GGUF only byte-level "
            "BPE ('gpt2') can be read. Use the model's folder with its tokenizer.json instead"
        )
    pre = head.get("tokenizer.ggml.pre", "default")
    if pre not in _PATTERNS:
        raise CheckpointError(
            f"{path} cuts words by the unknown pattern {pre!r} (tokenizer.ggml.pre); known: "
            f"{', '.join(sorted(_PATTERNS))}. Use the model's folder with its tokenizer.json instead"
        )
    return str(pre)


def _build_backend(
    path: Path, pre: str, vocabulary: dict[str, int], merges: list[tuple[str, str]]
) -> Tokenizer:
    try:
        model = models.BPE(vocab=vocabulary, merges=merges, ignore_merges=pre in _IGNORE_MERGES)
    except Exception as error:  # The library raises bare Exception: a merge of tokens that do not exist.
        raise CheckpointError(
            f"{path}: vocabulary and merges do not fit: {error}; download it again"
        ) from error
    backend = Tokenizer(model)
    if pre in _NFC:
        backend.normalizer = normalizers.NFC()
    splits = [pre_tokenizers.Split(Regex(pattern), behavior="isolated") for pattern in _PATTERNS[pre]]
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.pre_tokenizer = pre_tokenizers.Sequence([*splits, byte_level])
    backend.decoder = decoders.ByteLevel()
    return backend


def _prepend(backend: Tokenizer, token: str, token_id: int) -> None:
    backend.post_processor = processors.TemplateProcessing(
        single=[token, "$A"], pair=[token, "$A", "$B"], special_tokens=[(token, token_id)]
    )


def _required(path: Path, head: dict[str, Any], key: str) -> Any:
    if key not in head:
        raise CheckpointError(f"{path} has no {key}; it holds no tokenizer. Use the model's folder instead")
    return head[key]


def _split_merge(path: Path, merge: str) -> tuple[str, str]:
    left, separator, right = merge.partition(" ")
    if not (separator and left and right) or " " in right:
        raise CheckpointError(f"{path}: merge {merge!r} is not of the form 'left right'; download it again")
    return left, right
