"""Ranks compute only with the same files and settings."""

import pytest
import torch

from spearhead.errors import ConfigError
from spearhead.model.parallel import ALONE
from spearhead.model.parallel.agreement import check_same, total

CPU = torch.device("cpu")


def test_ranks_with_the_same_words_go_on(ranked):
    assert ranked(3, lambda ranks: check_same(ranks, "sha256:1", CPU)) == [None] * 3
    check_same(ALONE, "anything", CPU)


def test_a_rank_with_another_checkpoint_is_named_on_all_ranks(ranked):
    def check(ranks):
        with pytest.raises(ConfigError, match=r"ranks \[2\] of 3 have another checkpoint.*sha256:"):
            check_same(ranks, f"sha256:{ranks.rank // 2}", CPU)

    assert ranked(3, check) == [None] * 3


def test_a_total_is_that_of_all_ranks(ranked):
    assert ranked(3, lambda ranks: total(ranks, 2**40 + ranks.rank, CPU)) == [3 * 2**40 + 3] * 3
