"""What the sampling kernels ask of their arguments."""

import torch
from torch import Tensor

from kernels.sample.batch import Edits, SamplingBatch
from kernels.tensor_checks import require

MAX_VOCABULARY = 1 << 18
MAX_ALTERNATIVES = 32


def check(logits: Tensor, batch: SamplingBatch) -> None:
    """Refuses what the kernels would misread.

    Raises:
        ValueError: With the name, the value, what is expected, and what to do.
    """
    device = logits.device
    require(
        "logits", logits, shape=(None, None), dtypes=(torch.float32,), device=device, rows_contiguous=True
    )
    rows, vocabulary = logits.shape
    if not 0 < vocabulary <= MAX_VOCABULARY:
        raise ValueError(f"logits have {vocabulary} tokens a row; 1 to {MAX_VOCABULARY} are supported")
    expected = {
        "temperature": (batch.temperature, torch.float32),
        "top_k": (batch.top_k, torch.int32),
        "top_p": (batch.top_p, torch.float64),
        "log_min_p": (batch.log_min_p, torch.float32),
        "seeds": (batch.seeds, torch.int64),
        "positions": (batch.positions, torch.int64),
    }
    for name, (tensor, dtype) in expected.items():
        require(name, tensor, shape=(rows,), dtypes=(dtype,), device=device)
    if batch.alternatives is not None and not 0 <= batch.alternatives <= min(MAX_ALTERNATIVES, vocabulary):
        raise ValueError(
            f"alternatives is {batch.alternatives}; "
            f"it must be 0 to {min(MAX_ALTERNATIVES, vocabulary)}, or None"
        )
    if batch.edits is not None:
        _check_edits(batch.edits, rows, device)


def _check_edits(edits: Edits, rows: int, device: torch.device) -> None:
    count = edits.token_ids.shape[0]
    expected = {
        "edits.row_starts": (edits.row_starts, torch.int32, rows + 1),
        "edits.token_ids": (edits.token_ids, torch.int32, count),
        "edits.bias": (edits.bias, torch.float32, count),
        "edits.counts": (edits.counts, torch.float32, count),
        "edits.flags": (edits.flags, torch.int32, count),
        "edits.repetition": (edits.repetition, torch.float32, rows),
        "edits.presence": (edits.presence, torch.float32, rows),
        "edits.frequency": (edits.frequency, torch.float32, rows),
    }
    for name, (tensor, dtype, size) in expected.items():
        require(name, tensor, shape=(size,), dtypes=(dtype,), device=device)
