"""Which token of a row is forced and which is drawn: starts of documents, frames of conversations, joins.

Every row follows a script: ids to write first, then whatever the model draws until an end token. All of
it is tensor arithmetic on the device, so generation never waits to look at a token.
"""

import torch
from torch import Tensor

from spearhead.errors import CalibrationError
from spearhead.quant.self_sampling.config import SamplingTokens, SelfSamplingConfig

_DRAWN = -1
_RANDOM = -2
_BOS, _VOCABULARY, _CHAT, _ANSWER = range(4)


class Documents:
    """The state of B rows.

    Args:
        config: How documents start.
        tokens: With which ids.
        first_ids: int64 ``(T, B)`` on the device: the random id if a document starts so at that place.
    """

    def __init__(self, config: SelfSamplingConfig, tokens: SamplingTokens, first_ids: Tensor) -> None:
        device, rows = first_ids.device, first_ids.shape[1]
        scripts = _scripts(config, tokens)
        width = max(map(len, scripts))
        self._scripts = torch.tensor([s + [_DRAWN] * (width + 1 - len(s)) for s in scripts], device=device)
        self._lengths = torch.tensor([len(script) for script in scripts], device=device)
        self._schedule = _temperatures(config).to(device)
        self._first_ids = first_ids
        self._end_ids = torch.tensor(tokens.eos_token_ids, dtype=torch.int64, device=device)
        self._answer_begins = int(
            tokens.chat_middle_ids[:1] != () and tokens.chat_middle_ids[0] in tokens.eos_token_ids
        )
        self._turn_tokens = config.user_turn_tokens
        self._home = torch.tensor(_homes(config, tokens, rows), device=device)
        self._script = self._home.clone()
        self._cursor = torch.zeros_like(self._script)

    def temperature(self) -> Tensor:
        """Of the next token of each row, float32 ``(B,)``."""
        last = len(self._schedule) - 1
        age = (self._cursor - self._lengths[self._script]).clamp(0, last)
        return self._schedule[torch.where(self._script == _ANSWER, last, age)]

    def place(self, position: int, drawn: Tensor) -> tuple[Tensor, Tensor]:
        """The token of each row at a position, and whether it starts a document.

        Args:
            position: 0 … T-1, each once and in order.
            drawn: int64 ``(B,)``, what the model drew; counts where nothing is forced.

        Returns:
            int64 ``(B,)`` and bool ``(B,)``.
        """
        entry = self._scripts[self._script, self._cursor.clamp(max=self._scripts.shape[1] - 1)]
        forced = torch.where(entry == _RANDOM, self._first_ids[position], entry)
        free = entry == _DRAWN
        token_ids = torch.where(free, drawn, forced)
        starts = (self._cursor == 0) & (self._script != _ANSWER)
        self._move(free, free & (token_ids[:, None] == self._end_ids).any(-1))
        return token_ids, starts

    def _move(self, free: Tensor, ended: Tensor) -> None:
        asking = self._script == _CHAT
        turn_full = free & (self._cursor - self._lengths[_CHAT] + 1 >= self._turn_tokens)
        answer = asking & (ended | turn_full)
        again = ended & ~asking
        # The end token that closed the user's turn is the first of the frame's own.
        begins = torch.where(ended, self._answer_begins, 0)
        self._cursor = torch.where(answer, begins, torch.where(again, 0, self._cursor + 1))
        self._script = torch.where(answer, _ANSWER, torch.where(again, self._home, self._script))


def _scripts(config: SelfSamplingConfig, tokens: SamplingTokens) -> list[list[int]]:
    bos = [] if tokens.bos_token_id is None else [tokens.bos_token_id]
    chat, answer = list(tokens.chat_prefix_ids), list(tokens.chat_middle_ids)
    if config.chat_fraction and not (chat and answer):
        raise CalibrationError(
            f"chat_fraction is {config.chat_fraction} but the frame of a conversation is not known; give "
            "chat_prefix_ids and chat_middle_ids, or set it to 0"
        )
    if config.chat_fraction and len(chat) + len(answer) + 2 > config.length:
        raise CalibrationError(
            f"sequences of {config.length} tokens cannot hold a conversation, whose frame alone has "
            f"{len(chat) + len(answer)}; raise length or set chat_fraction to 0"
        )
    return [bos, [*(bos if tokens.bos_before_text else []), _RANDOM], chat, answer]


def _homes(config: SelfSamplingConfig, tokens: SamplingTokens, rows: int) -> list[int]:
    """Which script each row starts with: the shares are exact and spread evenly over the rows."""
    homes: list[int] = []
    plain = 0
    for row in range(rows):
        if int((row + 1) * config.chat_fraction) > int(row * config.chat_fraction):
            homes.append(_CHAT)
            continue
        by_bos = config.start == "bos" or (config.start == "mixed" and plain % 2 == 0)
        homes.append(_BOS if by_bos and tokens.bos_token_id is not None else _VOCABULARY)
        plain += 1
    return homes


def _temperatures(config: SelfSamplingConfig) -> Tensor:
    """By the number of tokens drawn so far in the document, float32 ``(hot_start_tokens + 1,)``."""
    return (
        torch.linspace(config.hot_start_temperature, config.temperature, config.hot_start_tokens + 1)
        if config.hot_start_tokens
        else torch.tensor([config.temperature])
    )
