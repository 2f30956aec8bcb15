"""Tokenizers from and to model folders."""

import json
from pathlib import Path
from typing import Any

import pytest
import transformers

from spearhead.errors import CheckpointError
from spearhead.tokenizer import Tokenizer
from tests.tokenizer.reference import (
    CHAT_TEMPLATE,
    UNICODE_CORPUS,
    train_reference,
    write_gguf,
    write_reference_folder,
)


@pytest.fixture
def published(tmp_path: Path) -> Path:
    return write_reference_folder(tmp_path / "published", train_reference("smollm"))


def test_saved_folder_gives_the_same_tokenizer(tmp_path: Path, small: Tokenizer) -> None:
    small.save(tmp_path / "saved")
    again = Tokenizer.load(tmp_path / "saved")
    assert again.hash == small.hash
    assert again.vocab_size == small.vocab_size
    assert again.eos_token_ids == small.eos_token_ids
    assert again.bos_token_id == small.bos_token_id
    messages = [{"role": "user", "content": "hi"}]
    assert again.encode_chat(messages) == small.encode_chat(messages)
    assert [again.encode(text) for text in UNICODE_CORPUS] == [small.encode(text) for text in UNICODE_CORPUS]


def test_transformers_reads_the_saved_folder_alike(tmp_path: Path, small: Tokenizer) -> None:
    small.save(tmp_path / "saved")
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "saved")
    for text in [*UNICODE_CORPUS, "<|start|>user\nhi<|end|> <tool>"]:
        assert theirs(text)["input_ids"] == small.encode(text), text
    assert theirs.eos_token_id == small.eos_token_ids[0]
    messages = [{"role": "user", "content": "hi"}]
    text = theirs.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert text == small.apply_chat_template(messages)


def test_saving_keeps_several_end_tokens_and_the_rest_of_their_file(
    tmp_path: Path, fields: dict[str, Any]
) -> None:
    fields["tokenizer.ggml.eot_token_id"] = 3
    folder = tmp_path / "saved"
    folder.mkdir()
    (folder / "generation_config.json").write_text('{"temperature": 0.2}', encoding="utf-8")
    Tokenizer.load(write_gguf(tmp_path / "m.gguf", fields)).save(folder)
    assert Tokenizer.load(folder).eos_token_ids == (2, 3)
    assert json.loads((folder / "generation_config.json").read_text())["temperature"] == 0.2


def test_end_tokens_are_collected_from_all_files(published: Path) -> None:
    (published / "generation_config.json").write_text('{"eos_token_id": [3, 2]}')
    (published / "config.json").write_text('{"eos_token_id": 0}')
    assert Tokenizer.load(published).eos_token_ids == (3, 2, 0)


def test_template_file_wins_over_the_configuration(published: Path) -> None:
    (published / "chat_template.jinja").write_text("from the file")
    assert (
        Tokenizer.load(published).apply_chat_template([{"role": "user", "content": "x"}]) == "from the file"
    )


def test_default_is_taken_from_several_templates(published: Path) -> None:
    config = json.loads((published / "tokenizer_config.json").read_text())
    config["chat_template"] = [
        {"name": "tool_use", "template": "tools"},
        {"name": "default", "template": CHAT_TEMPLATE},
    ]
    (published / "tokenizer_config.json").write_text(json.dumps(config))
    assert "hi<|end|>" in Tokenizer.load(published).apply_chat_template([{"role": "user", "content": "hi"}])


def test_truncation_and_padding_of_the_file_are_ignored(published: Path) -> None:
    backend = train_reference("smollm")
    backend.enable_truncation(4)
    backend.enable_padding(length=64)
    backend.save(str(published / "tokenizer.json"))
    tokenizer = Tokenizer.load(published)
    assert tokenizer.decode(tokenizer.encode("one two three four five")) == "one two three four five"


def test_changing_one_merge_changes_the_hash(published: Path) -> None:
    before = Tokenizer.load(published).hash
    document = json.loads((published / "tokenizer.json").read_text())
    merges = document["model"]["merges"]
    merges[3], merges[4] = merges[4], merges[3]
    (published / "tokenizer.json").write_text(json.dumps(document))
    assert Tokenizer.load(published).hash != before


def test_changing_one_token_changes_the_hash(published: Path) -> None:
    before = Tokenizer.load(published).hash
    text = (published / "tokenizer.json").read_text().replace("<|turn|>", "<|TURN|>")
    (published / "tokenizer.json").write_text(text)
    assert Tokenizer.load(published).hash != before


def test_hash_ignores_which_special_token_ends_a_sequence(published: Path) -> None:
    before = Tokenizer.load(published).hash
    config = json.loads((published / "tokenizer_config.json").read_text())
    (published / "tokenizer_config.json").write_text(json.dumps({**config, "eos_token": "<|turn|>"}))
    after = Tokenizer.load(published)
    assert after.eos_token_ids == (3,)
    assert after.hash == before


def test_merges_as_text_and_as_pairs_have_one_hash(published: Path) -> None:
    before = Tokenizer.load(published).hash
    document = json.loads((published / "tokenizer.json").read_text())
    document["model"]["merges"] = [" ".join(merge) for merge in document["model"]["merges"]]
    (published / "tokenizer.json").write_text(json.dumps(document))
    assert Tokenizer.load(published).hash == before


def test_folder_without_tokenizer_says_what_is_needed(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"no tokenizer\.json.*GGUF"):
        Tokenizer.load(tmp_path)


def test_missing_path_and_other_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="does not exist"):
        Tokenizer.load(tmp_path / "nowhere")
    with pytest.raises(CheckpointError, match="does not exist"):
        Tokenizer.load(tmp_path / "nowhere.gguf")
    (tmp_path / "model.bin").write_bytes(b"x")
    with pytest.raises(CheckpointError, match=r"neither a model folder nor a \.gguf"):
        Tokenizer.load(tmp_path / "model.bin")


@pytest.mark.parametrize("content", ["{", "[]", "{}", '{"model": {"type": "Magic"}}'])
def test_broken_tokenizer_file_is_refused_by_name(tmp_path: Path, content: str) -> None:
    (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(CheckpointError, match=r"tokenizer\.json"):
        Tokenizer.load(tmp_path)


def test_named_token_outside_the_vocabulary_is_refused(published: Path) -> None:
    config = {"eos_token": "<nowhere>"}
    (published / "tokenizer_config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match="eos_token '<nowhere>'"):
        Tokenizer.load(published)
