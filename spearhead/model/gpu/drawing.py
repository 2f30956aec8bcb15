"""Draws on a GPU: all rows of a step in one go, as if every draft were accepted.

A row counts only if all drafts before it were accepted, and then its history is what was assumed.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
import numpy.typing as npt
import torch

from kernels.sample import SEEN, SUPPRESSED, Edits, Samples, SamplingBatch
from kernels.sample import sample as sample_rows
from spearhead.model.drawing import Drawn, DrawRequest, ends
from spearhead.model.gpu.upload import upload
from spearhead.model.sampling import History, Logprobs, Sample, SamplingParameters

_NO_FLOOR = float(np.finfo(np.float32).min)
_ALTERNATIVES = 20  # computed whenever any are wanted: kernels are compiled for a number of them


@dataclass(frozen=True, slots=True, kw_only=True)
class _RowEdits:
    """Changes of one row's logits, each token once."""

    token_ids: npt.NDArray[np.int32]
    bias: npt.NDArray[np.float32]
    counts: npt.NDArray[np.float32]
    flags: npt.NDArray[np.int32]


@torch.inference_mode()
def draw_together(requests: Sequence[DrawRequest]) -> list[list[Drawn]]:
    """Draws every row of every request in a few launches, and copies back tokens instead of logits."""
    if not requests:
        return []
    logits = requests[0].logits if len(requests) == 1 else torch.cat([one.logits for one in requests])
    with torch.cuda.device(logits.device.index if logits.is_cuda else -1):
        samples = sample_rows(logits, sampling_batch(requests, logits.device))
        return _sort_out(requests, samples)


def sampling_batch(requests: Sequence[DrawRequest], device: torch.device) -> SamplingBatch:
    """The laws of all rows, on a device.

    Args:
        requests: At least one.
        device: Where the logits are.
    """
    rows = [(law, length) for one in requests for law, length in _laws(one)]
    laws = [law for law, _ in rows]
    edits = [edit for one in requests for edit in _edits(one)]
    wanted = [one.logprob_count for one in requests if one.logprob_count is not None]
    arrays: list[npt.NDArray[np.generic]] = [
        np.array([law.temperature for law in laws], np.float32),
        np.array([law.top_k for law in laws], np.int32),
        np.array([law.top_p for law in laws], np.float64),
        np.array([np.log(law.min_p) if law.min_p > 0 else _NO_FLOOR for law in laws], np.float32),
        np.array([law.seed for law in laws], np.uint64).view(np.int64),
        np.array([length for _, length in rows], np.int64),
    ]
    edited = any(len(edit.token_ids) for edit in edits)
    sent = upload([*arrays, *(_edit_arrays(edits, laws) if edited else ())], device)
    temperature, top_k, top_p, log_min_p, seeds, positions, *rest = sent
    return SamplingBatch(
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        log_min_p=log_min_p,
        seeds=seeds,
        positions=positions,
        filtered=any(law.top_k > 0 or law.top_p < 1 or law.min_p > 0 for law in laws),
        edits=Edits(**dict(zip(_EDIT_FIELDS, rest, strict=True))) if edited else None,
        alternatives=_alternatives(wanted, requests[0].logits.shape[1]),
    )


def _alternatives(wanted: Sequence[int], vocabulary: int) -> int | None:
    return min(max(_ALTERNATIVES, *wanted), vocabulary) if wanted else None


def compile_draws(vocab_size: int, device: torch.device) -> None:
    """Draws once in every way that a request may ask for, so that no request waits for a compiler.

    Args:
        vocab_size: Of the logits that will be drawn from.
        device: A CUDA device.
    """
    none = np.empty(0, np.int64)
    for top_k, biased, logprob_count in product((0, 5), (False, True), (None, 0)):
        law = SamplingParameters(
            top_k=top_k,
            bias_token_ids=none if not biased else np.zeros(1, np.int64),
            bias_values=np.ones(int(biased), np.float32),
            suppressed_token_ids=none,
        )
        request = DrawRequest(
            logits=torch.zeros(1, vocab_size, device=device),
            tokens=(0,),
            draft_count=0,
            law=law,
            logprob_count=logprob_count,
        )
        draw_together([request])


_EDIT_FIELDS = (
    "row_starts", "token_ids", "bias", "counts", "flags", "repetition", "presence", "frequency",
)  # fmt: skip


def _laws(request: DrawRequest) -> Iterator[tuple[SamplingParameters, int]]:
    """Each row's law and how many tokens precede the one that is drawn."""
    for index in range(request.draft_count + 1):
        yield request.law, request.known + index


def _edits(request: DrawRequest) -> Iterator[_RowEdits]:
    law = request.law
    history = History(request.tokens[: request.known], law)
    for index in range(request.draft_count + 1):
        yield _row_edits(law, history)
        if index < request.draft_count:
            history.append(request.tokens[request.known + index])


def _row_edits(law: SamplingParameters, history: History) -> _RowEdits:
    none = np.empty(0, np.int64)
    suppressed = law.suppressed_token_ids if history.length < law.suppress_below_length else none
    seen, seen_counts = history.counts() if law.needs_history else (none, np.empty(0, np.float32))
    token_ids, places = np.unique(np.concatenate([law.bias_token_ids, suppressed, seen]), return_inverse=True)
    biased, hidden, old = np.split(places, np.cumsum([len(law.bias_token_ids), len(suppressed)]))
    bias, counts = np.zeros((2, len(token_ids)), np.float32)
    flags = np.zeros(len(token_ids), np.int32)
    np.add.at(bias, biased, law.bias_values)
    flags[hidden] |= SUPPRESSED
    flags[old] |= SEEN
    counts[old] = seen_counts
    return _RowEdits(token_ids=token_ids.astype(np.int32), bias=bias, counts=counts, flags=flags)


def _edit_arrays(
    edits: Sequence[_RowEdits], laws: Sequence[SamplingParameters]
) -> list[npt.NDArray[np.generic]]:
    """In the order of ``_EDIT_FIELDS``."""
    return [
        np.cumsum([0, *(len(edit.token_ids) for edit in edits)], dtype=np.int32),
        np.concatenate([edit.token_ids for edit in edits]),
        np.concatenate([edit.bias for edit in edits]),
        np.concatenate([edit.counts for edit in edits]),
        np.concatenate([edit.flags for edit in edits]),
        np.array([law.repetition_penalty for law in laws], np.float32),
        np.array([law.presence_penalty for law in laws], np.float32),
        np.array([law.frequency_penalty for law in laws], np.float32),
    ]


def _sort_out(requests: Sequence[DrawRequest], samples: Samples) -> list[list[Drawn]]:
    token_ids, margins, finite = (
        tensor.tolist() for tensor in (samples.token_ids, samples.margin, samples.finite)
    )
    details = _row_logprobs(samples)
    outcome: list[list[Drawn]] = []
    first = 0
    for request in requests:
        drawn: list[Drawn] = []
        for index in range(request.draft_count + 1):
            row = first + index
            chosen = Sample(
                token_id=token_ids[row], margin=margins[row], probability=None, finite=finite[row]
            )
            report = None
            if details is not None and request.logprob_count is not None and chosen.finite:
                report = details.of_row(row, request.logprob_count)
            drawn.append(Drawn(sample=chosen, logprobs=report))
            if ends(request, index, chosen):
                break
        outcome.append(drawn)
        first += request.draft_count + 1
    return outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class _HostLogprobs:
    """Log-probabilities of all rows, as copied back."""

    logprob: npt.NDArray[np.float32]
    rank: npt.NDArray[np.int32]
    top_token_ids: npt.NDArray[np.int64]
    top_logprobs: npt.NDArray[np.float32]

    def of_row(self, row: int, count: int) -> Logprobs:
        return Logprobs(
            logprob=float(self.logprob[row]),
            rank=int(self.rank[row]),
            top_token_ids=self.top_token_ids[row, :count],
            top_logprobs=self.top_logprobs[row, :count],
        )


def _row_logprobs(samples: Samples) -> _HostLogprobs | None:
    found = samples.logprobs
    if found is None:
        return None
    return _HostLogprobs(
        logprob=found.logprob.numpy(force=True),
        rank=found.rank.numpy(force=True),
        top_token_ids=found.top_token_ids.numpy(force=True).astype(np.int64),
        top_logprobs=found.top_logprobs.numpy(force=True),
    )
