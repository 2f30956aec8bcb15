"""What a tokenizer is made of, whatever file it came from, and the digest two services compare."""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tokenizers


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizerParts:
    """A loaded tokenizer as plain data around the backend.

    Attributes:
        backend: Encodes and decodes.
        vocabulary: Every token and its id, special tokens included.
        merges: BPE merges in order of rank; empty for other models.
        special_token_ids: Ids of control tokens, which text output leaves out.
        eos_token_ids: Ids that end a sequence.
        named_tokens: Text of ``bos_token``, ``eos_token``, ``unk_token``, ``pad_token`` where they exist.
        chat_template: Jinja source; None = the model has none.
    """

    backend: tokenizers.Tokenizer
    vocabulary: Mapping[str, int]
    merges: Sequence[tuple[str, str]]
    special_token_ids: frozenset[int]
    eos_token_ids: tuple[int, ...]
    named_tokens: Mapping[str, str]
    chat_template: str | None


def vocabulary_digest(
    vocabulary: Mapping[str, int], merges: Iterable[tuple[str, str]], special_token_ids: Iterable[int]
) -> str:
    """``sha256:<hex>`` over everything that gives a token id its meaning.

    The roles of special tokens (which one ends a sequence) do not enter: a base model drafts for its
    instruction-tuned sibling, which ends on another token of the same vocabulary.
    """
    digest = hashlib.sha256()
    for part in (sorted(vocabulary.items()), [list(pair) for pair in merges], sorted(special_token_ids)):
        digest.update(json.dumps(part, separators=(",", ":")).encode())
        digest.update(b"\n")
    return "sha256:" + digest.hexdigest()


def describe_backend(
    document: Mapping[str, Any],
) -> tuple[dict[str, int], list[tuple[str, str]], frozenset[int]]:
    """Vocabulary, merges and special ids of a parsed ``tokenizer.json``."""
    model, added = document["model"], document.get("added_tokens") or []
    listed = model.get("vocab") or {}
    vocabulary = (
        dict(listed) if isinstance(listed, dict) else {token: i for i, (token, _) in enumerate(listed)}
    )
    vocabulary.update({token["content"]: token["id"] for token in added})
    merges = [_pair(merge) for merge in model.get("merges") or []]
    return vocabulary, merges, frozenset(token["id"] for token in added if token["special"])


def _pair(merge: str | Sequence[str]) -> tuple[str, str]:
    left, right = merge.split(" ") if isinstance(merge, str) else merge
    return left, right
