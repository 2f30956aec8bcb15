"""How far a quantisation run is."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod

from spearhead.model.checkpoint import Checkpoint
from spearhead.model.checkpoint.layout import expected_shapes


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantizationProgress:
    """How far a run is.

    Attributes:
        done_bytes: Source bytes that were processed, in the source's type.
        total_bytes: Source bytes in all.
        tensor: The tensor that was just written.
        resumed_bytes: Of ``done_bytes``, those that an interrupted run had finished.
    """

    done_bytes: int
    total_bytes: int
    tensor: str
    resumed_bytes: int = 0


OnProgress = Callable[[QuantizationProgress], None]


class Meter:
    """Counts source bytes and tells them."""

    def __init__(self, checkpoint: Checkpoint, item_bytes: int, progress: OnProgress | None) -> None:
        shapes = expected_shapes(checkpoint.config)
        self._bytes = {name: prod(shape) * item_bytes for name, shape in shapes.items()}
        self._total = sum(self._bytes.values())
        self._done = self._resumed = 0
        self._progress = progress

    def resume(self, names: Sequence[str]) -> None:
        """Tensors that were finished before."""
        self._done = self._resumed = sum(self._bytes[name] for name in names)

    def add(self, names: Sequence[str]) -> None:
        """Tensors that are finished now."""
        for name in names:
            self._done += self._bytes[name]
            if self._progress is not None:
                self._progress(
                    QuantizationProgress(
                        done_bytes=self._done,
                        total_bytes=self._total,
                        tensor=name,
                        resumed_bytes=self._resumed,
                    )
                )
