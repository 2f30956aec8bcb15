"""The product's sampling law for whole batches: what a model picks, given text and shared noise."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from spearhead.errors import CalibrationError
from spearhead.model.sampling import History, SamplingParameters, sample
from spearhead.quant.decoder import KeyValues, Rotary, layer_forward, rms_norm
from spearhead.quant.evaluation.model_variant import EvaluatedModel


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingLaw:
    """How tokens are picked from logits.

    Attributes:
        temperature: 0 = greedy.
        seed: Of the first sequence; each further one has the next.
        vocab_size: Ids from here on are padding of the embedding and are never picked, as when serving.
    """

    temperature: float
    seed: int
    vocab_size: int

    def parameters(self, row: int) -> SamplingParameters:
        """What a request for sequence ``row`` would be sampled with."""
        return SamplingParameters(
            temperature=self.temperature,
            seed=self.seed + row,
            bias_token_ids=np.empty(0, np.int64),
            bias_values=np.empty(0, np.float32),
            suppressed_token_ids=np.empty(0, np.int64),
        )

    def pick(self, logits: Tensor, row: int, position: int) -> int:
        """The token at a position of a sequence.

        Args:
            logits: ``(V,)``.
            row: Which sequence.
            position: Index of the token in it, which is the counter of the noise.

        Raises:
            CalibrationError: Logits that are not finite.
        """
        parameters = self.parameters(row)
        # No penalty looks at the tokens so far; only their number matters.
        drawn = sample(logits[: self.vocab_size].numpy(), parameters, History(range(position), parameters))
        if not drawn.finite:
            raise CalibrationError(
                f"logits at position {position} hold NaN or infinity; use float32 or bfloat16"
            )
        return drawn.token_id


@torch.no_grad()
def continue_prompts(
    model: EvaluatedModel,
    prompts: Tensor,
    token_count: int,
    law: SamplingLaw,
    on_token: Callable[[], None] | None = None,
) -> Tensor:
    """Lets a model write on, all prompts in step; end tokens end nothing, so that lengths are equal.

    Args:
        model: Its layers should be in memory: each token visits all.
        prompts: int64 ``(P, N)``.
        token_count: Tokens to write.
        law: How to pick them.
        on_token: Called after each token of all prompts.

    Returns:
        int64 ``(P, N + token_count)``, prompts included, on the CPU.
    """
    source, total = model.source, prompts.shape[1] + token_count
    rotary = Rotary.build(source.config, total, source.device)
    shape = (len(prompts), source.config.kv_head_count, total, source.config.head_dim)
    empty = torch.zeros(shape, dtype=source.dtype, device=source.device)
    past = [KeyValues(keys=empty.clone(), values=empty.clone()) for _ in range(source.config.layer_count)]
    sequences = torch.cat((prompts.cpu(), torch.zeros(len(prompts), token_count, dtype=torch.int64)), dim=1)
    head = source.head[: law.vocab_size].float()
    start = 0
    for position in range(prompts.shape[1], total):
        hidden = source.embedding[sequences[:, start:position].to(source.device)]
        for index, key_values in enumerate(past):
            hidden = layer_forward(
                source.config,
                index,
                source.layer(index),
                hidden,
                rotary.part(start, position),
                model.linear,
                key_values,
            )
        last = rms_norm(hidden[:, -1], source.final_norm, source.config.rms_norm_eps)
        logits = (last.float() @ head.T).cpu()
        sequences[:, position] = torch.tensor(
            [law.pick(row, index, position) for index, row in enumerate(logits)]
        )
        start = position
        if on_token is not None:
            on_token()
    return sequences


@torch.no_grad()
def picks_along(
    model: EvaluatedModel, sequences: Tensor, start: int, law: SamplingLaw, *, tokens_at_once: int = 2048
) -> Tensor:
    """What a model picks at every position from ``start`` on, given the sequence up to there.

    Args:
        model: Any.
        sequences: int64 ``(P, T)``.
        start: First position, at least 1.
        law: The noise of row i of ``sequences`` is that of sequence i.
        tokens_at_once: Tokens that pass through a layer together.

    Returns:
        int64 ``(P, T - start)`` on the CPU.
    """
    hidden = model.final_hidden(sequences, tokens_at_once=tokens_at_once)[:, start - 1 : -1]
    head = model.head[: law.vocab_size].float()
    picks = torch.empty(hidden.shape[:2], dtype=torch.int64)
    for row, states in enumerate(hidden):
        logits = (states.float() @ head.T).cpu()
        picks[row] = torch.tensor([law.pick(one, row, start + t) for t, one in enumerate(logits)])
    return picks
