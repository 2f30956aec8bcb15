"""Tokenizers from GGUF metadata: the same ids as the model's own files, or a refusal that helps."""

import struct
from pathlib import Path
from typing import Any

import gguf
import pytest

from spearhead.errors import CheckpointError
from spearhead.tokenizer import Tokenizer
from spearhead.tokenizer.gguf_metadata import read_metadata
from tests.tokenizer.reference import (
    REFERENCE_PRE_TOKENIZERS,
    UNICODE_CORPUS,
    gguf_fields,
    train_reference,
    write_gguf,
    write_reference_folder,
)


@pytest.mark.parametrize("pre", sorted(REFERENCE_PRE_TOKENIZERS))
def test_ids_from_gguf_equal_those_of_the_published_tokenizer(tmp_path: Path, pre: str) -> None:
    reference = train_reference(pre)
    tokenizer = Tokenizer.load(write_gguf(tmp_path / "m.gguf", gguf_fields(reference, pre)))
    for text in UNICODE_CORPUS:
        assert tokenizer.encode(text) == reference.encode(text).ids, text


@pytest.mark.parametrize("pre", sorted(REFERENCE_PRE_TOKENIZERS))
def test_gguf_and_published_folder_have_one_hash(tmp_path: Path, pre: str) -> None:
    reference = train_reference(pre)
    from_gguf = Tokenizer.load(write_gguf(tmp_path / "m.gguf", gguf_fields(reference, pre)))
    from_folder = Tokenizer.load(write_reference_folder(tmp_path / "folder", reference))
    assert from_gguf.hash == from_folder.hash
    assert from_gguf.vocab_size == from_folder.vocab_size


def test_roles_and_template_come_from_the_metadata(small: Tokenizer) -> None:
    assert small.bos_token_id == 1
    assert small.eos_token_ids == (2,)
    assert small.apply_chat_template([{"role": "user", "content": "hi"}]).startswith(
        "<|start|>user\nhi<|end|>"
    )


def test_unused_entries_do_not_count_as_vocabulary(small: Tokenizer, fields: dict[str, Any]) -> None:
    assert small.vocab_size == len(fields["tokenizer.ggml.tokens"]) - 2
    assert "[PAD0]" not in small.decode(range(small.vocab_size + 2), skip_special_tokens=False)


def test_end_of_turn_ends_a_sequence_too(tmp_path: Path, fields: dict[str, Any]) -> None:
    fields["tokenizer.ggml.eot_token_id"] = 3
    assert Tokenizer.load(write_gguf(tmp_path / "m.gguf", fields)).eos_token_ids == (2, 3)


@pytest.mark.parametrize(("pre", "given", "added"), [
    ("smollm", None, False), ("smollm", True, True), ("llama-bpe", None, True), ("llama-bpe", False, False),
])  # fmt: skip
def test_beginning_token_is_added_as_the_file_or_the_family_says(
    tmp_path: Path, fields: dict[str, Any], pre: str, given: bool | None, added: bool
) -> None:
    fields["tokenizer.ggml.pre"] = pre
    del fields["tokenizer.ggml.add_bos_token"]
    if given is not None:
        fields["tokenizer.ggml.add_bos_token"] = given
    tokenizer = Tokenizer.load(write_gguf(tmp_path / "m.gguf", fields))
    plain = tokenizer.encode("a b", add_special_tokens=False)
    assert tokenizer.encode("a b") == [1] * added + plain
    assert tokenizer.encode_chat([{"role": "user", "content": "x"}]).count(1) == 2  # The template's own two.


def test_missing_pre_means_the_default_pattern(tmp_path: Path, fields: dict[str, Any]) -> None:
    del fields["tokenizer.ggml.pre"]
    tokenizer = Tokenizer.load(write_gguf(tmp_path / "m.gguf", fields))
    assert tokenizer.decode(tokenizer.encode("x + 12345.")) == "x + 12345."


def test_unknown_pre_is_refused_by_name_with_a_remedy(tmp_path: Path, fields: dict[str, Any]) -> None:
    fields["tokenizer.ggml.pre"] = "klingon"
    with pytest.raises(CheckpointError, match=r"'klingon'.*smollm.*tokenizer\.json"):
        Tokenizer.load(write_gguf(tmp_path / "m.gguf", fields))


def test_sentencepiece_model_is_refused_by_name_with_a_remedy(tmp_path: Path, fields: dict[str, Any]) -> None:
    fields["tokenizer.ggml.model"] = "llama"
    with pytest.raises(CheckpointError, match=r"'llama' tokenizer.*tokenizer\.json"):
        Tokenizer.load(write_gguf(tmp_path / "m.gguf", fields))


@pytest.mark.parametrize("key", ["tokenizer.ggml.model", "tokenizer.ggml.tokens", "tokenizer.ggml.merges"])
def test_missing_part_is_named(tmp_path: Path, fields: dict[str, Any], key: str) -> None:
    del fields[key]
    with pytest.raises(CheckpointError, match=key.replace(".", r"\.")):
        Tokenizer.load(write_gguf(tmp_path / "m.gguf", fields))


@pytest.mark.parametrize(("key", "value", "message"), [
    ("tokenizer.ggml.merges", ["nothing"], "left right"),
    ("tokenizer.ggml.merges", ["no such"], "do not fit"),
    ("tokenizer.ggml.token_type", [1, 1], "2 token types"),
    ("tokenizer.ggml.eos_token_id", 10**6, "beyond the"),
])  # fmt: skip
def test_contradicting_metadata_is_refused(
    tmp_path: Path, fields: dict[str, Any], key: str, value: object, message: str
) -> None:
    fields[key] = value
    with pytest.raises(CheckpointError, match=message):
        Tokenizer.load(write_gguf(tmp_path / "m.gguf", fields))


def test_metadata_equals_what_the_gguf_library_reads(tmp_path: Path, fields: dict[str, Any]) -> None:
    path = write_gguf(tmp_path / "m.gguf", fields)
    theirs = {k: f.contents() for k, f in gguf.GGUFReader(path).fields.items() if not k.startswith("GGUF.")}
    assert read_metadata(path) == theirs


@pytest.mark.parametrize("share", [0.0, 0.001, 0.3, 0.9])
def test_file_that_ends_early_is_refused(tmp_path: Path, fields: dict[str, Any], share: float) -> None:
    path = write_gguf(tmp_path / "m.gguf", fields)
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * share)])
    with pytest.raises(CheckpointError, match=r"m\.gguf"):
        Tokenizer.load(path)


@pytest.mark.parametrize("content", [
    b"PK\x03\x04 not a model",
    b"GGUF" + struct.pack("<IQQ", 1, 0, 0),
    b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q", 1 << 62),
    b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q1sIIQ", 1, b"k", 9, 4, 1 << 62),
    b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q1sI", 1, b"k", 99),
    b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q1sIQ2s", 1, b"k", 8, 2, b"\xff\xff"),
])  # fmt: skip
def test_nonsense_is_refused_without_reading_far(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=r"m\.gguf"):
        Tokenizer.load(path)
