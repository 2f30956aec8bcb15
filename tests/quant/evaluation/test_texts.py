import json
from pathlib import Path
from typing import Any

import pytest
import torch

from spearhead.errors import CalibrationError, ConfigError
from spearhead.quant.evaluation import TextProtocol, cut_text, read_text, text_from_sequences
from spearhead.tokenizer import Tokenizer

TEXT = "The quick brown fox jumps over the lazy dog. " * 30


@pytest.fixture
def tokenizer(folder: Path) -> Tokenizer:
    return Tokenizer.load(folder)


@pytest.fixture
def adding_tokenizer(folder: Path, tiny_tokenizer: Any) -> Tokenizer:
    """One that puts the beginning token before a text, as Llama 3's does."""
    document = json.loads(tiny_tokenizer.to_str())
    token = "<|endoftext|>"
    document["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [
            {"SpecialToken": {"id": token, "type_id": 0}},
            {"Sequence": {"id": "A", "type_id": 0}},
        ],
        "pair": [
            {"SpecialToken": {"id": token, "type_id": 0}},
            {"Sequence": {"id": "A", "type_id": 0}},
            {"Sequence": {"id": "B", "type_id": 0}},
        ],
        "special_tokens": {
            token: {"id": token, "ids": [tiny_tokenizer.token_to_id(token)], "tokens": [token]}
        },
    }
    (folder / "tokenizer.json").write_text(json.dumps(document))
    return Tokenizer.load(folder)


def test_segments_are_the_tokens_of_the_text_without_its_tail(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode(TEXT)
    text = cut_text("fox", TEXT, tokenizer, TextProtocol(length=64))
    assert len(ids) % 64
    assert text.segments.flatten().tolist() == ids[: len(ids) // 64 * 64]
    assert text.scored.all() and text.scored.shape == (len(ids) // 64, 63)
    assert (text.token_count, text.first_token_ids, text.bos) == (len(ids), tuple(ids[:3]), "none")


def test_with_a_stride_every_token_but_the_first_is_scored_once(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode(TEXT)
    text = cut_text("fox", TEXT, tokenizer, TextProtocol(length=64, stride=32))
    scored = text.segments[:, 1:][text.scored].tolist()
    assert scored == ids[1 : 1 + len(scored)]
    assert len(ids) - len(scored) <= 32


def test_with_a_beginning_token_a_segment_every_token_is_scored_once(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode(TEXT)
    text = cut_text("fox", TEXT, tokenizer, TextProtocol(length=64, bos_per_segment=True))
    assert set(text.segments[:, 0].tolist()) == {tokenizer.bos_token_id}
    assert text.segments[:, 1:].flatten().tolist() == ids[: len(ids) // 63 * 63]
    assert text.bos == "one a segment"


def test_a_tokenizer_that_adds_a_beginning_token_adds_it_to_the_text_once(
    adding_tokenizer: Tokenizer,
) -> None:
    text = cut_text("fox", TEXT, adding_tokenizer, TextProtocol(length=64))
    bos = adding_tokenizer.bos_token_id
    assert text.first_token_ids[0] == bos and bos not in text.first_token_ids[1:]
    assert text.bos == "one at the start of the text"
    each = cut_text("fox", TEXT, adding_tokenizer, TextProtocol(length=64, bos_per_segment=True))
    assert (each.segments == bos).sum(1).tolist() == [1] * len(each.segments)


def test_a_second_beginning_token_in_the_file_is_refused(adding_tokenizer: Tokenizer) -> None:
    with pytest.raises(CalibrationError, match="starts with 2 beginning tokens, expected 1"):
        cut_text("fox", "<|endoftext|>" + TEXT, adding_tokenizer, TextProtocol(length=64))


def test_a_beginning_token_that_the_tokenizer_does_not_add_is_refused(tokenizer: Tokenizer) -> None:
    with pytest.raises(CalibrationError, match="starts with 1 beginning tokens, expected 0"):
        cut_text("fox", "<|endoftext|>" + TEXT, tokenizer, TextProtocol(length=64))


def test_a_short_text_is_refused_with_its_number_of_tokens(tokenizer: Tokenizer) -> None:
    count = len(tokenizer.encode("The quick brown fox"))
    with pytest.raises(CalibrationError, match=f"has {count} tokens, less than one segment of 2048"):
        cut_text("fox", "The quick brown fox", tokenizer, TextProtocol())


def test_missing_and_undecodable_files_are_refused(tokenizer: Tokenizer, tmp_path: Path) -> None:
    with pytest.raises(CalibrationError, match="No such file"):
        read_text(tmp_path / "missing.txt", tokenizer, TextProtocol())
    (tmp_path / "latin.txt").write_bytes(b"caf\xe9")
    with pytest.raises(CalibrationError, match="not UTF-8"):
        read_text(tmp_path / "latin.txt", tokenizer, TextProtocol())


def test_sequences_of_unequal_length_score_all_but_their_first_token() -> None:
    text = text_from_sequences("samples", [[5, 6, 7], [8, 9]])
    assert text.scored.tolist() == [[True, True], [True, False]]
    assert text.segments.dtype == torch.int64
    assert text.sha256 != text_from_sequences("samples", [[5, 6], [7, 8, 9]]).sha256


@pytest.mark.parametrize("sequences", [[], [[1, 2], [3]]])
def test_sequences_that_score_nothing_are_refused(sequences: list[list[int]]) -> None:
    with pytest.raises(CalibrationError):
        text_from_sequences("samples", sequences)


@pytest.mark.parametrize(
    "settings",
    [{"length": 1}, {"length": 8, "stride": 9}, {"stride": 4, "bos_per_segment": True}, {"max_segments": -1}],
)
def test_protocols_that_mean_nothing_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        TextProtocol(**settings)


def test_only_the_first_segments_are_kept(tokenizer: Tokenizer) -> None:
    text = cut_text("fox", TEXT, tokenizer, TextProtocol(length=32, max_segments=2))
    assert text.segments.shape == (2, 32)
