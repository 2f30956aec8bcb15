"""What is sampled, and around which tokens."""

from dataclasses import dataclass
from typing import Literal

from spearhead.errors import CalibrationError
from spearhead.tokenizer import Tokenizer

Start = Literal["bos", "vocabulary", "mixed"]

_USER_TURN = "\x02"


@dataclass(frozen=True, slots=True, kw_only=True)
class SelfSamplingConfig:
    """How sequences are drawn. No truncation: the law is the model's own.

    Attributes:
        sequence_count: S, how many are kept.
        length: T, tokens of each.
        seed: Of everything random.
        batch_size: How many are generated in step; bounds the memory of keys and values. Part of the
            result: another batch size gives other sequences.
        temperature: Divides the logits.
        hot_start_tokens: Over so many first tokens of a document the temperature falls linearly from
            ``hot_start_temperature`` to ``temperature``; 0 = at once.
        hot_start_temperature: Where it falls from.
        start: First token of a document: ``bos``, a random id of the ``vocabulary``, or each in half of the
            rows (``mixed``). A model without a beginning token always starts with a random id.
        chat_fraction: Share of the rows that are conversations, whose user turn the model writes too.
        user_turn_tokens: Where a user turn is cut that has not ended.
        max_repeated_share: A sequence with more repeated 8-grams than this is drawn again.
    """

    sequence_count: int
    length: int
    seed: int = 0
    batch_size: int = 256
    temperature: float = 1.0
    hot_start_tokens: int = 0
    hot_start_temperature: float = 2.0
    start: Start = "mixed"
    chat_fraction: float = 0.0
    user_turn_tokens: int = 64
    max_repeated_share: float = 0.5

    def __post_init__(self) -> None:
        for name in ("sequence_count", "length", "batch_size", "user_turn_tokens"):
            self._require(name, getattr(self, name) >= 1, "at least 1")
        for name in ("temperature", "hot_start_temperature"):
            self._require(name, 0.0 < getattr(self, name) < float("inf"), "positive")
        for name in ("chat_fraction", "max_repeated_share"):
            self._require(name, 0.0 <= getattr(self, name) <= 1.0, "0 to 1")
        self._require("hot_start_tokens", self.hot_start_tokens >= 0, "at least 0")
        self._require("seed", 0 <= self.seed < 2**63, "0 to 2**63 - 1")
        self._require("start", self.start in ("bos", "vocabulary", "mixed"), "bos, vocabulary or mixed")

    def _require(self, name: str, holds: bool, limit: str) -> None:
        if not holds:
            raise CalibrationError(f"self-sampling: {name} is {getattr(self, name)!r}; it must be {limit}")


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingTokens:
    """The token ids that frame documents.

    Attributes:
        vocab_size: Ids from here on are padding of the embedding and are never drawn.
        bos_token_id: Starts a document; ``None`` = the model has no such token.
        bos_before_text: Texts always start with it, so a random first id comes after it.
        eos_token_ids: End a document.
        control_token_ids: Never the random first id.
        chat_prefix_ids: From the start of a conversation to the start of the user's words.
        chat_middle_ids: From the end of the user's words to the start of the answer.
    """

    vocab_size: int
    bos_token_id: int | None
    bos_before_text: bool = False
    eos_token_ids: tuple[int, ...] = ()
    control_token_ids: tuple[int, ...] = ()
    chat_prefix_ids: tuple[int, ...] = ()
    chat_middle_ids: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        bos = () if self.bos_token_id is None else (self.bos_token_id,)
        for token_id in (*bos, *self.eos_token_ids, *self.chat_prefix_ids, *self.chat_middle_ids):
            if not 0 <= token_id < self.vocab_size:
                raise CalibrationError(
                    f"token id {token_id} frames documents but the vocabulary has {self.vocab_size} ids; "
                    "tokenizer and model do not belong together"
                )
        if len({*self.eos_token_ids, *self.control_token_ids}) >= self.vocab_size:
            raise CalibrationError(f"all {self.vocab_size} ids of the vocabulary are control tokens")

    @classmethod
    def of(cls, tokenizer: Tokenizer, *, vocab_size: int, chat: bool) -> "SamplingTokens":
        """The frame that a tokenizer gives.

        Args:
            tokenizer: The model's.
            vocab_size: Rows of the model's embedding; the smaller of it and the tokenizer's counts.
            chat: Also take the frame of a conversation from the chat template.

        Raises:
            InvalidRequest: ``chat`` without a chat template.
            CalibrationError: A template that does not show the user's words as they are.
        """
        bos = tokenizer.bos_token_id
        prefix, middle = _chat_frame(tokenizer) if chat else ((), ())
        return cls(
            vocab_size=min(vocab_size, tokenizer.vocab_size),
            bos_token_id=bos,
            bos_before_text=bos is not None and tokenizer.encode("a")[:1] == [bos],
            eos_token_ids=tuple(sorted(tokenizer.eos_token_ids)),
            control_token_ids=tuple(sorted(tokenizer.special_token_ids)),
            chat_prefix_ids=prefix,
            chat_middle_ids=middle,
        )


def _chat_frame(tokenizer: Tokenizer) -> tuple[tuple[int, ...], tuple[int, ...]]:
    text = tokenizer.apply_chat_template([{"role": "user", "content": _USER_TURN}])
    parts = text.split(_USER_TURN)
    if len(parts) != 2:
        raise CalibrationError(
            f"the chat template shows the user's words {len(parts) - 1} times; conversations cannot be "
            "sampled with it: set chat_fraction to 0"
        )
    prefix, middle = (tuple(tokenizer.encode(part, add_special_tokens=False)) for part in parts)
    return prefix, middle
