"""Attention of new tokens over paged keys and values, for verification steps and chunks of prompts."""

from torch import Tensor

from kernels.compensator.layout import GpuCompensator
from kernels.paged_attention import reference
from kernels.paged_attention.batch import Attended, AttentionConfig, PagedBatch, default_config
from kernels.producer import CodeWorkspace, gated_codes

__all__ = ["Attended", "AttentionConfig", "PagedBatch", "default_config", "paged_attention"]


def paged_attention(
    query: Tensor,
    cache: Tensor,
    batch: PagedBatch,
    scale: float,
    window: int | None = None,
    compensator: GpuCompensator | None = None,
    workspace: CodeWorkspace | None = None,
) -> Attended:
    """Softmax attention of each row over the keys up to its own position, and gated codes of the result.

    Args:
        query: ``(N, H, D)``, heads of a row contiguous.
        cache: ``(slots, 2, KV, D)`` of the same type, keys and values of one layer, the new tokens' included.
        batch: Rows and pages.
        scale: Of the scores.
        window: Sliding window, 1 or more; ``None`` = all.
        compensator: Of the product that reads the result, or ``None``.
        workspace: Needed with a gated compensator on a GPU.

    Raises:
        ValueError: On a GPU, a tensor of the wrong shape, type, device or stride.
    """
    if not query.is_cuda:
        y = reference.paged_attention(query, cache, batch, scale, window).to(query.dtype)
        return Attended(y=y, codes=None if compensator is None else gated_codes(y, compensator)[None])
    from kernels.paged_attention.launch import launch

    return launch(query, cache, batch, scale, window, compensator, workspace)
