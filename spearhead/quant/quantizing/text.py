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
        CalibrationError: The text is shorter than one window of 2 tokens.
    """
    start = _beginning(tokenizer)
    tokens = tokenizer.encode(text, add_special_tokens=False)
    step = length - len(start)
    windows = [tokens[at : at + step] for at in range(0, len(tokens) - step + 1, step)] or [tokens]
    if len(windows[0]) < _LEAST:
        raise CalibrationError(f"the calibration text has {len(tokens)} tokens; give at least {_LEAST}")
    chosen = [windows[index * len(windows) // count] for index in range(min(count, len(windows)))]
    if len(windows) < count:
        chosen = windows
    return [start + window for window in chosen]


def read_text(path: Path) -> str:
    """A text file in UTF-8.

    Raises:
        CalibrationError: It cannot be read.
    """
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise CalibrationError(
            f"calibration text {path} cannot be read: {error}; give a UTF-8 file"
        ) from error


def _beginning(tokenizer: Tokenizer) -> list[int]:
    with_special = tokenizer.encode("a")
    if tokenizer.bos_token_id is not None and with_special[:1] == [tokenizer.bos_token_id]:
        return [tokenizer.bos_token_id]
    return []
