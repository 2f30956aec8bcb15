import torch

from spearhead.quant.calibration.decision import Measured, chosen, decide
from spearhead.quant.report import Rung


def _measured(rung: Rung, mean: float, noise: float = 0.01, count: int = 50) -> Measured:
    """The same noise in every rung, as hard sequences are hard for all."""
    common = torch.randn(count, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    own = torch.randn(count, generator=torch.Generator().manual_seed(len(rung)), dtype=torch.float64)
    return Measured(rung=rung, kl=mean + 0.3 * common + noise * own)


def test_a_difference_that_pairing_shows_is_kept() -> None:
    rungs = [_measured(Rung.W4, 1.0), _measured(Rung.STATIC, 0.9)]
    decisions = decide(rungs, draws=500, seed=0)
    assert chosen(decisions) == Rung.STATIC
    interval = decisions[1].difference
    assert interval is not None and interval.low is not None and interval.high is not None
    assert interval.low < -0.1 + 0.02 and interval.high < 0
    assert "on 50 sequences, difference -0.097" in decisions[1].sentence
    assert decisions[1].sentence.endswith("kept")


def test_the_next_rung_has_to_beat_the_last_one_kept() -> None:
    rungs = [_measured(Rung.W4, 0.9), _measured(Rung.STATIC, 0.95), _measured(Rung.TRAINED, 0.8)]
    decisions = decide(rungs, draws=500, seed=0)
    assert [decision.kept for decision in decisions] == [True, False, True]
    assert decisions[2].against == Rung.W4


def test_a_forced_rung_stays_and_says_that_it_was_not_proven() -> None:
    rungs = [_measured(Rung.W4, 0.9), _measured(Rung.GATED, 0.95)]
    decisions = decide(rungs, draws=500, seed=0, forced=Rung.GATED)
    assert chosen(decisions) == Rung.GATED
    assert decisions[1].sentence.endswith("not proven better, kept as forced")


def test_one_sequence_decides_nothing() -> None:
    rungs = [_measured(Rung.W4, 0.9, count=1), _measured(Rung.STATIC, 0.1, count=1)]
    decisions = decide(rungs, draws=500, seed=0)
    assert chosen(decisions) == Rung.W4
    assert "a single held-out sequence cannot decide, dropped" in decisions[1].sentence
