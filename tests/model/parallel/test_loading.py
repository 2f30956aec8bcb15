"""Ranks load together."""

from spearhead.model.checkpoint import load_variants, open_checkpoint
from spearhead.model.loading import load_model
from spearhead.model.parallel import SingleRank
from spearhead.model.settings import KvCacheSettings, ModelSettings


class Recorder(SingleRank):
    """Writes down what it is asked for."""

    def __init__(self):
        self.asked = []

    def meet(self):
        self.asked.append("meet")

    def agree(self, proposal):
        self.asked.append("exchange")
        return proposal


def test_a_rank_whose_weights_are_read_waits_for_the_others_before_it_exchanges_anything(tiny_checkpoint):
    checkpoint, ranks = open_checkpoint(str(tiny_checkpoint("llama"))), Recorder()

    def read(dtype, device):
        ranks.asked.append("read")
        return load_variants(checkpoint, variants=("fp16",), dtype=dtype, device=device)

    load_model(
        checkpoint,
        ModelSettings(path="tiny", dtype="float32"),
        KvCacheSettings(page_count=96),
        config=checkpoint.config,
        load_weights=read,
        ranks=ranks,
    )
    assert ranks.asked[:3] == ["read", "meet", "exchange"]
