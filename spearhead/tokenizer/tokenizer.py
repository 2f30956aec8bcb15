"""The tokenizer that scheduler, draft and verify share."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Self

import tokenizers

from spearhead.errors import CheckpointError, InvalidRequest
from spearhead.tokenizer.chat_template import FIELD, ChatTemplate
from spearhead.tokenizer.folder import load_folder, save_folder
from spearhead.tokenizer.gguf_file import load_gguf
from spearhead.tokenizer.vocabulary import TokenizerParts, vocabulary_digest

SHORT_TEXT = 256
"""Characters that are encoded faster than a thread is woken."""


class Tokenizer:
    """Text to token ids and back, and the model's chat layout. Safe to share between threads.

    Attributes:
        vocab_size: One more than the largest id; models may pad their vocabulary beyond it.
        eos_token_ids: Ids that end a sequence.
        bos_token_id: The beginning-of-sequence token; None = the model has none.
        hash: ``sha256:<hex>`` over vocabulary, merges and special ids. Equal hashes: ids mean the same.
    """

    def __init__(self, parts: TokenizerParts) -> None:
        self._parts = parts
        self._backend = parts.backend
        template = parts.chat_template
        self._chat = None if template is None else ChatTemplate(template, parts.named_tokens)
        self.vocab_size: int = max(parts.vocabulary.values()) + 1
        self.eos_token_ids: tuple[int, ...] = parts.eos_token_ids
        bos_token = parts.named_tokens.get("bos_token")
        self.bos_token_id: int | None = None if bos_token is None else parts.vocabulary[bos_token]
        self.hash: str = vocabulary_digest(parts.vocabulary, parts.merges, parts.special_token_ids)

    @classmethod
    def load(cls, path: Path) -> Self:
        """Reads a model folder with ``tokenizer.json``, or a ``.gguf`` file.

        Raises:
            CheckpointError: There is no usable tokenizer; the message says what to use instead.
        """
        if path.is_dir():
            return cls(load_folder(path))
        if path.suffix == ".gguf":
            return cls(load_gguf(path))
        if not path.exists():
            raise CheckpointError(f"model path {path} does not exist")
        raise CheckpointError(f"{path} is neither a model folder nor a .gguf file")

    def save(self, folder: Path) -> None:
        """Writes the files that :meth:`load` and ``transformers.AutoTokenizer`` read.

        ``tokenizer.json``, ``tokenizer_config.json``, ``chat_template.jinja`` and, with several end tokens,
        their list in ``generation_config.json``.
        """
        save_folder(self._parts, folder)

    @property
    def backend(self) -> tokenizers.Tokenizer:
        """The library's tokenizer, for the detokenizer."""
        return self._backend

    @property
    def special_token_ids(self) -> frozenset[int]:
        """Control tokens, which decoded text leaves out."""
        return self._parts.special_token_ids

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Token ids of a text.

        Args:
            text: Anything; a lone surrogate counts as U+FFFD, as it has no UTF-8 form.
            add_special_tokens: Add what the model expects around a text, such as the beginning token.
        """
        text = _valid(text)
        if len(text) <= SHORT_TEXT:
            return self._backend.encode(text, add_special_tokens=add_special_tokens).ids
        # Of the library's two ways only this one releases the GIL: in a thread, it lets others run.
        (encoding,) = self._backend.encode_batch([text], add_special_tokens=add_special_tokens)
        return encoding.ids

    def decode(self, token_ids: Iterable[int], skip_special_tokens: bool = True) -> str:
        """Text of token ids; bytes that are no UTF-8 become U+FFFD, ids beyond the vocabulary nothing."""
        return self._backend.decode(list(token_ids), skip_special_tokens=skip_special_tokens)

    def apply_chat_template(
        self, messages: Sequence[Mapping[str, str]], add_generation_prompt: bool = True
    ) -> str:
        """The conversation as the text that the model was trained on.

        Args:
            messages: ``role`` and ``content`` each, at least one.
            add_generation_prompt: End with the opening of the assistant's turn.

        Raises:
            InvalidRequest: The model has no template, or the template refuses the messages.
        """
        if self._chat is None:
            raise InvalidRequest(
                "this model has no chat template; send `prompt` text instead, "
                "or serve an instruction-tuned model",
                field=FIELD,
            )
        return self._chat.render(messages, add_generation_prompt=add_generation_prompt)

    def encode_chat(
        self, messages: Sequence[Mapping[str, str]], add_generation_prompt: bool = True
    ) -> list[int]:
        """Token ids of a conversation. The template alone writes special tokens, so none is doubled.

        Raises:
            InvalidRequest: As :meth:`apply_chat_template`.
        """
        return self.encode(
            self.apply_chat_template(messages, add_generation_prompt), add_special_tokens=False
        )


def _valid(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text
