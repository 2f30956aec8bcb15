"""Samples until enough sequences are kept; goes on after an interruption with the batches it finished."""

from collections.abc import Callable
from pathlib import Path

import torch

from spearhead.errors import CalibrationError
from spearhead.quant.layers import LayerSource
from spearhead.quant.self_sampling.config import SamplingTokens, SelfSamplingConfig
from spearhead.quant.self_sampling.generation import generate
from spearhead.quant.self_sampling.repetition import repeated_shares
from spearhead.quant.self_sampling.store import SampledSequences, SamplingOrigin, load_sequences

_MAX_REJECTED_SHARE = 0.75
"""Of at least ``_TRIAL`` sequences: more rejections mean a model that writes no text."""
_TRIAL = 64

Progress = Callable[[int, int], None]
"""Told the tokens written so far and the tokens that are wanted in all."""


def self_sample(
    source: LayerSource,
    config: SelfSamplingConfig,
    tokens: SamplingTokens,
    *,
    revision: str,
    work: Path | None = None,
    progress: Progress | None = None,
) -> SampledSequences:
    """Sequences that the model writes: ancestral samples, so that losses are unbiased under its own law.

    Sequences that repeat themselves are replaced by further ones.

    Args:
        source: The full-precision model.
        config: How many, how long, from which seed.
        tokens: The ids that frame documents.
        revision: Digest of the model, kept with the sequences.
        work: Finished batches wait here; a later call with the same arguments goes on with them. Remove it
            once the result is saved.
        progress: Called after every token of a batch.

    Returns:
        Exactly ``config.sequence_count`` sequences.

    Raises:
        CalibrationError: Sequences longer than the model's context, a configuration that does not fit the
            frame, a work folder of another run, or a model that repeats itself most of the time.
    """
    _check_fit(source, config, tokens)
    sampler = _BatchSampler(source, SamplingOrigin(config=config, tokens=tokens, revision=revision), work)
    kept: list[SampledSequences] = []
    missing, rejected = config.sequence_count, 0
    while missing:
        # Replacements are few: twice as many in step cost no more time and spare a further round.
        rows = min(config.batch_size, 2 * missing if rejected else missing)
        drawn = sampler.sample(len(kept), rows, missing, progress)
        sound = drawn.select(_sound_rows(drawn))
        rejected += rows - len(sound.token_ids)
        kept.append(sound.select(range(min(missing, len(sound.token_ids)))))
        missing -= len(kept[-1].token_ids)
        _check_rejected(rejected, config.sequence_count - missing + rejected)
    return SampledSequences(
        token_ids=torch.cat([part.token_ids for part in kept]),
        document_starts=torch.cat([part.document_starts for part in kept]),
        rejected=rejected,
        origin=sampler.origin,
    )


class _BatchSampler:
    """Generates batches, or finds them in the work folder."""

    def __init__(self, source: LayerSource, origin: SamplingOrigin, work: Path | None) -> None:
        self.origin = origin
        self._source = source
        self._work = work

    def sample(self, batch: int, rows: int, missing: int, progress: Progress | None) -> SampledSequences:
        """One batch; ``missing`` sequences are still wanted before it."""
        path = None if self._work is None else self._work / f"batch-{batch:05}.safetensors"
        if path is not None and path.exists():
            return load_sequences(path, self.origin)
        config = self.origin.config
        total = config.sequence_count * config.length

        def report(position: int) -> None:
            if progress is not None:
                done = (config.sequence_count - missing) * config.length + min(rows, missing) * position
                progress(done, total)

        token_ids, starts = generate(
            self._source, config, self.origin.tokens, batch=batch, rows=rows, on_token=report
        )
        drawn = SampledSequences(token_ids=token_ids, document_starts=starts, rejected=0, origin=self.origin)
        if path is not None:
            drawn.save(path)
        return drawn


def _sound_rows(drawn: SampledSequences) -> list[int]:
    limit = drawn.origin.config.max_repeated_share
    return [row for row, share in enumerate(repeated_shares(drawn.token_ids)) if share <= limit]


def _check_fit(source: LayerSource, config: SelfSamplingConfig, tokens: SamplingTokens) -> None:
    if config.length > source.config.context_length:
        raise CalibrationError(
            f"sequences of {config.length} tokens exceed the model's context of "
            f"{source.config.context_length}; lower length"
        )
    if tokens.vocab_size > source.config.vocab_size:
        raise CalibrationError(
            f"the tokenizer has {tokens.vocab_size} ids, the model's embedding {source.config.vocab_size} "
            "rows; they do not belong together"
        )


def _check_rejected(rejected: int, drawn: int) -> None:
    if drawn >= _TRIAL and rejected > _MAX_REJECTED_SHARE * drawn:
        raise CalibrationError(
            f"{rejected} of {drawn} sampled sequences repeat themselves; the checkpoint does not write text. "
            "Check it, raise temperature, or raise max_repeated_share"
        )
