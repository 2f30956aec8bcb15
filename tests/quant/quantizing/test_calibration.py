from collections.abc import Callable
from pathlib import Path

import pytest

from spearhead.errors import CalibrationError
from spearhead.quant.quantizing.calibration import read_sequences, text_sequences
from spearhead.tokenizer import Tokenizer

TEXT = "The quick brown fox jumps over the lazy dog. " * 40


@pytest.fixture
def tokenizer(tiny_checkpoint: Callable[..., Path]) -> Tokenizer:
    return Tokenizer.load(tiny_checkpoint("llama"))


@pytest.fixture
def beginning(tiny_checkpoint: Callable[..., Path], tiny_tokenizer: object) -> Tokenizer:
    """A tokenizer that puts the beginning token before every text."""
    from tokenizers import Tokenizer as Backend
    from tokenizers.processors import TemplateProcessing

    folder = tiny_checkpoint("llama")
    backend = Backend.from_file(str(folder / "tokenizer.json"))
    start = "<|endoftext|>"
    backend.post_processor = TemplateProcessing(
        single=f"{start} $A", special_tokens=[(start, backend.token_to_id(start))]
    )
    backend.save(str(folder / "tokenizer.json"))
    return Tokenizer.load(folder)


def test_windows_are_whole_spread_evenly_and_do_not_overlap(tokenizer: Tokenizer) -> None:
    tokens = tokenizer.encode(TEXT, add_special_tokens=False)
    windows = [tokens[at : at + 16] for at in range(0, len(tokens) - 15, 16)]
    found = text_sequences(TEXT, tokenizer, length=16, count=4)
    assert found == [windows[index * len(windows) // 4] for index in range(4)]
    assert text_sequences(TEXT, tokenizer, length=16, count=10_000) == windows


def test_each_window_has_one_beginning_token_if_the_tokenizer_adds_it(
    beginning: Tokenizer, tokenizer: Tokenizer
) -> None:
    for sequence in text_sequences(TEXT, beginning, length=16, count=5):
        assert len(sequence) == 16
        assert [place for place, token in enumerate(sequence) if token == beginning.bos_token_id] == [0]
    for sequence in text_sequences(TEXT, tokenizer, length=16, count=5):
        assert tokenizer.bos_token_id not in sequence


def test_a_text_shorter_than_a_window_is_taken_whole(tokenizer: Tokenizer) -> None:
    assert text_sequences("The fox", tokenizer, length=512, count=8) == [tokenizer.encode("The fox")]


@pytest.mark.parametrize(
    ("text", "length", "count", "message"),
    [("", 16, 4, "has 0 tokens"), (TEXT, 1, 4, "4 sequences of 1 tokens"), (TEXT, 16, 0, "0 sequences")],
)
def test_what_gives_no_tokens_is_refused(
    tokenizer: Tokenizer, text: str, length: int, count: int, message: str
) -> None:
    with pytest.raises(CalibrationError, match=message):
        text_sequences(text, tokenizer, length=length, count=count)


@pytest.mark.parametrize("content", [None, b"\xff\xfe\x00"])
def test_a_file_that_is_no_text_is_refused(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "text.txt"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(CalibrationError, match=r"text\.txt cannot be read.*give a UTF-8 file"):
        read_sequences(tmp_path, path, length=16, count=4)
