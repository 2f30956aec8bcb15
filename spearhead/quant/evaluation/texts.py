"""Texts as the segments that an evaluation scores, and what makes two numbers on a text comparable.

The standard protocol: the whole text is tokenised once with the tokenizer's defaults, cut into
non-overlapping segments of L tokens, the tail is dropped, and every token but the first of a segment is
scored. Other protocols give other numbers: the mean over words instead of tokens, another L, a missing
beginning token; so a text carries everything that was chosen.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from spearhead.errors import CalibrationError, ConfigError
from spearhead.quant.self_sampling import SampledSequences
from spearhead.tokenizer import Tokenizer

STANDARD_LENGTH = 2048
"""Tokens of a segment in published perplexities."""

_PROBE = "a"


@dataclass(frozen=True, slots=True, kw_only=True)
class TextProtocol:
    """How a text becomes segments.

    Attributes:
        length: L, tokens of a segment.
        stride: Tokens from one segment to the next; 0 = ``length``, no overlap. With overlap only what the
            segment before did not score is scored, so that every token has ``length - stride`` before it.
        bos_per_segment: Start each segment with the beginning token, which then counts among the L.
        max_segments: Keep the first ones; 0 = all.
    """

    length: int = STANDARD_LENGTH
    stride: int = 0
    bos_per_segment: bool = False
    max_segments: int = 0

    def __post_init__(self) -> None:
        if self.length < 2:
            raise ConfigError(f"segments of {self.length} tokens score nothing; use at least 2")
        if not 0 <= self.stride <= self.length:
            raise ConfigError(
                f"stride {self.stride} must lie between 1 and the length {self.length}; 0 = length"
            )
        if self.stride and self.bos_per_segment:
            raise ConfigError(
                "a stride and a beginning token in every segment cannot be combined; choose one"
            )
        if self.max_segments < 0:
            raise ConfigError(f"max_segments is {self.max_segments}; it must be positive, or 0 for all")

    @property
    def step(self) -> int:
        """Tokens of the text from one segment to the next."""
        return self.stride or self.length


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationText:
    """A text, ready to be scored.

    Attributes:
        name: For people.
        sha256: Of the text in UTF-8, or of the token ids of sequences.
        token_count: Of the whole text, before the tail was dropped.
        first_token_ids: The first three ids, which show a missing or double beginning token.
        length: L, tokens of a segment; of the longest one for sequences.
        stride: Tokens from one segment to the next.
        bos: ``none``, ``one at the start of the text``, ``one a segment`` or ``as sampled``.
        segments: int64 ``(S, L)``; padding at the end of shorter sequences is any valid id.
        scored: bool ``(S, L - 1)``: whether token ``t + 1`` of a segment counts.
    """

    name: str
    sha256: str
    token_count: int
    first_token_ids: tuple[int, ...]
    length: int
    stride: int
    bos: str
    segments: Tensor
    scored: Tensor

    @property
    def scored_token_count(self) -> int:
        """Tokens that count."""
        return int(self.scored.sum())


def read_text(path: Path, tokenizer: Tokenizer, protocol: TextProtocol) -> EvaluationText:
    """Reads a file in UTF-8 and cuts it into segments.

    Raises:
        CalibrationError: No such file, not UTF-8, or as :func:`cut_text`.
    """
    try:
        text = path.read_bytes().decode()
    except OSError as error:
        raise CalibrationError(f"text {path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise CalibrationError(f"text {path} is not UTF-8: {error.reason} at byte {error.start}") from error
    return cut_text(path.stem, text, tokenizer, protocol)


def cut_text(name: str, text: str, tokenizer: Tokenizer, protocol: TextProtocol) -> EvaluationText:
    """Cuts a text into segments.

    Raises:
        CalibrationError: Shorter than one segment, a beginning token too many, or none where one is wanted.
    """
    if protocol.bos_per_segment:
        token_ids = tokenizer.encode(text, add_special_tokens=False)
        segments = _with_bos(_windows(name, token_ids, protocol.length - 1, protocol.length - 1), tokenizer)
        bos = "one a segment"
    else:
        token_ids = tokenizer.encode(text)
        segments = _windows(name, token_ids, protocol.length, protocol.step)
        bos = "one at the start of the text" if _adds_bos(tokenizer) else "none"
    if protocol.max_segments:
        segments = segments[: protocol.max_segments]
    _check_bos(name, segments[0].tolist(), tokenizer, wanted=bos != "none")
    scored = torch.ones(len(segments), protocol.length - 1, dtype=torch.bool)
    scored[1:, : max(0, protocol.length - protocol.step - 1)] = False
    return EvaluationText(
        name=name,
        sha256=hashlib.sha256(text.encode(errors="replace")).hexdigest(),
        token_count=len(token_ids),
        first_token_ids=tuple(segments[0, :3].tolist()),
        length=protocol.length,
        stride=protocol.step,
        bos=bos,
        segments=segments,
        scored=scored,
    )


def text_from_sequences(name: str, sequences: Sequence[Sequence[int]]) -> EvaluationText:
    """Token sequences as a text, such as those that a model sampled itself; each is one segment.

    Raises:
        CalibrationError: No sequence, or one of fewer than two tokens.
    """
    if not sequences:
        raise CalibrationError(f"{name} has no sequence to score")
    shortest = min(range(len(sequences)), key=lambda index: len(sequences[index]))
    if len(sequences[shortest]) < 2:
        raise CalibrationError(f"{name}: sequence {shortest} has less than the 2 tokens that score one")
    length = max(map(len, sequences))
    segments = torch.zeros(len(sequences), length, dtype=torch.int64)
    scored = torch.zeros(len(sequences), length - 1, dtype=torch.bool)
    digest = hashlib.sha256()
    for row, sequence in enumerate(sequences):
        segments[row, : len(sequence)] = torch.as_tensor(sequence)
        scored[row, : len(sequence) - 1] = True
        digest.update(np.asarray([len(sequence), *sequence], "<i8").tobytes())
    return EvaluationText(
        name=name,
        sha256=digest.hexdigest(),
        token_count=sum(map(len, sequences)),
        first_token_ids=tuple(segments[0, :3].tolist()),
        length=length,
        stride=length,
        bos="as sampled",
        segments=segments,
        scored=scored,
    )


def text_from_samples(name: str, samples: SampledSequences) -> EvaluationText:
    """What a model wrote itself, as a text; the first token of a document is not scored."""
    text = text_from_sequences(name, samples.token_ids.tolist())
    return replace(text, scored=text.scored & ~samples.document_starts[:, 1:])


def _windows(name: str, token_ids: Sequence[int], length: int, step: int) -> Tensor:
    count = (len(token_ids) - length) // step + 1
    if len(token_ids) < length:
        raise CalibrationError(
            f"text {name} has {len(token_ids)} tokens, less than one segment of {length}; give a longer text "
            "or shorter segments (published perplexities need 2048)"
        )
    return torch.tensor(token_ids).unfold(0, length, step)[:count].clone()


def _with_bos(segments: Tensor, tokenizer: Tokenizer) -> Tensor:
    bos = tokenizer.bos_token_id
    if bos is None:
        raise CalibrationError("a beginning token in every segment is asked for, but the tokenizer has none")
    return torch.cat((torch.full((len(segments), 1), bos), segments), dim=1)


def _adds_bos(tokenizer: Tokenizer) -> bool:
    ids = tokenizer.encode(_PROBE)
    return tokenizer.bos_token_id is not None and ids[:1] == [tokenizer.bos_token_id]


def _check_bos(name: str, first: Sequence[int], tokenizer: Tokenizer, *, wanted: bool) -> None:
    """Exactly one beginning token iff one is to be there."""
    bos, count = tokenizer.bos_token_id, 0
    while bos is not None and count < len(first) and first[count] == bos:
        count += 1
    if count != int(wanted):
        raise CalibrationError(
            f"{name} starts with {count} beginning tokens, expected {int(wanted)}: first ids "
            f"{list(first[:3])}. Remove the token's text from the start of the file; the tokenizer adds what "
            "the model expects"
        )
