"""Numbers of the methods, with the defaults of their authors where there are any."""

from dataclasses import asdict, dataclass

from spearhead.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class MethodOptions:
    """What a user may tune.

    Attributes:
        act_order: GPTQ visits inputs by falling second moment instead of in order. Scales belong to the
            original groups, so the artefact is stored as without it.
        damping: GPTQ's first try, as a share of the mean second moment, added to the diagonal.
        awq_points: Exponents between 0 and 1 that AWQ tries.
        clipping_steps: Adam steps of learned clipping, a layer.
        clipping_rate: Its learning rate.
    """

    act_order: bool = False
    damping: float = 0.01
    awq_points: int = 20
    clipping_steps: int = 100
    clipping_rate: float = 0.02

    def __post_init__(self) -> None:
        if not 0 < self.damping <= 1:
            raise ConfigError(f"damping is {self.damping}; it must be above 0 and at most 1")
        if self.awq_points < 1 or self.clipping_steps < 1:
            raise ConfigError(
                f"{self.awq_points} AWQ points and {self.clipping_steps} clipping steps; give at least 1 each"
            )
        if self.clipping_rate <= 0:
            raise ConfigError(f"the clipping rate is {self.clipping_rate}; it must be above 0")

    def __str__(self) -> str:
        """``name=value`` pairs."""
        return " ".join(f"{name}={value}" for name, value in asdict(self).items())
