"""Captured steps without a GPU: what is captured runs again over the same memory, as a graph would."""

import pytest
import torch

from spearhead.model.attention import Segment
from spearhead.model.checkpoint import open_checkpoint
from spearhead.model.gpu.graph_shapes import graph_shapes
from spearhead.model.gpu.graphs import StepGraphs

TOKENS = [(37 * i) % 320 for i in range(60)]


class Repeats:
    """Captures by running once; counts what is repeated."""

    def __init__(self) -> None:
        self.captured = self.repeated = 0

    def __call__(self, run):
        run()
        self.captured += 1

        def again() -> None:
            self.repeated += 1
            run()

        return again


@pytest.fixture
def make(tiny_checkpoint, load_for_gpu, make_decoder):
    """``make(graphs) -> (decoder, weights, capture)``."""

    def build(*, graphs: bool):
        checkpoint = open_checkpoint(str(tiny_checkpoint("llama")))
        weights = load_for_gpu(checkpoint, ("fp16",))["fp16"]
        decoder, capture = make_decoder(checkpoint.config), Repeats()
        if graphs:
            captured = StepGraphs(
                decoder.compute,
                graph_shapes(decoder.context_length),
                page_size=16,
                vocab_size=checkpoint.config.vocab_size,
                device=torch.device("cpu"),
                capture=capture,
            )
            captured.add(weights)
            decoder.graphs = captured
        return decoder, weights, capture

    return build


def steps(decoder, weights):
    """Logits and finite rows of a prompt, then of steps of few rows, one and several sequences."""
    mine, other = (7, 2, 5, 3), (1, 4)
    plan = [
        ([Segment(pages=mine, start=0, count=40)], [39]),
        ([Segment(pages=mine, start=40, count=1)], [0]),
        ([Segment(pages=mine, start=41, count=3), Segment(pages=other, start=0, count=5)], [0, 2, 7]),
        ([Segment(pages=other, start=5, count=2)], []),
        ([Segment(pages=other, start=7, count=1), Segment(pages=mine, start=44, count=16)], [0, 16]),
    ]
    results = []
    for segments, rows in plan:
        count = sum(segment.count for segment in segments)
        results.append(decoder.forward(weights, segments, TOKENS[:count], rows))
    return results


def test_replayed_steps_are_the_launched_ones(make):
    launched, weights, _ = make(graphs=False)
    expected = steps(launched, weights)
    decoder, weights, capture = make(graphs=True)
    found = steps(decoder, weights)
    assert capture.repeated == 4  # all but the prompt
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one.logits, other.logits)
        assert one.finite == other.finite
    for mine, law in zip(decoder.storage.layers, launched.storage.layers, strict=True):
        torch.testing.assert_close(mine, law)


def test_capturing_writes_to_no_page(make):
    decoder, _, capture = make(graphs=True)
    assert capture.captured == len(decoder.graphs) == len(graph_shapes(decoder.context_length))
    launched, _, _ = make(graphs=False)
    for mine, untouched in zip(decoder.storage.layers, launched.storage.layers, strict=True):
        assert torch.equal(mine, untouched)


def test_logits_outlive_the_next_replay(make):
    decoder, weights, _ = make(graphs=True)
    first = decoder.forward(weights, [Segment(pages=(0,), start=0, count=2)], [5, 6], [1]).logits
    kept = first.clone()
    decoder.forward(weights, [Segment(pages=(1,), start=0, count=2)], [7, 8], [1])
    assert torch.equal(first, kept)


def test_rows_that_are_not_finite_are_named_and_no_others(make):
    decoder, weights, _ = make(graphs=True)
    weights.embedding[TOKENS[2]] = float("nan")
    parts = [Segment(pages=(0,), start=0, count=2), Segment(pages=(1,), start=0, count=1)]
    assert decoder.forward(weights, parts, TOKENS[:3], [0]).finite == [True, True, False]


def test_weights_that_were_not_captured_are_launched(make):
    decoder, weights, capture = make(graphs=True)
    _, others, _ = make(graphs=False)
    segment = Segment(pages=(0,), start=0, count=2)
    decoder.forward(others, [segment], [5, 6], [1])
    assert capture.repeated == 0
    decoder.forward(weights, [segment], [5, 6], [1])
    assert capture.repeated == 1
