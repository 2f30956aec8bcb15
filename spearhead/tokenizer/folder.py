"""Reads and writes the tokenizer files of a model folder, in the form that other libraries use."""

import json
from pathlib import Path
from typing import Any

import tokenizers

from spearhead.errors import CheckpointError
from spearhead.tokenizer.vocabulary import TokenizerParts, describe_backend

_NAMED = ("bos_token", "eos_token", "unk_token", "pad_token")


def load_folder(folder: Path) -> TokenizerParts:
    """Reads ``tokenizer.json`` and, where they exist, the files beside it.

    End tokens are the union of ``generation_config.json``, ``config.json`` and ``tokenizer_config.json``:
    chat models list some of theirs in one file only.

    Raises:
        CheckpointError: No tokenizer.json, or a file that cannot be understood.
    """
    path = folder / "tokenizer.json"
    if not path.is_file():
        raise CheckpointError(
            f"{folder} has no tokenizer.json. Point the path at a model folder with one, or at a GGUF file"
        )
    document = _read_json(path)
    try:
        backend = tokenizers.Tokenizer.from_str(json.dumps(document))
        vocabulary, merges, special_token_ids = describe_backend(document)
    except Exception as error:  # The library raises bare Exception for every kind of bad file.
        raise CheckpointError(f"{path} cannot be used: {error}") from error
    backend.no_truncation()
    backend.no_padding()
    config = _read_optional(folder / "tokenizer_config.json")
    named = {name: _content(config[name]) for name in _NAMED if config.get(name)}
    for name, token in named.items():
        if token not in vocabulary:
            raise CheckpointError(
                f"{folder}: {name} {token!r} of tokenizer_config.json is not in the vocabulary"
            )
    eos_token_ids: list[int] = []
    for other in ("generation_config.json", "config.json"):
        listed = _read_optional(folder / other).get("eos_token_id")
        eos_token_ids += listed if isinstance(listed, list) else [] if listed is None else [listed]
    if "eos_token" in named:
        eos_token_ids.append(vocabulary[named["eos_token"]])
    return TokenizerParts(
        backend=backend,
        vocabulary=vocabulary,
        merges=merges,
        special_token_ids=special_token_ids,
        eos_token_ids=tuple(dict.fromkeys(eos_token_ids)),
        named_tokens=named,
        chat_template=_chat_template(folder, config),
    )


def save_folder(parts: TokenizerParts, folder: Path) -> None:
    """Writes ``tokenizer.json``, ``tokenizer_config.json`` and, where there is one, ``chat_template.jinja``.

    With several end tokens, ``generation_config.json`` gets their list; what it holds besides stays.
    """
    folder.mkdir(parents=True, exist_ok=True)
    parts.backend.save(str(folder / "tokenizer.json"), pretty=False)
    config: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        **parts.named_tokens,
    }
    _write_json(folder / "tokenizer_config.json", config)
    if parts.chat_template is not None:
        (folder / "chat_template.jinja").write_text(parts.chat_template, encoding="utf-8")
    if len(parts.eos_token_ids) > 1:
        path = folder / "generation_config.json"
        _write_json(path, {**_read_optional(path), "eos_token_id": list(parts.eos_token_ids)})


def _chat_template(folder: Path, config: dict[str, Any]) -> str | None:
    """The file beside wins over the entry in the configuration, as in transformers."""
    path = folder / "chat_template.jinja"
    if path.is_file():
        return path.read_text(encoding="utf-8")
    template = config.get("chat_template")
    if isinstance(template, list):
        by_name = {entry["name"]: entry["template"] for entry in template}
        template = by_name.get("default")
    return template


def _content(token: str | dict[str, Any]) -> str:
    return token if isinstance(token, str) else str(token["content"])


def _read_optional(path: Path) -> dict[str, Any]:
    return _read_json(path) if path.is_file() else {}


def _read_json(path: Path) -> dict[str, Any]:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from error
    if not isinstance(document, dict):
        raise CheckpointError(f"{path} holds a {type(document).__name__}, not an object")
    return document


def _write_json(path: Path, document: dict[str, Any]) -> None:
    path.write_text(json.dumps(document, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
