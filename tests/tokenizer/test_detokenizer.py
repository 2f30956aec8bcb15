"""Streams of text: whole characters, and together exactly the decoded text."""

import json
import random
from pathlib import Path

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

from spearhead.tokenizer import IncrementalDetokenizer, Tokenizer
from tests.tokenizer.reference import UNICODE_CORPUS, train_reference, write_reference_folder

UNTIMED = settings(deadline=None)  # How long an example takes is no claim of these tests.


def train_byte_fallback(folder: Path) -> Tokenizer:
    """As SentencePiece models are published: spaces as letters, rare characters as bytes."""
    byte_tokens = [f"<0x{byte:02X}>" for byte in range(256)]
    backend = tokenizers.Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>"))
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    backend.pre_tokenizer = pre_tokenizers.Split("▁", "merged_with_next")
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    trainer = trainers.BpeTrainer(
        vocab_size=420, show_progress=False, limit_alphabet=60, special_tokens=["<unk>", "</s>", *byte_tokens]
    )
    backend.train_from_iterator(UNICODE_CORPUS, trainer)
    # The trainer reserves names only as special tokens; bytes are ordinary ones.
    document = json.loads(backend.to_str())
    document["added_tokens"] = [t for t in document["added_tokens"] if t["content"] not in byte_tokens]
    (folder / "tokenizer.json").write_text(json.dumps(document), encoding="utf-8")
    return Tokenizer.load(folder)


@pytest.fixture(scope="module")
def byte_level(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer.load(write_reference_folder(tmp_path_factory.mktemp("b"), train_reference("smollm")))


@pytest.fixture(scope="module")
def byte_fallback(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return train_byte_fallback(tmp_path_factory.mktemp("f"))


@pytest.fixture(params=["byte_level", "byte_fallback"])
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    found: Tokenizer = request.getfixturevalue(request.param)
    return found


def stream(tokenizer: Tokenizer, ids: list[int], sizes: list[int]) -> list[str]:
    """Pushes ``ids`` in runs of these sizes, over and over; the last piece is the flush."""
    detokenizer = IncrementalDetokenizer(tokenizer)
    pieces, position, turn = [], 0, 0
    while position < len(ids):
        size = sizes[turn % len(sizes)]
        pieces.append(detokenizer.push(ids[position : position + size]))
        position, turn = position + size, turn + 1
    return [*pieces, detokenizer.flush()]


@pytest.mark.parametrize("text", UNICODE_CORPUS)
@pytest.mark.parametrize("size", [1, 2, 3, 5, 17])
def test_stream_equals_the_decoded_text(tokenizer: Tokenizer, text: str, size: int) -> None:
    ids = tokenizer.encode(text, add_special_tokens=False)
    assert "".join(stream(tokenizer, ids, [size])) == tokenizer.decode(ids)


@pytest.mark.parametrize("text", [t for t in UNICODE_CORPUS if "\ufffd" not in t])
def test_no_piece_shows_an_unfinished_character(tokenizer: Tokenizer, text: str) -> None:
    ids = tokenizer.encode(text, add_special_tokens=False)
    if "\ufffd" not in tokenizer.decode(ids):
        assert not any("\ufffd" in piece for piece in stream(tokenizer, ids, [1]))


def test_character_of_several_tokens_comes_with_its_last(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("a𐍈b", add_special_tokens=False)
    pieces = [piece for piece in stream(tokenizer, ids, [1]) if piece]
    assert len(ids) > 3
    assert "".join(pieces) == "a𐍈b"
    assert any("𐍈" in piece for piece in pieces)


def test_end_within_a_character_shows_on_flush_only(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("a𐍈", add_special_tokens=False)[:-1]
    *pieces, last = stream(tokenizer, ids, [1])
    assert "".join(pieces) == "a"
    assert set(last) == {"\ufffd"}


def test_special_tokens_are_left_out(byte_level: Tokenizer) -> None:
    ids = byte_level.encode("<|start|>a<|end|> b<tool><|turn|>")
    assert "".join(stream(byte_level, ids, [1])) == "a b<tool>"


def test_special_token_within_a_character_does_not_break_it(byte_level: Tokenizer) -> None:
    ids = byte_level.encode("🙂")
    mixed = [x for token_id in ids for x in (token_id, *byte_level.eos_token_ids)]
    assert "".join(stream(byte_level, mixed, [1])) == byte_level.decode(mixed) == "🙂"


def test_flush_begins_anew(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("one two", add_special_tokens=False)
    detokenizer = IncrementalDetokenizer(tokenizer)
    first = detokenizer.push(ids) + detokenizer.flush()
    assert detokenizer.flush() == ""
    assert detokenizer.push(ids) + detokenizer.flush() == first == "one two"


def test_empty_push_gives_nothing(tokenizer: Tokenizer) -> None:
    assert IncrementalDetokenizer(tokenizer).push([]) == ""


def test_byte_level_equals_decode_for_any_ids(byte_level: Tokenizer) -> None:
    source = random.Random(7)
    for _ in range(200):
        ids = [source.randrange(byte_level.vocab_size + 3) for _ in range(30)]
        assert "".join(stream(byte_level, ids, [1, 4, 2])) == byte_level.decode(ids)


def test_endless_invalid_bytes_are_given_up_in_time(byte_fallback: Tokenizer) -> None:
    (lone,) = byte_fallback.encode("\x9f", add_special_tokens=False)[-1:]
    detokenizer = IncrementalDetokenizer(byte_fallback)
    pieces = [detokenizer.push([lone]) for _ in range(1000)]
    assert sum(map(len, pieces)) >= 800
    assert set("".join(pieces)) == {"\ufffd"}


@UNTIMED
@given(data=st.data())
def test_any_cut_of_any_text_gives_the_text(byte_level: Tokenizer, data: st.DataObject) -> None:
    text = data.draw(st.text(max_size=30))
    sizes = data.draw(st.lists(st.integers(1, 6), min_size=1, max_size=5))
    ids = byte_level.encode(text)
    assert "".join(stream(byte_level, ids, sizes)) == byte_level.decode(ids)
