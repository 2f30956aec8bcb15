"""Sign-flip test of paired differences: exact for few units, where a bootstrap is too sure of itself."""

import numpy as np
import numpy.typing as npt

_ENUMERATED = 14
"""Up to so many differences all 2**n flips are tried."""
_ROUNDING = 1e-12


def sign_flip_p_value(differences: npt.NDArray[np.float64], *, draws: int, seed: int) -> float:
    """How often chance alone gives a mean as low as this one.

    Where two things do not differ, a paired difference is as likely to have the other sign; so the share of
    sign flips whose mean is not above the observed one is at most p in p of all cases, however few there are
    (Fisher, The Design of Experiments, 1935, §21). The least of n differences is 2**-n.

    Args:
        differences: float64 ``(n,)``, at least one.
        draws: Flips that are drawn where there are too many to try all.
        seed: Of these.

    Returns:
        One-sided p-value of the mean being 0 against its being below 0; 1 where all differences are 0.
    """
    count = len(differences)
    observed = differences.sum() + _ROUNDING * np.abs(differences).sum()
    if count <= _ENUMERATED:
        flips = np.arange(2**count)[:, None] >> np.arange(count) & 1
        return float(((1.0 - 2.0 * flips) @ differences <= observed).mean())
    flips = np.random.default_rng(seed).integers(0, 2, (draws, count))
    # The observed signs count as one draw: the test is then exact for any number of draws.
    as_low = int(((1.0 - 2.0 * flips) @ differences <= observed).sum())
    return (1 + as_low) / (1 + draws)
