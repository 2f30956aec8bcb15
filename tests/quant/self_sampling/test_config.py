import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from spearhead.errors import CalibrationError
from spearhead.quant.self_sampling import SamplingTokens, SelfSamplingConfig
from spearhead.tokenizer import Tokenizer


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("length", 0),
        ("temperature", 0.0),
        ("hot_start_temperature", float("inf")),
        ("chat_fraction", 1.5),
        ("seed", -1),
        ("start", "eos"),
        ("hot_start_tokens", -1),
    ],
)
def test_a_value_out_of_range_is_named(name: str, value: Any) -> None:
    with pytest.raises(CalibrationError, match=f"self-sampling: {name} is"):
        SelfSamplingConfig(**({"sequence_count": 1, "length": 8} | {name: value}))


def test_a_frame_of_ids_beyond_the_vocabulary_is_refused() -> None:
    with pytest.raises(CalibrationError, match=r"token id 10 .* the vocabulary has 10 ids"):
        SamplingTokens(vocab_size=10, bos_token_id=10)


def test_the_frame_of_a_conversation_is_that_of_the_chat_template(
    tiny_checkpoint: Callable[..., Path],
) -> None:
    tokenizer = Tokenizer.load(tiny_checkpoint("llama"))
    tokens = SamplingTokens.of(tokenizer, vocab_size=10_000, chat=True)
    assert tokens.vocab_size == tokenizer.vocab_size
    framed = [*tokens.chat_prefix_ids, *tokenizer.encode("hello"), *tokens.chat_middle_ids]
    assert framed == tokenizer.encode_chat([{"role": "user", "content": "hello"}])
    assert tokens.chat_middle_ids[0] in tokens.eos_token_ids
    assert not tokens.bos_before_text


def test_a_template_that_writes_the_beginning_token_has_it_once_though_texts_get_it_too(
    tiny_checkpoint: Callable[..., Path],
) -> None:
    from tokenizers import Tokenizer as Backend
    from tokenizers.processors import TemplateProcessing

    folder, start = tiny_checkpoint("llama"), "<|endoftext|>"
    backend = Backend.from_file(str(folder / "tokenizer.json"))
    bos = backend.token_to_id(start)
    backend.post_processor = TemplateProcessing(single=f"{start} $A", special_tokens=[(start, bos)])
    backend.save(str(folder / "tokenizer.json"))
    template = "{{ bos_token }}{% for message in messages %}{{ message.content }}{% endfor %}<|im_end|>"
    (folder / "chat_template.jinja").write_text(template)
    config = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps(config | {"bos_token": start}))
    tokens = SamplingTokens.of(Tokenizer.load(folder), vocab_size=10_000, chat=True)
    assert tokens.bos_before_text
    assert tokens.chat_prefix_ids == (bos,)
