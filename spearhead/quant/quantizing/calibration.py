"""Calibration tokens from a text file."""

from pathlib import Path

from spearhead.errors import CalibrationError
from spearhead.tokenizer import Tokenizer

_LEAST = 2


def text_sequences(text: str, tokenizer: Tokenizer, *, length: int, count: int) -> list[list[int]]:
    """Windows of a text, spread over it evenly.

    The text is encoded once without special tokens. Where the model has a beginning-of-sequence token that
    its tokenizer adds, each window starts with exactly one.

    Args:
        text: Any.
        tokenizer: Of the model.
        length: Tokens of a window, the beginning included.
        count: Most windows that are taken.

    Raises:
        CalibrationError: The text has fewer than 2 tokens, or windows have.
    """
    if length < _LEAST or count < 1:
        raise CalibrationError(f"{count} sequences of {length} tokens; give at least 1 of at least {_LEAST}")
    start = _beginning(tokenizer)
    tokens = tokenizer.encode(text, add_special_tokens=False)
    step = length - len(start)
    if len(tokens) < _LEAST:
        raise CalibrationError(f"the calibration text has {len(tokens)} tokens; give at least {_LEAST}")
    windows = [tokens[at : at + step] for at in range(0, len(tokens) - step + 1, step)] or [tokens]
    taken = min(count, len(windows))
    return [start + windows[index * len(windows) // taken] for index in range(taken)]


def read_sequences(model: Path, text: Path, *, length: int, count: int) -> list[list[int]]:
    """Windows of a text file, encoded with a model's tokenizer; see :func:`text_sequences`.

    Args:
        model: Folder or ``.gguf`` file.
        text: In UTF-8.
        length: Tokens of a window.
        count: Most windows that are taken.

    Raises:
        CalibrationError: The text cannot be read, or is too short.
        CheckpointError: The model has no usable tokenizer.
    """
    try:
        characters = text.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise CalibrationError(
            f"calibration text {text} cannot be read: {error}; give a UTF-8 file"
        ) from error
    return text_sequences(characters, Tokenizer.load(model), length=length, count=count)


def _beginning(tokenizer: Tokenizer) -> list[int]:
    with_special = tokenizer.encode("a")
    if tokenizer.bos_token_id is not None and with_special[:1] == [tokenizer.bos_token_id]:
        return [tokenizer.bos_token_id]
    return []
