"""How likely the next draft token is accepted: an estimate for each sequence and one for all together.

A sequence's estimate is the mean of a Beta posterior whose prior mean is the estimate over all sequences:
new sequences behave like the others until they show that they differ. Older evidence fades with each trial.
While nothing is drafted there is no evidence, so it also fades with idle steps, back to the configured prior;
drafting is thereby tried again from time to time after it was switched off.
"""

from array import array
from dataclasses import dataclass

import numpy as np

from scheduler_service.decode_batch import Ints
from scheduler_service.step_cost import Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceptanceConfig:
    """How evidence is weighed.

    Attributes:
        prior: Acceptance that is assumed before any evidence, between 0 and 1.
        prior_trials: The prior counts like this many trials, greater than 0.
        half_life_trials: Evidence counts half after this many later trials of the same sequence.
        idle_half_life_steps: Evidence counts half after this many steps without a draft.
    """

    prior: float = 0.7
    prior_trials: float = 8.0
    half_life_trials: float = 64.0
    idle_half_life_steps: float = 256.0

    def __post_init__(self) -> None:
        if not 0 < self.prior < 1:
            raise ValueError(f"prior is {self.prior}; it must be between 0 and 1")
        for name in ("prior_trials", "half_life_trials", "idle_half_life_steps"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be greater than 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """Faded counts.

    Attributes:
        accepted: Weight of accepted trials, at least 0.
        trials: Weight of all trials, at least ``accepted``.
        step: Step of the last observation.
    """

    accepted: float = 0.0
    trials: float = 0.0
    step: int = 0


def observe(
    evidence: Evidence, *, drafted: int, accepted: int, step: int, config: AcceptanceConfig
) -> Evidence:
    """Takes one verification into account.

    Drafts after the first rejected one were never judged, so ``accepted + 1`` trials at most.

    Args:
        evidence: What was known.
        drafted: Drafts sent, at least 0; 0 changes nothing.
        accepted: Leading drafts accepted, 0..drafted.
        step: Number of this step, not below ``evidence.step``.
        config: How to weigh.
    """
    assert 0 <= accepted <= drafted
    if drafted == 0:
        return evidence
    trials = min(accepted + 1, drafted)
    kept = _idle_weight(evidence, step, config) * 0.5 ** (trials / config.half_life_trials)
    return Evidence(
        accepted=evidence.accepted * kept + accepted, trials=evidence.trials * kept + trials, step=step
    )


def estimate(evidence: Evidence, *, prior: float, step: int, config: AcceptanceConfig) -> float:
    """The expected acceptance, between 0 and 1.

    Args:
        evidence: What is known.
        prior: Mean without evidence.
        step: The step that is being planned.
        config: How to weigh.
    """
    weight = _idle_weight(evidence, step, config)
    return (config.prior_trials * prior + weight * evidence.accepted) / (
        config.prior_trials + weight * evidence.trials
    )


class AcceptanceTracker:
    """Owns the evidence of all living requests, each under its row in the roster.

    Args:
        config: How evidence is weighed.
    """

    def __init__(self, config: AcceptanceConfig) -> None:
        self._config = config
        self._all = Evidence()
        self._accepted = array("d")
        self._trials = array("d")
        self._steps = array("d")

    def observe(self, row: int, *, drafted: int, accepted: int, step: int) -> None:
        """Takes the verification of one request into account; arguments as for :func:`observe`."""
        if drafted == 0:
            return
        self._reach(row)
        before = Evidence(accepted=self._accepted[row], trials=self._trials[row], step=int(self._steps[row]))
        config = self._config
        self._keep(row, observe(before, drafted=drafted, accepted=accepted, step=step, config=config))
        self._all = observe(self._all, drafted=drafted, accepted=accepted, step=step, config=config)

    def estimate_all(self, step: int) -> float:
        """Acceptance over all requests; the prior of each."""
        return estimate(self._all, prior=self._config.prior, step=step, config=self._config)

    def estimates(self, rows: Ints, step: int) -> Floats:
        """Acceptance of each request, as :func:`estimate` says; an unknown one is like the others.

        Args:
            rows: Their rows, shape (B,).
            step: The step that is being planned, not below those that were observed.

        Returns:
            Probabilities, shape (B,).
        """
        if not len(rows):
            return np.zeros(0)
        self._reach(int(rows.max()))
        prior, config = self.estimate_all(step), self._config
        weights = np.exp2((np.frombuffer(self._steps)[rows] - step) * (1 / config.idle_half_life_steps))
        trials = np.frombuffer(self._trials)[rows]
        surplus = np.frombuffer(self._accepted)[rows] - prior * trials
        return np.asarray(prior + weights * surplus / (config.prior_trials + weights * trials))

    def release(self, row: int) -> None:
        """Forgets a finished request; what it taught about all stays."""
        if row < len(self._trials):
            self._keep(row, Evidence())

    def check_integrity(self, living: set[int]) -> None:
        """Raises ``AssertionError`` when evidence is kept in a row that no request has."""
        left = set(np.frombuffer(self._trials).nonzero()[0].tolist()) - living
        assert not left, f"acceptance evidence left behind in rows {sorted(left)[:8]}"

    def _keep(self, row: int, evidence: Evidence) -> None:
        self._accepted[row] = evidence.accepted
        self._trials[row] = evidence.trials
        self._steps[row] = evidence.step

    def _reach(self, row: int) -> None:
        missing = row + 1 - len(self._trials)
        if missing > 0:
            for column in (self._accepted, self._trials, self._steps):
                column.extend([0.0] * missing)


def _idle_weight(evidence: Evidence, step: int, config: AcceptanceConfig) -> float:
    return float(0.5 ** (max(step - evidence.step, 0) / config.idle_half_life_steps))
