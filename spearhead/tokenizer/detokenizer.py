"""Token ids to text as they arrive, a whole character at a time."""

import codecs
from collections.abc import Iterable
from functools import cache
from typing import Protocol

from tokenizers import decoders
from tokenizers.pre_tokenizers import ByteLevel

from spearhead.tokenizer.tokenizer import Tokenizer

_REPLACEMENT = "\ufffd"
_WINDOW_LIMIT = 128


class IncrementalDetokenizer:
    """The text of a growing list of token ids. All pushes and the flush together equal one ``decode``.

    Special tokens are left out. The cost of a push does not depend on how much came before.

    Args:
        tokenizer: Whose ids these are.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        byte_level = isinstance(tokenizer.backend.decoder, decoders.ByteLevel)
        self._strategy: _Strategy = _Bytes(tokenizer) if byte_level else _Window(tokenizer)

    def push(self, token_ids: Iterable[int]) -> str:
        """Text that these ids complete; an unfinished character waits for its rest."""
        return self._strategy.push(token_ids)

    def flush(self) -> str:
        """What still waits, at the end: U+FFFD for a character that was never finished."""
        return self._strategy.flush()


class _Strategy(Protocol):
    def push(self, token_ids: Iterable[int]) -> str: ...

    def flush(self) -> str: ...


class _Bytes:
    """Byte-level BPE: a token is a run of bytes, so UTF-8 decodes on its own."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._backend = tokenizer.backend
        self._special = tokenizer.special_token_ids
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, token_ids: Iterable[int]) -> str:
        return self._decoder.decode(b"".join(map(self._token_bytes, token_ids)))

    def flush(self) -> str:
        return self._decoder.decode(b"", final=True)

    def _token_bytes(self, token_id: int) -> bytes:
        token = None if token_id in self._special else self._backend.id_to_token(token_id)
        if token is None:
            return b""
        table = _byte_of_character()
        try:
            return bytes([table[character] for character in token])
        except KeyError:  # An added token is stored as plain text.
            return token.encode()


class _Window:
    """Any other decoder: decodes the last few tokens again and emits what they have in addition.

    Words may be joined by rules that look at the token before, so the window begins one emission earlier.
    Bytes that never become UTF-8 are given up as U+FFFD after ``_WINDOW_LIMIT`` tokens; decoders of this kind
    may count them otherwise in one ``decode``.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._decode = tokenizer.decode
        self._window: list[int] = []
        self._emitted = ""  # Of the window's text.
        self._context_length = 0  # Leading ids of the window that were emitted before it began.

    def push(self, token_ids: Iterable[int]) -> str:
        self._window += token_ids
        text = self._decode(self._window)
        stuck = len(self._window) > _WINDOW_LIMIT
        certain = text if stuck else text.rstrip(_REPLACEMENT)
        delta = certain[len(self._emitted) :]
        self._emitted += delta
        if certain == text and (delta or stuck):
            self._window = self._window[self._context_length :]
            self._context_length = len(self._window)
            self._emitted = self._decode(self._window)
        return delta

    def flush(self) -> str:
        delta = self._decode(self._window)[len(self._emitted) :]
        self._window, self._emitted, self._context_length = [], "", 0
        return delta


@cache
def _byte_of_character() -> dict[str, int]:
    """The alphabet of byte-level BPE, reversed: printable bytes are themselves, the others follow U+0100."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    table = {chr(byte): byte for byte in printable}
    table.update({chr(0x100 + i): byte for i, byte in enumerate(others)})
    assert table.keys() == set(ByteLevel.alphabet())
    return table
