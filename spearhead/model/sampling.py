"""The sampling law: raw logits of one position to one token id.

Order of the transforms: logit bias, suppression (min_tokens), repetition, frequency and presence
penalties, temperature, min-p, top-k, top-p, then ``argmax(logits + shared noise)``. Every tie goes to the
lowest token id. The functions see one row at a time, so that nothing can depend on the batch.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from spearhead.model.noise import MAX_NOISE, gumbel_noise

Row = npt.NDArray[np.float32]
TokenIds = npt.NDArray[np.int64]

_FIRST_NUCLEUS = 256
_NEAR = np.float32(4.0)
_LOWEST = np.finfo(np.float32).min


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParameters:
    """How one sequence chooses tokens, fully resolved.

    Attributes:
        temperature: 0 = greedy, without noise.
        top_p: Nucleus mass in (0, 1]; 1 = off.
        top_k: Tokens kept; 0 = off.
        min_p: Probability floor relative to the largest; 0 = off.
        seed: Key of the noise.
        presence_penalty: Subtracted once from tokens in the output.
        frequency_penalty: Subtracted per occurrence in the output.
        repetition_penalty: Divides positive, multiplies negative logits of tokens in prompt or output.
        bias_token_ids: (b,) token ids whose logits are biased.
        bias_values: (b,) float32, added to them.
        suppressed_token_ids: Never sampled while the sequence is shorter than ``suppress_below_length``.
        suppress_below_length: Tokens, prompt included.
        prompt_length: Tokens of the prompt; output penalties count from here.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int = 0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    bias_token_ids: TokenIds
    bias_values: Row
    suppressed_token_ids: TokenIds
    suppress_below_length: int = 0
    prompt_length: int = 0

    @property
    def needs_history(self) -> bool:
        """Whether the tokens so far change the distribution."""
        return self.presence_penalty != 0 or self.frequency_penalty != 0 or self.repetition_penalty != 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Logprobs:
    """Log-probabilities of one sampled token under the unmodified distribution.

    Attributes:
        logprob: Of the token.
        rank: Of the token, 1 = most likely.
        top_token_ids: Best first.
        top_logprobs: Theirs.
    """

    logprob: float
    rank: int
    top_token_ids: TokenIds
    top_logprobs: Row


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One sampled token.

    Attributes:
        token_id: The token.
        margin: Gap between the two best raw logits.
        probability: Of the token after all transforms; ``None`` unless asked for.
        finite: False when the row held NaN or positive infinity; the token is meaningless then.
    """

    token_id: int
    margin: float
    probability: float | None
    finite: bool


class History:
    """What a law needs to know of the tokens so far; grows token by token.

    Args:
        tokens: All tokens up to the first position, prompt included.
        parameters: The law; tokens are only counted when it looks at them.
    """

    def __init__(self, tokens: Sequence[int], parameters: SamplingParameters) -> None:
        self.length = len(tokens)
        self._seen: dict[int, int] = {}
        if parameters.needs_history:
            output = Counter(tokens[parameters.prompt_length :])
            self._seen = {token: output.get(token, 0) for token in {*tokens, *output}}

    def append(self, token_id: int) -> None:
        """The next position follows ``token_id``, which is part of the output."""
        self.length += 1
        self._seen[token_id] = self._seen.get(token_id, 0) + 1

    def counts(self) -> tuple[TokenIds, Row]:
        """The tokens so far, each once, and how often the output has each of them."""
        size = len(self._seen)
        return np.fromiter(self._seen, np.int64, size), np.fromiter(self._seen.values(), np.float32, size)


def sample(
    logits: Row, parameters: SamplingParameters, history: History, *, want_probability: bool = False
) -> Sample:
    """Samples the token that follows ``history``.

    Args:
        logits: (V,) float32; modified in place and restored.
        parameters: The law.
        history: The tokens so far. Its length is the position of the new token, and thus the counter of
            the noise.
        want_probability: Compute :attr:`Sample.probability`.
    """
    best = int(logits.argmax())
    top = logits[best]
    if not np.isfinite(top):
        return Sample(token_id=best, margin=0.0, probability=None, finite=False)
    logits[best] = -np.inf
    margin = float(top - logits.max())
    logits[best] = top
    shaped = _shape(logits, parameters, history)
    if parameters.temperature == 0:
        token_id = best if shaped is logits else int(shaped.argmax())
        probability = _probability(shaped, token_id) if want_probability else None
        return Sample(token_id=token_id, margin=margin, probability=probability, finite=True)
    ids, values = _candidates(_scale(shaped, parameters.temperature), parameters)
    chosen = _gumbel_max(ids, values, parameters.seed, history.length)
    probability = _probability(values, chosen) if want_probability else None
    return Sample(token_id=int(ids[chosen]), margin=margin, probability=probability, finite=True)


def logprobs(logits: Row, token_id: int, count: int) -> Logprobs:
    """Log-probabilities of ``token_id`` and of the ``count`` best tokens, from raw logits (V,)."""
    top = logits.max()
    normalizer = top + np.log(np.exp(logits - top, dtype=np.float32).sum(dtype=np.float64))
    best = _best(logits, count)
    return Logprobs(
        logprob=float(logits[token_id] - normalizer),
        rank=int((logits > logits[token_id]).sum()) + 1,
        top_token_ids=best,
        top_logprobs=(logits[best] - normalizer).astype(np.float32),
    )


def processed_distribution(
    logits: Row, parameters: SamplingParameters, history: History
) -> tuple[TokenIds, npt.NDArray[np.float64]]:
    """The law that :func:`sample` draws from at temperature > 0: token ids and their probabilities."""
    shaped = _shape(logits, parameters, history)
    ids, values = _candidates(_scale(shaped, parameters.temperature), parameters)
    weights = np.exp(values.astype(np.float64) - float(values.max()))
    return ids, weights / weights.sum()


def _scale(shaped: Row, temperature: float) -> Row:
    # The largest becomes 0 first, so that no temperature, however small, overflows.
    with np.errstate(over="ignore"):  # to minus infinity, as it should
        scaled: Row = (shaped - shaped.max()) / np.float32(temperature)
    return scaled


def _shape(logits: Row, parameters: SamplingParameters, history: History) -> Row:
    """Bias, suppression and penalties; returns ``logits`` itself when nothing applies."""
    suppress = history.length < parameters.suppress_below_length and len(parameters.suppressed_token_ids) > 0
    if not (len(parameters.bias_token_ids) or suppress or parameters.needs_history):
        return logits
    shaped = logits.copy()
    np.add.at(shaped, parameters.bias_token_ids, parameters.bias_values)
    if suppress:
        shaped[parameters.suppressed_token_ids] = -np.inf
    if parameters.needs_history:
        _penalize(shaped, parameters, history)
    return shaped


def _penalize(shaped: Row, parameters: SamplingParameters, history: History) -> None:
    seen, counts = history.counts()
    values = shaped[seen]
    penalty = np.float32(parameters.repetition_penalty)
    values = np.where(values > 0, values / penalty, values * penalty)
    values -= np.float32(parameters.presence_penalty) * (counts > 0)
    values -= np.float32(parameters.frequency_penalty) * counts
    shaped[seen] = values


def _candidates(scaled: Row, parameters: SamplingParameters) -> tuple[TokenIds, Row]:
    """The tokens that survive min-p, top-k and top-p, in ascending id order, and their scaled logits."""
    floor = scaled.max() + np.float32(np.log(parameters.min_p)) if parameters.min_p > 0 else _LOWEST
    ids = np.flatnonzero(scaled >= floor)
    values = scaled[ids]
    if 0 < parameters.top_k < len(ids):
        kept = np.sort(_best(values, parameters.top_k))
        ids, values = ids[kept], values[kept]
    if parameters.top_p < 1:
        kept = np.sort(_nucleus(values, parameters.top_p))
        ids, values = ids[kept], values[kept]
    return ids, values


def _gumbel_max(ids: TokenIds, values: Row, seed: int, position: int) -> int:
    """Index of the largest ``values + noise``.

    Noise is computed only where it can matter: a token further below the leader's score than the noise
    can reach cannot win.
    """
    near = np.flatnonzero(values >= values.max() - _NEAR)
    leader = (values[near] + gumbel_noise(seed, position, ids[near])).max()
    contenders = np.flatnonzero(values >= leader - MAX_NOISE)
    noisy = values[contenders] + gumbel_noise(seed, position, ids[contenders])
    return int(contenders[noisy.argmax()])


def _nucleus(values: Row, top_p: float) -> TokenIds:
    """Indices of the smallest set of largest values whose probability reaches ``top_p``."""
    weights = np.exp(values - values.max(), dtype=np.float32)
    wanted = top_p * weights.sum(dtype=np.float64)
    size = min(_FIRST_NUCLEUS, len(values))
    while True:
        best = _best(values, size)
        mass = np.cumsum(weights[best], dtype=np.float64)
        if mass[-1] >= wanted or size == len(values):
            return best[: int(np.searchsorted(mass, wanted)) + 1]
        size = min(size * 8, len(values))


def _best(values: Row, count: int) -> TokenIds:
    """Indices of the ``count`` largest values, best first, ties by lowest index."""
    if count == 0:
        return np.empty(0, np.int64)
    if count < len(values):
        threshold = np.partition(values, len(values) - count)[len(values) - count]
        above = np.flatnonzero(values > threshold)
        ties = np.flatnonzero(values == threshold)[: count - len(above)]
        chosen = np.concatenate([above, ties])
    else:
        chosen = np.arange(len(values))
    order = np.lexsort((chosen, -values[chosen]))
    return chosen[order]


def _probability(values: Row, index: int) -> float:
    weights = np.exp(values - values.max(), dtype=np.float32)
    return float(weights[index] / weights.sum(dtype=np.float64))
