"""Greedy text of a real model on the processor and on the GPU, and how close the call was where they part.

``SPEARHEAD_TEST_MODEL=FOLDER pytest -m gpu -s tests/model/gpu/test_same_text.py``; FOLDER is a checkpoint,
quantised or not. ``-s`` shows the list.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
import torch

from spearhead.model.checkpoint import load_variants, offered_variants, open_checkpoint
from spearhead.model.engine import Advance, Advanced, SequenceEngine
from spearhead.model.loading import load_model
from spearhead.model.settings import KvCacheSettings, ModelSettings
from spearhead.tokenizer import Tokenizer

MODEL = os.environ.get("SPEARHEAD_TEST_MODEL", "")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="compares with a CUDA device"),
    pytest.mark.skipif(not MODEL, reason="SPEARHEAD_TEST_MODEL names no checkpoint"),
]

NEW_TOKENS = 32
PROMPTS = [
    "The capital of France is",
    "Water boils at a temperature of",
    "The three primary colours are",
    "In 1969, the first human",
    "A list of fruits: apple,",
    "def add(a, b):",
    "The opposite of hot is",
    "Once upon a time, in a small village,",
    "To make bread you need",
    "The largest planet in the solar system",
    "Photosynthesis is the process by which",
    "Dear Sir or Madam,",
    "One, two, three, four,",
    "The recipe begins with chopping",
    "Machine learning is a field of",
    "Monday, Tuesday, Wednesday,",
    "The sun rises in the",
    "import numpy as",
    "Her favourite book was about",
    "If it rains tomorrow, we will",
]
# Where both round the same numbers to a compute type, logits of up to 32 move by a few roundings of it.
CLOSE = {"float32": 0.01, "bfloat16": 0.5}


@dataclass(frozen=True)
class Text:
    tokens: list[int]
    margins: list[float]


def engines(dtype: str, device: str) -> tuple[SequenceEngine, list[str]]:
    checkpoint = open_checkpoint(MODEL)
    variants = offered_variants(checkpoint)
    model = load_model(
        checkpoint,
        ModelSettings(
            path=MODEL, dtype=dtype, device=device, context_length=256, allow_batch_variance=device == "cpu"
        ),
        KvCacheSettings(page_count=512),
        config=checkpoint.config,
        load_weights=lambda dtype, device: load_variants(
            checkpoint, variants=variants, dtype=dtype, device=device, keep_four_bits=dtype != torch.float32
        ),
    )
    return model.engine, list(variants)


def advances(texts: list[list[int]], computed: list[int], variant: str) -> Iterator[Advance]:
    for key, (tokens, done) in enumerate(zip(texts, computed, strict=True)):
        yield Advance(
            key=(variant, key),
            epoch=0,
            committed_length=done,
            token_ids=tokens[done:],
            logit_count=1,
            max_compute_tokens=None,
            variant=variant,
        )


def greedy(engine: SequenceEngine, prompts: list[list[int]], variant: str) -> list[Text]:
    texts, computed = [list(prompt) for prompt in prompts], [0] * len(prompts)
    margins: list[list[float]] = [[] for _ in prompts]
    for _ in range(NEW_TOKENS):
        for key, outcome in enumerate(engine.advance(list(advances(texts, computed, variant)))):
            assert isinstance(outcome, Advanced), outcome
            best, second = outcome.rows[0].topk(2).values.tolist()
            computed[key] = len(texts[key])
            texts[key].append(int(outcome.rows[0].argmax()))
            margins[key].append(best - second)
    engine.release_where(engine.live_keys())
    return [
        Text(tokens=text[len(prompt) :], margins=gaps)
        for text, prompt, gaps in zip(texts, prompts, margins, strict=True)
    ]


@pytest.mark.parametrize("dtype", CLOSE)
def test_texts_are_equal_or_part_where_two_tokens_are_nearly_as_likely(dtype):
    tokenizer = Tokenizer.load(open_checkpoint(MODEL).path)
    prompts = [tokenizer.encode(prompt) for prompt in PROMPTS]
    (here, variants), (there, _) = engines(dtype, "cpu"), engines(dtype, "cuda")
    widest = 0.0
    for variant in variants:
        equal = 0
        pairs = zip(PROMPTS, greedy(here, prompts, variant), greedy(there, prompts, variant), strict=True)
        for prompt, cpu, gpu in pairs:
            places = [i for i in range(NEW_TOKENS) if cpu.tokens[i] != gpu.tokens[i]]
            equal += not places
            if places:
                first = places[0]
                widest = max(widest, cpu.margins[first])
                print(
                    f"{dtype} {variant} {prompt!r}: token {first}: "
                    f"{tokenizer.decode([cpu.tokens[first]])!r} on the processor (ahead by "
                    f"{cpu.margins[first]:.4f}), {tokenizer.decode([gpu.tokens[first]])!r} on the GPU "
                    f"(ahead by {gpu.margins[first]:.4f})"
                )
        print(f"{dtype} {variant}: {equal} of {len(PROMPTS)} texts of {NEW_TOKENS} tokens are equal")
    assert widest < CLOSE[dtype]
