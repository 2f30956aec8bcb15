"""Sampling: edits, filters, shared noise, and log-probabilities, without sorting and without host waits."""

from torch import Tensor

from kernels.sample import reference
from kernels.sample.batch import SEEN, SUPPRESSED, Edits, RowLogprobs, Samples, SamplingBatch

__all__ = ["SEEN", "SUPPRESSED", "Edits", "RowLogprobs", "Samples", "SamplingBatch", "sample"]


def sample(logits: Tensor, batch: SamplingBatch) -> Samples:
    """One token a row; see :mod:`kernels.sample.reference` for the law.

    Args:
        logits: float32 ``(B, V)``; on a GPU edited in place and restored.
        batch: Laws of the rows, on the same device.

    Raises:
        ValueError: On a GPU, a tensor of the wrong shape, type, device or stride.
    """
    if not logits.is_cuda:
        return reference.sample(logits, batch)
    from kernels.sample.launch import launch

    return launch(logits, batch)
