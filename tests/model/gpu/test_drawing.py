"""Drawing all rows at once gives the tokens that drawing them one after the other gives."""

import numpy as np
import pytest
import torch

from spearhead.model.drawing import DrawRequest, draw_each
from spearhead.model.gpu.drawing import compile_draws, draw_together, sampling_batch
from spearhead.model.sampling import SamplingParameters

VOCABULARY = 500
DEVICES = [
    "cpu",
    pytest.param(
        "cuda",
        marks=[
            pytest.mark.gpu,
            pytest.mark.skipif(not torch.cuda.is_available(), reason="draws on a CUDA device"),
        ],
    ),
]


def law(**changes) -> SamplingParameters:
    nothing = {
        "bias_token_ids": np.empty(0, np.int64),
        "bias_values": np.empty(0, np.float32),
        "suppressed_token_ids": np.empty(0, np.int64),
    }
    return SamplingParameters(**(nothing | changes))


LAWS = [
    law(temperature=0.0),
    law(temperature=0.8, seed=2**63 + 5),
    law(temperature=1.3, top_k=7, seed=4),
    law(temperature=1.0, top_p=0.7, min_p=0.01, seed=5),
    law(
        temperature=0.9,
        seed=6,
        repetition_penalty=1.3,
        presence_penalty=0.4,
        frequency_penalty=0.3,
        prompt_length=3,
        bias_token_ids=np.array([5, 5, 499]),
        bias_values=np.array([1.0, 0.5, -2.0], np.float32),
        suppressed_token_ids=np.array([7, 8]),
        suppress_below_length=9,
    ),
]


def requests(device: str, seed: int, drafts: int = 4) -> list[DrawRequest]:
    draw = torch.Generator().manual_seed(seed)
    return [
        DrawRequest(
            logits=(3 * torch.randn(drafts + 1, VOCABULARY, generator=draw)).to(device),
            tokens=torch.randint(VOCABULARY, (6 + drafts,), generator=draw).tolist(),
            draft_count=drafts,
            law=one,
            logprob_count=None if index % 2 else index,
        )
        for index, one in enumerate(LAWS)
    ]


def agreeing(asked: list[DrawRequest]) -> list[DrawRequest]:
    """The same with drafts that are accepted, but for the last one."""
    for _ in range(asked[0].draft_count - 1):
        for one, drawn in zip(asked, draw_each(asked), strict=True):
            last = len(drawn) - 1
            if last < one.draft_count - 1:
                one.tokens[one.known + last] = drawn[-1].sample.token_id
    return asked


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("seed", range(3))
def test_tokens_margins_and_reports_are_equal(device, seed):
    asked = agreeing(requests(device, seed))
    one_by_one, together = draw_each(asked), draw_together(asked)
    assert max(map(len, one_by_one)) == 4
    for expected, drawn in zip(one_by_one, together, strict=True):
        assert [one.sample.token_id for one in drawn] == [one.sample.token_id for one in expected]
        for mine, theirs in zip(drawn, expected, strict=True):
            assert mine.sample.margin == pytest.approx(theirs.sample.margin, abs=1e-5)
            assert (mine.logprobs is None) == (theirs.logprobs is None)
            if mine.logprobs is not None and theirs.logprobs is not None:
                assert mine.logprobs.rank == theirs.logprobs.rank
                assert mine.logprobs.logprob == pytest.approx(theirs.logprobs.logprob, abs=1e-4)
                np.testing.assert_array_equal(mine.logprobs.top_token_ids, theirs.logprobs.top_token_ids)
                np.testing.assert_allclose(
                    mine.logprobs.top_logprobs, theirs.logprobs.top_logprobs, atol=1e-4
                )


@pytest.mark.parametrize("device", DEVICES)
def test_a_broken_row_ends_its_own_request_only(device):
    asked = requests(device, 0, drafts=0)
    asked[1].logits[0, 3] = float("nan")
    drawn = draw_together(asked)
    assert [one[0].sample.finite for one in drawn] == [True, False, True, True, True]
    assert drawn[1][0].logprobs is None


@pytest.mark.parametrize("device", DEVICES)
def test_every_way_to_draw_can_be_tried_in_advance(device):
    compile_draws(VOCABULARY, torch.device(device))
    asked = requests(device, 0)
    assert len(draw_together(asked)) == len(asked)


def test_nothing_is_drawn_for_nobody():
    assert draw_together([]) == []


def test_laws_that_change_no_logit_make_no_edits():
    plain = sampling_batch(requests("cpu", 0)[:2], torch.device("cpu"))
    assert plain.edits is None
    assert not plain.filtered
    assert plain.seeds.tolist() == [0] * 5 + [2**63 + 5 - 2**64] * 5
    assert plain.positions.tolist() == [6, 7, 8, 9, 10] * 2
