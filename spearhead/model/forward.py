"""What a decoder is to its users: the processor's (:mod:`spearhead.model.decoder`) or a GPU's."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from spearhead.model.architecture import ModelConfig
from spearhead.model.attention import Segment
from spearhead.model.kv_cache import KvStorage
from spearhead.model.weights import ModelWeights


@dataclass(frozen=True, slots=True, kw_only=True)
class Forward:
    """The result of one forward pass.

    Attributes:
        logits: ``(len(logit_rows), V)`` float32 on the decoder's device; V is the padded vocabulary.
        finite: One a token: whether everything computed for it is a finite number.
    """

    logits: Tensor
    finite: list[bool]


class ForwardPass(Protocol):
    """Computes logits, and writes keys and values to its storage.

    Attributes:
        config: Shape of the model.
        storage: KV pages.
        context_length: Longest sequence in tokens.
    """

    config: ModelConfig
    storage: KvStorage
    context_length: int

    def forward(
        self,
        weights: ModelWeights,
        segments: Sequence[Segment],
        token_ids: Sequence[int],
        logit_rows: Sequence[int],
    ) -> Forward:
        """Computes the KV of new tokens and the logits of some of them.

        Args:
            weights: One variant.
            segments: New tokens of each sequence; their pages are allocated already.
            token_ids: All new tokens, segment after segment: N of them.
            logit_rows: Rows of ``token_ids`` whose logits are wanted, rising.

        Returns:
            Logits, and which rows are finite.
        """
        ...
