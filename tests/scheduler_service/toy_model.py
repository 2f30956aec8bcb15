"""A target without weights: the next token is a hash of the exact prefix, the seed and the position.

One wrong token anywhere in a sequence changes everything after it, so two equal outputs mean that both runs
computed exactly the same tokens.
"""

import json
import string
from collections.abc import Callable, Sequence
from pathlib import Path

from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers

from spearhead.tokenizer import Tokenizer
from spearhead.v1 import types_pb2

_MASK = (1 << 64) - 1
EOS = "<eos>"
LETTERS = string.ascii_lowercase + " "

Script = Callable[[int], int | None]
"""The token at an output index, or None for the hashed one."""


def mix(state: int, value: int) -> int:
    """One round of a 64-bit hash."""
    state = ((state ^ value) * 0x9E3779B97F4A7C15 + 0xD1B54A32D192ED03) & _MASK
    return state ^ (state >> 29)


def hash_tokens(token_ids: Sequence[int], state: int = 0) -> int:
    for token_id in token_ids:
        state = mix(state, token_id + 1)
    return state


class ToyModel:
    """The target's law.

    Args:
        vocabulary: Token ids that it emits.
        script: Fixes single tokens by output index.
    """

    def __init__(self, vocabulary: Sequence[int], script: Script = lambda index: None) -> None:
        self.vocabulary = list(vocabulary)
        self.script = script

    def next_token(self, prefix_hash: int, length: int, sampling: types_pb2.WorkerSampling) -> int:
        scripted = self.script(length - sampling.prompt_length)
        suppressed: set[int] = set()
        if length < sampling.suppress_below_length:
            data = sampling.suppressed_token_ids
            suppressed = {int.from_bytes(data[i : i + 4], "little") for i in range(0, len(data), 4)}
        if scripted is not None and scripted not in suppressed:
            return scripted
        state = mix(prefix_hash, sampling.seed if sampling.temperature else 0)
        candidates = [token_id for token_id in self.vocabulary if token_id not in suppressed]
        return candidates[mix(state, length) % len(candidates)]

    def generate(self, prompt: Sequence[int], count: int, sampling: types_pb2.WorkerSampling) -> list[int]:
        """The tokens that follow, one after the other."""
        tokens, state = list(prompt), hash_tokens(prompt)
        for _ in range(count):
            tokens.append(self.next_token(state, len(tokens), sampling))
            state = mix(state, tokens[-1] + 1)
        return tokens[len(prompt) :]


def save_toy_tokenizer(folder: Path, *, extra: str = "") -> Path:
    """A byte-level tokenizer: one token a byte, and an end token. ``extra`` changes its hash."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {character: index for index, character in enumerate(alphabet)}
    backend = Backend(models.BPE(vocab=vocabulary, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([EOS, *([extra] if extra else [])])
    folder.mkdir(parents=True, exist_ok=True)
    backend.save(str(folder / "tokenizer.json"))
    config = {
        "eos_token": EOS,
        "chat_template": (
            "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
            "{% if add_generation_prompt %}[assistant]{% endif %}"
        ),
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


def letter_ids(tokenizer: Tokenizer, letters: str = LETTERS) -> list[int]:
    return [tokenizer.encode(letter)[0] for letter in letters]
