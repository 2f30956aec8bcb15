"""The start-up proof finds blocks that work and notices a decoder that does not."""

import dataclasses

import torch

from spearhead.model.decoder import Decoder
from spearhead.model.invariance import decoder_invariant, make_invariant


def test_blocks_are_found_for_a_real_decoder(tiny_engine):
    engine = tiny_engine()
    assert make_invariant(engine.decoder, list(engine.variants.values()))
    assert engine.decoder.row_blocks.attention % 4 == 0


class _DependsOnRowCount(Decoder):
    """A decoder whose logits betray how many rows were computed together."""

    def forward(self, weights, segments, token_ids, logit_rows):
        result = super().forward(weights, segments, token_ids, logit_rows)
        return dataclasses.replace(result, logits=result.logits * (1 + 2**-20 * len(token_ids)))


def test_a_decoder_that_depends_on_its_batch_is_caught(tiny_engine):
    engine = tiny_engine()
    decoder = engine.decoder
    bad = _DependsOnRowCount(
        decoder.config,
        decoder.storage,
        context_length=256,
        row_blocks=decoder.row_blocks,
        device=torch.device("cpu"),
    )
    assert not decoder_invariant(bad, engine.variants["fp16"])
