"""The kernels against the sampling law of the processor, token by token, and against their own reference."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch

pytest.importorskip("triton")

import triton
import triton.language as tl

from kernels.sample import SEEN, SUPPRESSED, Edits, SamplingBatch, sample
from kernels.sample.launch import launch
from kernels.sample.noise import gumbel
from kernels.sample.reference import gumbel as reference_gumbel
from spearhead.model.noise import gumbel_noise
from spearhead.model.sampling import History, SamplingParameters
from spearhead.model.sampling import logprobs as law_logprobs
from spearhead.model.sampling import sample as law

# NumPy, which computes in the interpreter, warns of infinities that the kernels want.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")
CPU = torch.device("cpu")
NO_IDS, NO_VALUES = np.empty(0, np.int64), np.empty(0, np.float32)
PLAIN = SamplingParameters(
    bias_token_ids=NO_IDS, bias_values=NO_VALUES, suppressed_token_ids=NO_IDS, prompt_length=3
)
TOKENS = [5, 7, 5, 9, 11, 9, 9]  # three of the prompt, four of the output


@pytest.fixture(autouse=True)
def _poison(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory that a launcher allocates starts as NaN or nonsense, so that an element never written shows."""
    plain = torch.empty
    monkeypatch.setattr(torch, "empty", lambda *a, **k: _filled(plain(*a, **k)))


def _filled(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.fill_(float("nan") if tensor.is_floating_point() else 1)


def batch_of(
    parameters: Sequence[SamplingParameters],
    device: torch.device,
    tokens: Sequence[int] = TOKENS,
    alternatives: int | None = None,
) -> SamplingBatch:
    """What an engine would upload for these laws; every row has the same tokens so far."""

    def column(name: str, dtype: torch.dtype) -> torch.Tensor:
        return torch.tensor([getattr(p, name) for p in parameters], dtype=dtype, device=device)

    floors = [np.log(p.min_p) if p.min_p > 0 else np.finfo(np.float32).min for p in parameters]
    seeds = np.array([p.seed for p in parameters], np.uint64).view(np.int64)
    return SamplingBatch(
        temperature=column("temperature", torch.float32),
        top_k=column("top_k", torch.int32),
        top_p=column("top_p", torch.float64),
        log_min_p=torch.tensor(np.array(floors, np.float32), device=device),
        seeds=torch.from_numpy(seeds).to(device),
        positions=torch.full((len(parameters),), len(tokens), dtype=torch.int64, device=device),
        filtered=any(p.top_k or p.top_p < 1 or p.min_p for p in parameters),
        edits=edits_of(parameters, device, tokens),
        alternatives=alternatives,
    )


def edits_of(
    parameters: Sequence[SamplingParameters], device: torch.device, tokens: Sequence[int]
) -> Edits | None:
    starts, rows = [0], []
    for law_of_row in parameters:
        edits: dict[int, list[float]] = {}
        for token, value in zip(law_of_row.bias_token_ids, law_of_row.bias_values, strict=True):
            edits.setdefault(int(token), [0.0, 0.0, 0])[0] = float(value)
        for token in (
            law_of_row.suppressed_token_ids if len(tokens) < law_of_row.suppress_below_length else ()
        ):
            edits.setdefault(int(token), [0.0, 0.0, 0])[2] += SUPPRESSED
        if law_of_row.needs_history:
            for token in set(tokens):
                edit = edits.setdefault(token, [0.0, 0.0, 0])
                edit[1] = float(list(tokens[law_of_row.prompt_length :]).count(token))
                edit[2] += SEEN
        rows += [(token, *edit) for token, edit in edits.items()]
        starts.append(len(rows))
    if not rows:
        return None
    ids, bias, counts, flags = zip(*rows, strict=True)

    def column(name: str) -> torch.Tensor:
        return torch.tensor([getattr(p, name) for p in parameters], dtype=torch.float32, device=device)

    return Edits(
        row_starts=torch.tensor(starts, dtype=torch.int32, device=device),
        token_ids=torch.tensor(ids, dtype=torch.int32, device=device),
        bias=torch.tensor(bias, dtype=torch.float32, device=device),
        counts=torch.tensor(counts, dtype=torch.float32, device=device),
        flags=torch.tensor(flags, dtype=torch.int32, device=device),
        repetition=column("repetition_penalty"),
        presence=column("presence_penalty"),
        frequency=column("frequency_penalty"),
    )


def random_logits(rows: int, vocabulary: int, device: torch.device, seed: int = 0) -> torch.Tensor:
    return 3 * torch.randn(rows, vocabulary, generator=torch.Generator().manual_seed(seed)).to(device)


def expect_law(logits: torch.Tensor, parameters: Sequence[SamplingParameters], run: object) -> None:
    """Token, margin and probability of each row are those of the law, and the logits are as before."""
    before = logits.clone()
    got = run(logits, batch_of(parameters, logits.device))
    assert torch.equal(logits, before)
    for row, law_of_row in enumerate(parameters):
        history = History(TOKENS, law_of_row)
        expected = law(logits[row].cpu().numpy().copy(), law_of_row, history, want_probability=True)
        assert int(got.token_ids[row]) == expected.token_id, law_of_row
        assert float(got.margin[row]) == pytest.approx(expected.margin, abs=1e-6)
        # float32 exponentials on both sides
        assert float(got.probability[row]) == pytest.approx(expected.probability, rel=1e-5)


LAWS = {
    "greedy": [replace(PLAIN, temperature=0.0)] * 2,
    "plain": [replace(PLAIN, seed=s, temperature=t) for s, t in [(1, 1.0), (2**64 - 1, 0.3), (3, 2.5)]],
    "top-k": [replace(PLAIN, seed=s, top_k=k) for s, k in [(1, 1), (2, 3), (3, 40), (4, 10_000)]],
    "top-p": [replace(PLAIN, seed=s, top_p=p) for s, p in [(1, 1e-6), (2, 0.5), (3, 0.95), (4, 0.999)]],
    "min-p": [replace(PLAIN, seed=s, min_p=p) for s, p in [(1, 1.0), (2, 0.1), (3, 1e-3)]],
    "all filters": [
        replace(PLAIN, seed=s, temperature=0.7, top_k=20, top_p=0.8, min_p=0.05) for s in (1, 2, 3)
    ],
    "edits": [
        replace(PLAIN, seed=1, repetition_penalty=1.5, presence_penalty=0.5, frequency_penalty=0.25),
        replace(PLAIN, seed=2, bias_token_ids=np.array([0, 9]), bias_values=np.float32([8.0, -3.0])),
        replace(PLAIN, temperature=0.0, suppressed_token_ids=np.array([2, 4]), suppress_below_length=20),
        replace(PLAIN, seed=3, suppressed_token_ids=np.array([2, 4]), suppress_below_length=5),
        replace(
            PLAIN,
            seed=4,
            top_k=3,
            repetition_penalty=0.5,
            bias_token_ids=np.array([5]),
            bias_values=np.float32([4.0]),
        ),
    ],
    "mixed": [replace(PLAIN, temperature=0.0), replace(PLAIN, seed=5), replace(PLAIN, seed=6, top_k=2)],
}


@pytest.mark.parametrize("laws", LAWS)
def test_tokens_are_those_of_the_law(device, laws):
    expect_law(random_logits(len(LAWS[laws]), 100, device), LAWS[laws], launch)


@pytest.mark.parametrize("laws", LAWS)
def test_the_reference_is_the_law(laws):
    expect_law(random_logits(len(LAWS[laws]), 1000, CPU), LAWS[laws], sample)


@pytest.mark.parametrize("vocabulary", [17, 63, 5000])
def test_vocabularies_of_any_size_follow_the_law(device, vocabulary):
    laws = [replace(PLAIN, seed=8, top_k=12, top_p=0.9), replace(PLAIN, seed=9)]
    expect_law(random_logits(2, vocabulary, device), laws, launch)


def test_ties_go_to_the_lowest_ids(device):
    logits = torch.zeros(4, 100, device=device)
    logits[3, 50:] = 1.0
    laws = [
        replace(PLAIN, temperature=0.0),
        replace(PLAIN, seed=1, top_k=7),
        replace(PLAIN, seed=2, top_p=0.105),
        replace(PLAIN, seed=3, top_k=20, top_p=0.5),
    ]
    expect_law(logits, laws, launch)


def test_tiny_temperatures_and_minus_infinity_follow_the_law(device):
    logits = random_logits(2, 100, device)
    logits[:, ::3] = float("-inf")
    expect_law(logits, [replace(PLAIN, temperature=1e-30, top_p=0.9), replace(PLAIN, min_p=1e-4)], launch)


def test_a_flat_row_keeps_its_whole_nucleus(device):
    logits = random_logits(1, 5000, device) * 1e-3
    expect_law(logits, [replace(PLAIN, seed=1, top_p=0.9)], launch)


@pytest.mark.parametrize("deviation", [0.01, 3.0])
def test_leaving_out_tokens_that_cannot_win_changes_no_token(device, deviation):
    logits = random_logits(6, 9000, device) * deviation / 3
    batch = batch_of([replace(PLAIN, seed=s, top_p=p) for s in (1, 2, 3) for p in (1.0, 0.9)], device)
    plain = replace(batch, filtered=False, top_p=torch.ones_like(batch.top_p))
    assert torch.equal(launch(logits, batch).token_ids, sample(logits, batch).token_ids)
    assert torch.equal(launch(logits, plain).token_ids, sample(logits, plain).token_ids)


def test_edits_of_far_groups_change_the_cut(device):
    logits = random_logits(2, 5000, device)
    logits[:, 300] = 20.0
    law_of_row = replace(
        PLAIN,
        temperature=5.0,
        top_k=6,
        bias_token_ids=np.array([4500, 4501, 300]),
        bias_values=np.float32([18.0, 19.0, -40.0]),
    )
    laws = [replace(law_of_row, seed=1), replace(law_of_row, seed=2, top_k=0, top_p=0.5)]
    expect_law(logits, laws, launch)


def test_rows_that_are_not_finite_are_reported(device):
    logits = random_logits(4, 100, device)
    logits[0, 30], logits[1, 5] = float("nan"), float("inf")
    logits[2] = float("-inf")
    got = launch(logits, batch_of([replace(PLAIN, top_k=3, top_p=0.5)] * 4, device))
    assert got.finite.tolist() == [False, False, False, True]
    assert all(0 <= token < 100 for token in got.token_ids.tolist())


def test_nan_under_an_edit_is_reported(device):
    logits = random_logits(1, 100, device)
    logits[0, 5] = float("nan")
    got = launch(logits, batch_of([replace(PLAIN, repetition_penalty=2.0)], device))
    assert got.finite.tolist() == [False]


def test_logprobs_are_those_of_the_law(device):
    logits = random_logits(3, 5000, device)
    logits[1, 100:110] = logits[1].max()
    laws = [replace(PLAIN, seed=1), LAWS["edits"][0], replace(PLAIN, seed=2, temperature=3.0)]
    got = launch(logits, batch_of(laws, device, alternatives=3))
    for row, token in enumerate(got.token_ids.tolist()):
        expected = law_logprobs(logits[row].cpu().numpy(), token, 3)
        assert int(got.logprobs.rank[row]) == expected.rank
        assert got.logprobs.top_token_ids[row].tolist() == expected.top_token_ids.tolist()
        # The law rounds logits of 10 to float32 on the way.
        assert float(got.logprobs.logprob[row]) == pytest.approx(expected.logprob, abs=2e-6)
        assert got.logprobs.top_logprobs[row].tolist() == pytest.approx(expected.top_logprobs, abs=2e-6)


def test_logprobs_of_the_reference_are_those_of_the_law():
    logits = random_logits(2, 500, CPU)
    got = sample(logits, batch_of([replace(PLAIN, seed=1)] * 2, CPU, alternatives=3))
    for row, token in enumerate(got.token_ids.tolist()):
        expected = law_logprobs(logits[row].numpy(), token, 3)
        assert int(got.logprobs.rank[row]) == expected.rank
        assert got.logprobs.top_token_ids[row].tolist() == expected.top_token_ids.tolist()
        assert got.logprobs.top_logprobs[row].tolist() == pytest.approx(expected.top_logprobs, abs=2e-6)


def test_a_row_has_the_same_token_alone_and_in_a_batch(device):
    laws = LAWS["mixed"] + LAWS["all filters"]
    logits = random_logits(len(laws), 100, device)
    whole = launch(logits, batch_of(laws, device))
    for row in (1, 4):
        alone = launch(logits[row : row + 1], batch_of(laws[row : row + 1], device))
        assert torch.equal(alone.token_ids[0], whole.token_ids[row])
        assert torch.equal(alone.probability[0], whole.probability[row])


@triton.jit
def _noise(output, seed, position, first_id, BLOCK: tl.constexpr):
    tl.store(output + tl.arange(0, BLOCK), gumbel(tl.load(seed), tl.load(position), first_id, BLOCK))


@pytest.mark.parametrize(("seed", "position"), [(0, 0), (2**64 - 1, 2**40 + 3), (12345, 77)])
def test_noise_is_that_of_the_processor(device, seed, position):
    output = torch.full((256,), float("nan"), device=device)
    key = torch.from_numpy(np.array([seed], np.uint64).view(np.int64)).to(device)
    _noise[(1,)](output, key, torch.tensor([position], device=device), 4096, BLOCK=256)
    expected = torch.from_numpy(gumbel_noise(seed, position, np.arange(4096, 4352)))
    # Two logarithms of one rounding each; the integers below them are equal or all is lost.
    torch.testing.assert_close(output.cpu(), expected, rtol=1e-6, atol=1e-6)
    assert torch.equal(reference_gumbel(seed, position, 4352)[4096:], expected)


def test_no_rows_are_no_launch(device):
    got = launch(torch.ones(0, 100, device=device), batch_of([], device, alternatives=2))
    assert got.token_ids.shape == (0,) and got.logprobs.top_token_ids.shape == (0, 2)


@pytest.mark.parametrize(
    ("logits", "change", "message"),
    [
        (torch.ones(1, 100).half(), {}, "logits is torch.float16; it must be torch.float32"),
        (torch.ones(100, 2).T, {}, "logits has strides"),
        (torch.ones(1, 300_000), {}, "logits have 300000 tokens a row; 1 to 262144"),
        (torch.ones(1, 100), {"top_k": torch.ones(2, dtype=torch.int32)}, r"top_k has shape \(2,\)"),
        (torch.ones(1, 100), {"top_p": torch.ones(1)}, "top_p is torch.float32; it must be torch.float64"),
        (torch.ones(1, 100), {"alternatives": 33}, "alternatives is 33; it must be 0 to 32, or None"),
    ],
)
def test_what_the_kernels_would_misread_is_refused(logits, change, message):
    with pytest.raises(ValueError, match=message):
        launch(logits, replace(batch_of([PLAIN], CPU), **change))
