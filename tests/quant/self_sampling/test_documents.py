from typing import Any

import pytest
import torch

from spearhead.errors import CalibrationError
from spearhead.quant.self_sampling import SamplingTokens, SelfSamplingConfig
from spearhead.quant.self_sampling.documents import Documents

BOS, END = 1, 2
TOKENS = SamplingTokens(
    vocab_size=100,
    bos_token_id=BOS,
    eos_token_ids=(END, 3),
    chat_prefix_ids=(BOS, 50, 51),
    chat_middle_ids=(END, 52),
)


def written(drawn: list[list[int]], tokens: SamplingTokens = TOKENS, **config: Any) -> tuple[Any, Any]:
    """Token ids and starts of rows for which the model draws the given ids, one list a row."""
    columns = torch.tensor(drawn).T
    length, rows = columns.shape
    first_ids = torch.arange(length * rows).reshape(length, rows) % 20 + 70
    documents = Documents(SelfSamplingConfig(sequence_count=rows, length=length, **config), tokens, first_ids)
    placed = [documents.place(position, column) for position, column in enumerate(columns)]
    ids, starts = (torch.stack(parts).T.tolist() for parts in zip(*placed, strict=True))
    return ids, starts


def test_after_an_end_token_the_row_goes_on_with_a_new_document() -> None:
    ids, starts = written([[9, 10, END, 9, 11, 3, 9, 12]], start="bos")
    assert ids == [[BOS, 10, END, BOS, 11, 3, BOS, 12]]
    assert [place for place, start in enumerate(starts[0]) if start] == [0, 3, 6]


def test_a_random_first_id_stands_alone_or_after_the_beginning_token_that_texts_have() -> None:
    ids, _ = written([[9, 10, END, 9, 11]], start="vocabulary")
    assert ids == [[70, 10, END, 73, 11]]
    with_bos = SamplingTokens(vocab_size=100, bos_token_id=BOS, bos_before_text=True, eos_token_ids=(END,))
    ids, starts = written([[9, 9, END, 9, 9, 11]], with_bos, start="vocabulary")
    assert ids == [[BOS, 71, END, BOS, 74, 11]]
    assert starts == [[True, False, False, True, False, False]]


def test_mixed_starts_take_turns_and_a_model_without_beginning_token_starts_at_random() -> None:
    ids, _ = written([[9, 10]] * 4, start="mixed")
    assert [row[0] for row in ids] == [BOS, 71, BOS, 73]
    ids, _ = written([[9, 10]] * 2, SamplingTokens(vocab_size=100, bos_token_id=None), start="bos")
    assert [row[0] for row in ids] == [70, 71]


def test_a_conversation_is_framed_and_the_end_of_the_users_turn_is_not_doubled() -> None:
    ids, starts = written([[9, 9, 9, 60, END, 9, 61, END, 9, 9, 9, 62]], chat_fraction=1.0)
    assert ids == [[BOS, 50, 51, 60, END, 52, 61, END, BOS, 50, 51, 62]]
    assert [place for place, start in enumerate(starts[0]) if start] == [0, 8]


def test_a_users_turn_that_does_not_end_is_cut() -> None:
    ids, _ = written([[9, 9, 9, 60, 61, 9, 9, 62, 63]], chat_fraction=1.0, user_turn_tokens=2)
    assert ids == [[BOS, 50, 51, 60, 61, END, 52, 62, 63]]


@pytest.mark.parametrize(("fraction", "expected"), [(0.0, 0), (0.25, 2), (0.5, 4), (1.0, 8)])
def test_the_share_of_conversations_is_exact(fraction: float, expected: int) -> None:
    ids, _ = written([[9] * 8] * 8, chat_fraction=fraction)
    assert sum(row[1] == 50 for row in ids) == expected


def test_the_temperature_falls_over_the_first_drawn_tokens_of_each_document() -> None:
    config = SelfSamplingConfig(sequence_count=1, length=9, start="bos", hot_start_tokens=2)
    documents = Documents(config, TOKENS, torch.zeros(9, 1, dtype=torch.int64))
    seen = []
    for position, drawn in enumerate([9, 10, 11, 12, END, 9, 13, 14, 15]):
        documents.place(position, torch.tensor([drawn]))
        seen.append(documents.temperature().item())
    assert seen == [2.0, 1.5, 1.0, 1.0, 2.0, 2.0, 1.5, 1.0, 1.0]


def test_conversations_need_a_frame_and_room_for_it() -> None:
    with pytest.raises(CalibrationError, match="frame of a conversation is not known"):
        written([[9, 9]], SamplingTokens(vocab_size=100, bos_token_id=BOS), chat_fraction=0.5)
    with pytest.raises(CalibrationError, match="of 6 tokens cannot hold a conversation"):
        written([[9] * 6], chat_fraction=0.5)
