"""What a report is about: model, quantiser, software, machine, time."""

from dataclasses import dataclass

from spearhead.quant.report.checks import check_at_least, check_shown


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantizer:
    """How weights became four bits.

    Attributes:
        description: Method and sharing of scales, such as ``RTN, symmetric, per channel``.
        convention: How a scale follows from the weights, such as ``absmax/7.5``; never empty.
    """

    description: str
    convention: str

    def __post_init__(self) -> None:
        check_shown("quantizer.description", self.description)
        check_shown("quantizer.convention", self.convention)

    @property
    def full_description(self) -> str:
        """The description, and the convention where the description does not name it."""
        if self.convention in self.description:
            return self.description
        return f"{self.description}, {self.convention}"


@dataclass(frozen=True, slots=True, kw_only=True)
class SoftwareVersion:
    """One package that had a part in the numbers."""

    package: str
    version: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StageTime:
    """Wall-clock time of one stage.

    Attributes:
        stage: Such as ``self-sampling``.
        duration_s: Seconds.
    """

    stage: str
    duration_s: float

    def __post_init__(self) -> None:
        check_at_least("stages.duration_s", self.duration_s, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Everything that is needed to repeat the run.

    Attributes:
        model: Folder, file or hub id of the full-precision model.
        revision: Digest of its weights.
        quantizer: What made the 4-bit weights.
        w4_digest: Digest of the 4-bit weights that the compensators were fitted to.
        w4_bytes: Served 4-bit artefact without compensators; budgets are shares of it.
        full_precision_bytes: The full-precision weights.
        seed: Of everything random.
        device: Such as ``NVIDIA H200``.
        versions: Packages.
        stages: In the order in which they ran.
        commands: What to type to get this report again.
    """

    model: str
    revision: str
    quantizer: Quantizer
    w4_digest: str
    w4_bytes: int
    full_precision_bytes: int
    seed: int
    device: str
    versions: tuple[SoftwareVersion, ...]
    stages: tuple[StageTime, ...]
    commands: tuple[str, ...]

    def __post_init__(self) -> None:
        check_at_least("identity.w4_bytes", self.w4_bytes, 1)
        check_at_least("identity.full_precision_bytes", self.full_precision_bytes, 1)
