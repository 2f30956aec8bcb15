"""What a quantisation run did, for people and for machines."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleReport:
    """One projection.

    Attributes:
        module: Full name.
        choice: As the recipe spells it, or ``dense``.
        method_used: Another than the choice's when that failed.
        note: Why, and what else is unusual; empty = nothing.
        bytes: In the artefact.
        squared_error: Sum of (w - ŵ)².
        squared_weight: Sum of w².
        weighted_error: ‖(W - Ŵ) R½‖ / ‖W R½‖ over the calibration inputs; ``None`` without them, or dense.
    """

    module: str
    choice: str
    method_used: str
    note: str
    bytes: int
    squared_error: float
    squared_weight: float
    weighted_error: float | None

    @property
    def relative_error(self) -> float:
        """‖W - Ŵ‖ / ‖W‖."""
        return _root_of_ratio(self.squared_error, self.squared_weight)


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantizationReport:
    """What a run wrote.

    Attributes:
        path: The artefact.
        quantization: The quantiser, for people.
        source_bytes: Weights of the source, in its type.
        artefact_bytes: Weights of the artefact.
        modules: One entry a projection, in the model's order.
        calibration_tokens: That statistics were taken from; 0 = none.
        notes: About the whole run.
    """

    path: Path
    quantization: str
    source_bytes: int
    artefact_bytes: int
    modules: tuple[ModuleReport, ...]
    calibration_tokens: int
    notes: tuple[str, ...]

    @property
    def module_count(self) -> int:
        """Modules that were quantised."""
        return sum(module.choice != "dense" for module in self.modules)

    @property
    def relative_error(self) -> float:
        """Root of the squared error over the squared weights, all quantised modules together."""
        quantized = [module for module in self.modules if module.choice != "dense"]
        error = sum(module.squared_error for module in quantized)
        return _root_of_ratio(error, sum(module.squared_weight for module in quantized))

    @property
    def mean_weighted_error(self) -> float | None:
        """Mean over modules of the error as inputs see it; ``None`` without calibration."""
        errors = [module.weighted_error for module in self.modules if module.weighted_error is not None]
        return sum(errors) / len(errors) if errors else None

    def to_json(self) -> dict[str, Any]:
        """Everything but the path, as JSON values."""
        return {
            "version": 1,
            "quantization": self.quantization,
            "source_bytes": self.source_bytes,
            "artefact_bytes": self.artefact_bytes,
            "calibration_tokens": self.calibration_tokens,
            "relative_error": self.relative_error,
            "mean_weighted_error": self.mean_weighted_error,
            "notes": list(self.notes),
            "modules": [
                asdict(module) | {"relative_error": module.relative_error} for module in self.modules
            ],
        }


def module_reports(values: Sequence[Mapping[str, Any]]) -> tuple[ModuleReport, ...]:
    """Reads what :func:`dataclasses.asdict` wrote."""
    return tuple(ModuleReport(**value) for value in values)


def _root_of_ratio(error: float, whole: float) -> float:
    return float((error / whole) ** 0.5) if whole else 0.0
