"""What the loop learns from its steps."""

from spearhead.v1 import types_pb2
from tests.scheduler_service.conftest import StackFactory
from tests.scheduler_service.latencies import compute_bound


async def test_a_step_that_a_cached_prefix_shortened_teaches_nothing_about_latency(
    make_stack: StackFactory,
) -> None:
    async with make_stack(table=compute_bound(), with_draft=False) as stack:
        ratios = []
        for prompt in (range(40), range(50), range(100, 140)):
            await stack.generate(stack.request(prompt, max_tokens=1))
            ratios.append(stack.metric("step_prediction_ratio"))
    whole, cached, whole_again = ratios
    assert 1.0 > whole == cached > whole_again


async def test_a_step_with_an_error_teaches_nothing_about_latency(make_stack: StackFactory) -> None:
    async with make_stack(table=compute_bound(), with_draft=False) as stack:
        ratios = []
        stack.verify.before_step = lambda count: ratios.append(stack.metric("step_prediction_ratio"))
        stack.verify.item_faults = {1: types_pb2.ITEM_ERROR_REASON_CACHE_MISS}
        await stack.generate(stack.request(range(40), max_tokens=2))
    before, after_error, after_prompt, *_ = ratios
    assert before == 0.0  # There was no step to learn from.
    assert after_error == 1.0 > after_prompt
