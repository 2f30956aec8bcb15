"""Input scales that were folded into weights: ``W' = diag(row) W diag(column)``, ``x' = x / column``."""

from dataclasses import dataclass, field, replace

from torch import Tensor

from spearhead.quant.moments import Moments


@dataclass(frozen=True, slots=True, kw_only=True)
class FoldScales:
    """Scales by module, where they are not 1.

    Attributes:
        columns: Module to the scales of its inputs, float32 ``(K,)``.
        rows: Module to the scales of its outputs, float32 ``(N,)``.
    """

    columns: dict[str, Tensor] = field(default_factory=dict)
    rows: dict[str, Tensor] = field(default_factory=dict)

    def folded(self, module: str, weight: Tensor) -> Tensor:
        """An original weight ``(N, K)`` as the folded layer has it, float32."""
        scaled = weight.float()
        if module in self.columns:
            scaled = scaled * self.columns[module].to(scaled.device)
        return scaled * self.rows[module].to(scaled.device)[:, None] if module in self.rows else scaled

    def unfolded(self, module: str, weight: Tensor) -> Tensor:
        """What a weight ``(N, K)`` of the folded layer stands for in the original one, float32."""
        scaled = weight.float()
        if module in self.columns:
            scaled = scaled / self.columns[module].to(scaled.device)
        return scaled / self.rows[module].to(scaled.device)[:, None] if module in self.rows else scaled

    def moments(self, module: str, original: Moments) -> Moments:
        """Of the inputs that the module sees in the folded layer."""
        if module not in self.columns:
            return original
        shrink = 1 / self.columns[module].to(original.second)
        return replace(
            original,
            second=original.second * shrink[:, None] * shrink,
            mean_abs=original.mean_abs * shrink,
            peak_mean_abs=original.peak_mean_abs * shrink,
            peak_abs=original.peak_abs * shrink,
        )
