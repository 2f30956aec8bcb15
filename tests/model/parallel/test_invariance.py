"""With ranks, too, a row's bits do not depend on its batch."""

import torch

from spearhead.model.attention import Segment
from spearhead.model.checkpoint import open_checkpoint
from spearhead.model.invariance import make_invariant

TOKENS = [(37 * i) % 320 for i in range(40)]


def test_ranks_agree_on_row_blocks_and_prove_what_they_compute_together(
    tiny_checkpoint, part_decoder, ranked
):
    checkpoint = open_checkpoint(str(tiny_checkpoint("llama", num_key_value_heads=4)))

    def prove(ranks):
        part = part_decoder(checkpoint, ranks, ("fp16",))
        assert make_invariant(part.decoder, list(part.weights.values()))
        return part.decoder.row_blocks, beside_others(part)

    proved = ranked(3, prove)
    assert len({blocks for blocks, _ in proved}) == 1
    assert all(torch.equal(alone, together) for _, (alone, together) in proved)


def beside_others(part):
    """The last logits of one prompt: alone and whole, and in two chunks of which the last has company."""
    weights, forward = part.weights["fp16"], part.decoder.forward
    alone = forward(weights, [Segment(pages=range(3), start=0, count=40)], TOKENS, [39]).logits[0]
    forward(weights, [Segment(pages=range(3, 6), start=0, count=23)], TOKENS[:23], [])
    company = Segment(pages=range(6, 9), start=0, count=40)
    late = Segment(pages=range(3, 6), start=23, count=17)
    together = forward(weights, [company, late], [*TOKENS[::-1], *TOKENS[23:]], [56]).logits[0]
    return alone, together
