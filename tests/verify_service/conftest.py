"""A verifier over a tiny random model, and the loop that a scheduler would run."""

from dataclasses import dataclass, field

import numpy as np
import pytest

from spearhead.model.checkpoint import load_variants, open_checkpoint
from spearhead.model.engine import Failure
from spearhead.model.loading import load_model
from spearhead.model.quantization import QuantizationScheme
from spearhead.model.sampling import SamplingParameters
from spearhead.model.settings import KvCacheSettings, ModelSettings
from verify_service.verifier import Verifier, VerifyItem


@pytest.fixture
def make_verifier(tiny_checkpoint):
    """``make_verifier(variant="fp16", dtype="float32", pages=96, …) -> Verifier`` with fp16 and w4."""

    def make(
        architecture="llama",
        *,
        variant="fp16",
        dtype="float32",
        device="cpu",
        pages=96,
        seed=0,
        **overrides,
    ):
        checkpoint = open_checkpoint(str(tiny_checkpoint(architecture, seed=seed, **overrides)))
        model = load_model(
            checkpoint,
            ModelSettings(path="tiny", dtype=dtype, device=device),
            KvCacheSettings(page_count=pages),
            config=checkpoint.config,
            load_weights=lambda dtype, device: load_variants(
                checkpoint,
                variants=("fp16", "w4"),
                dtype=dtype,
                device=device,
                quantization=QuantizationScheme.parse("group32"),
                keep_four_bits=device != "cpu",
            ),
        )
        return Verifier(model.engine, variant, model.draw)

    return make


def sampling(**changes):
    """A resolved sampling law; greedy unless told otherwise."""
    empty = {
        "temperature": 0.0,
        "bias_token_ids": np.empty(0, np.int64),
        "bias_values": np.empty(0, np.float32),
        "suppressed_token_ids": np.empty(0, np.int64),
    }
    return SamplingParameters(**(empty | changes))


@dataclass
class Request:
    """One sequence as the scheduler sees it; ``drafter(tokens, k) -> drafts``."""

    key: object
    prompt: list
    law: SamplingParameters
    drafter: object = None
    draft_count: int = 0
    chunk: int | None = None
    logprob_count: int | None = None
    full_precision: bool = False
    epoch: int = 0
    computed: int = 0
    tokens: list = field(default_factory=list)
    rounds: int = 0
    accepted: int = 0
    drafted: int = 0
    details: list = field(default_factory=list)

    def __post_init__(self):
        self.tokens = list(self.prompt)

    @property
    def output(self):
        return self.tokens[len(self.prompt) :]

    def item(self):
        drafts = []
        if self.drafter is not None and self.output:
            drafts = list(self.drafter(self.tokens, self.draft_count))
        self.drafts = drafts
        return VerifyItem(
            key=self.key,
            epoch=self.epoch,
            committed_length=self.computed,
            token_ids=self.tokens[self.computed :] + drafts,
            draft_count=len(drafts),
            max_compute_tokens=None if drafts else self.chunk,
            sampling=self.law,
            full_precision=self.full_precision,
            logprob_count=self.logprob_count,
        )

    def restart(self):
        self.epoch, self.computed = self.epoch + 1, 0

    def apply(self, outcome):
        assert not isinstance(outcome, Failure), outcome
        self.computed = outcome.computed_length
        self.details += outcome.logprobs
        if outcome.emitted:
            self.tokens += outcome.emitted
            self.rounds += 1
            self.drafted += len(self.drafts)
            self.accepted += outcome.accepted_count


def run(verifier, requests, count, on_step=None):
    """Steps all requests together until each has ``count`` output tokens; returns the outputs."""
    step = 0
    while any(len(request.output) < count for request in requests):
        active = [request for request in requests if len(request.output) < count]
        if on_step is not None:
            on_step(step, active)
        outcomes = verifier.step([request.item() for request in active]).outcomes
        for request, outcome in zip(active, outcomes, strict=True):
            request.apply(outcome)
        step += 1
        verifier.engine.check_integrity()
    return [request.output[:count] for request in requests]


@pytest.fixture
def loop():
    """The helpers of this module: ``loop.run``, ``loop.Request``, ``loop.sampling``."""

    class Loop:
        pass

    Loop.run, Loop.Request, Loop.sampling = staticmethod(run), Request, staticmethod(sampling)
    return Loop
