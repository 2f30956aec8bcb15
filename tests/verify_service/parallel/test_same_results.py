"""Two ranks give what one gives, whatever is asked of them."""

import pytest

from spearhead.v1 import types_pb2, verify_pb2

PROMPT = [(29 * i + 3) % 300 for i in range(37)]
VARIANTS = {"variants.hold": ["fp16", "w4"], "variants.serve": "fp16", "variants.quantization": "group32"}
COUNT = 24


class Caller:
    """One sequence over the wire, as a scheduler would drive it; ``expected`` are the tokens to come."""

    def __init__(self, number, make_item, expected, *, drafts=0, chunk=None, precision=0):
        self.number, self.make_item, self.expected = number, make_item, expected
        self.drafts, self.chunk, self.precision = drafts, chunk, precision
        self.epoch = self.computed = self.cached = self.accepted = 0
        self.tokens = list(PROMPT)

    @property
    def output(self):
        return self.tokens[len(PROMPT) :]

    def item(self):
        done = len(self.output)
        drafts = list(self.expected[done : done + self.drafts]) if done else []
        if len(drafts) > 1:
            drafts[-1] = (drafts[-1] + 1) % 300  # one is always wrong
        fields = {} if drafts or self.chunk is None else {"max_compute_tokens": self.chunk}
        return self.make_item(
            self.number,
            self.tokens[self.computed :] + drafts,
            epoch=self.epoch,
            committed_length=self.computed,
            draft_token_count=len(drafts),
            precision=self.precision,
            **fields,
        ), drafts

    def apply(self, result, drafts):
        assert not result.HasField("error"), result.error
        self.computed, self.cached = result.computed_length, self.cached + result.cached_token_count
        if result.HasField("next_token_id"):
            self.accepted += result.accepted_draft_count
            self.tokens += [*drafts[: result.accepted_draft_count], result.next_token_id]

    def preempt(self):
        self.epoch, self.computed = self.epoch + 1, 0


def drive(step, callers, on_step=None):
    """Steps all callers together to their ends."""
    number = 0
    while active := [caller for caller in callers if len(caller.output) < COUNT]:
        if on_step is not None:
            on_step(number, active)
        items = [caller.item() for caller in active]
        reply = step(*(item for item, _ in items))
        for caller, (_, drafts), result in zip(active, items, reply.results, strict=True):
            caller.apply(result, drafts)
        number += 1
    return [caller.output[:COUNT] for caller in callers]


@pytest.fixture
def alone(make_verifier, loop):
    """``alone(*variants) -> tokens by each``, of one process."""

    def generate(*variants):
        verifier, outputs = make_verifier(), []
        for variant in variants:
            verifier.set_variant(variant)
            outputs += loop.run(verifier, [loop.Request(variant, PROMPT, loop.sampling())], COUNT)
        return outputs

    return generate


def test_drafts_chunks_prefix_hits_preemption_and_variants_change_no_token(
    start_ranks, tiny_checkpoint, step_item, alone
):
    full, four_bit = alone("fp16", "w4")
    service = start_ranks(tiny_checkpoint("llama"), **VARIANTS)
    assert service.info().rank_count == 2
    with service.stepping() as step:
        first = Caller(1, step_item, full, drafts=4, chunk=9)
        plain = Caller(2, step_item, full)

        def preempt(number, active):
            if number == 7:
                active[0].preempt()

        assert drive(step, [first, plain], preempt) == [full, full]
        assert first.accepted > 5
        hit = Caller(3, step_item, full, drafts=3)
        assert drive(step, [hit]) == [full]
        assert hit.cached >= 32
        freed = step(releases=[1, 2, 3]).free_page_count
        assert freed == 96
        service.stub.SetVariant(verify_pb2.SetVariantRequest(variant="w4"), timeout=30)
        callers = [
            Caller(4, step_item, four_bit, drafts=2, chunk=16),
            Caller(5, step_item, full, precision=types_pb2.PRECISION_FULL),
        ]
        assert drive(step, callers) == [four_bit, full]


def test_ranks_that_were_started_one_by_one_serve_and_measure_what_they_do_together(
    start_ranks, tiny_checkpoint, step_item, alone
):
    service = start_ranks(tiny_checkpoint("llama"), by="torchrun", **VARIANTS)
    request = verify_pb2.VerifyServiceProfileKernelsRequest(rows=[1, 4], contexts=[16])
    profile = service.stub.ProfileKernels(request, timeout=60).profile
    assert service.info().info.device == "2 x cpu"
    assert profile.device.startswith("2 x cpu: ")
    assert {entry.op for entry in profile.latencies} == {"linear", "attention", "head", "overhead"}
    with service.stepping() as step:
        (full,) = alone("fp16")
        assert drive(step, [Caller(1, step_item, full)]) == [full]
