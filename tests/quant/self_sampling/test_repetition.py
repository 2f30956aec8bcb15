import torch

from spearhead.quant.self_sampling import repeated_shares


def test_the_share_counts_grams_that_occurred_before() -> None:
    varied = torch.arange(24)
    looping = torch.arange(4).repeat(6)  # 17 8-grams, 4 of them different
    constant = torch.zeros(24, dtype=torch.int64)
    assert repeated_shares(torch.stack([varied, looping, constant])) == [0.0, 1 - 4 / 17, 1 - 1 / 17]


def test_sequences_shorter_than_a_gram_do_not_repeat() -> None:
    short = torch.zeros(2, 7, dtype=torch.int32)
    assert repeated_shares(short) == [0.0, 0.0]


def test_grams_do_not_mix_tokens_across_their_bytes() -> None:
    # 1 and 256 have the same bytes, shifted.
    rows = torch.tensor([[1] * 8 + [256] * 8])
    assert repeated_shares(rows) == [0.0]
