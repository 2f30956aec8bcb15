"""The cut is exactly that of a sort, whichever way it is found; every way is taken by some case here."""

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch

pytest.importorskip("triton")

import triton
import triton.language as tl

from kernels.sample import SamplingBatch
from kernels.sample.bracket import ABOVE, DRAWN, LAST, SIZE
from kernels.sample.depth import depth_of, mass_of, scaled
from kernels.sample.launch import launch
from kernels.sample.passes import BLOCK, Drawn, empty, find_cuts, first_pass
from kernels.tensor_checks import power_of_two

# NumPy, which computes in the interpreter, warns of infinities that the kernels want.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")
OFF = float(torch.finfo(torch.float32).min)


@dataclass(frozen=True, slots=True, kw_only=True)
class Law:
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """What the search of one row left behind."""

    depth: int
    highest: int
    size: int
    above: int
    drawn: bool


def batch_of(laws: list[Law], device: torch.device) -> SamplingBatch:
    floors = [torch.tensor(law.min_p).log().item() if law.min_p else OFF for law in laws]
    rows = len(laws)
    return SamplingBatch(
        temperature=torch.tensor([law.temperature for law in laws], device=device),
        top_k=torch.tensor([law.top_k for law in laws], dtype=torch.int32, device=device),
        top_p=torch.tensor([law.top_p for law in laws], dtype=torch.float64, device=device),
        log_min_p=torch.tensor(floors, dtype=torch.float32, device=device),
        seeds=torch.arange(rows, device=device),
        positions=torch.full((rows,), 9, device=device),
        filtered=True,
    )


def searched(logits: torch.Tensor, laws: list[Law]) -> list[Search]:
    batch, device, splits = batch_of(laws, logits.device), logits.device, -(-logits.shape[1] // BLOCK)
    found = first_pass(logits, batch, torch.empty(0, device=device))
    scores, ids, mass = empty((len(laws), splits), device, torch.float32, torch.int32, torch.int64)
    depth, highest = find_cuts(logits, batch, found, Drawn(scores=scores, score_ids=ids, mass=mass))
    state = found.search.cpu()
    state[state[:, LAST.value] < 0, SIZE.value] = 0
    return [
        Search(
            depth=int(depth[row]),
            highest=int(highest[row]),
            size=int(state[row, SIZE.value]),
            above=int(state[row, ABOVE.value]),
            drawn=bool(state[row, DRAWN.value]),
        )
        for row in range(len(laws))
    ]


@triton.jit
def _measure(logits, temperature, depths, masses, V: tl.constexpr, BLOCK: tl.constexpr):
    row, ids = tl.program_id(0), tl.arange(0, BLOCK)
    values = tl.load(logits + row * V + ids, mask=ids < V, other=float("-inf"))
    value = scaled(values, tl.max(values, 0), tl.load(temperature + row))
    tl.store(depths + row * V + ids, depth_of(value), mask=ids < V)
    tl.store(masses + row * V + ids, mass_of(value), mask=ids < V)


def kept_by_sorting(logits: torch.Tensor, laws: list[Law]) -> list[torch.Tensor]:
    """Depths of each row, and the tokens that it keeps as a set of flags, by the law of the reference."""
    batch = batch_of(laws, logits.device)
    depths, masses = empty(tuple(logits.shape), logits.device, torch.int32, torch.int64)
    rows, vocabulary = logits.shape
    constants = {"V": vocabulary, "BLOCK": power_of_two(vocabulary)}
    _measure[(rows,)](logits, batch.temperature, depths, masses, **constants)
    kept = []
    for row, law in enumerate(laws):
        depth, mass = depths[row], masses[row]
        order = torch.sort(depth, stable=True).indices
        floor = -float(batch.log_min_p[row])
        order = order[depth[order].view(torch.float32) <= floor]
        if law.top_k:
            order = order[: law.top_k]
        if law.top_p < 1:
            through = mass[order].cumsum(0)
            wanted = -int(-(float(through[-1]) * law.top_p) // 1)
            order = order[: int((through < wanted).sum()) + 1]
        flags = torch.zeros(vocabulary, dtype=torch.bool, device=logits.device)
        flags[order] = True
        kept.append((depth, flags))
    return kept


def expect_exact(logits: torch.Tensor, laws: list[Law]) -> list[Search]:
    """Every cut keeps what a sort keeps; returns the searches."""
    found = searched(logits, laws)
    ids = torch.arange(logits.shape[1], device=logits.device)
    for row, (depth, flags) in enumerate(kept_by_sorting(logits, laws)):
        limit = found[row].depth
        ours = (depth < limit) | ((depth == limit) & (ids <= found[row].highest))
        assert torch.equal(ours, flags), laws[row]
    return found


def normal(rows: int, vocabulary: int, deviation: float) -> torch.Tensor:
    return deviation * torch.randn(rows, vocabulary, generator=torch.Generator().manual_seed(7))


LAWS = [
    Law(top_k=1),
    Law(top_k=50),
    Law(top_k=50, top_p=0.95, min_p=0.02, temperature=0.8),
    Law(top_k=200, top_p=0.9),
    Law(top_k=3000),
    Law(top_k=1 << 30),
    Law(top_k=1 << 30, top_p=0.5),
    Law(top_p=1e-9),
    Law(top_p=0.5, temperature=0.3),
    Law(top_p=0.999),
    Law(top_p=1 - 1e-16, temperature=0.1),
    Law(top_p=0.9, min_p=0.05),
    Law(min_p=1.0),
    Law(min_p=0.1, top_k=30_000),
    Law(),
]
ROWS: dict[str, Callable[[int, int], torch.Tensor]] = {
    "peaked": lambda rows, vocabulary: normal(rows, vocabulary, 5.0),
    "flat": lambda rows, vocabulary: normal(rows, vocabulary, 0.1),
    "constant": lambda rows, vocabulary: torch.full((rows, vocabulary), -1.5),
    "quantised": lambda rows, vocabulary: normal(rows, vocabulary, 2.0).round(),
}


@pytest.mark.parametrize("kind", ROWS)
def test_cuts_are_exact(device, kind):
    expect_exact(ROWS[kind](len(LAWS), 4097).to(device), LAWS)


@pytest.mark.parametrize("vocabulary", [1, 5, 4096])
def test_cuts_of_any_size_are_exact(device, vocabulary):
    expect_exact(normal(6, vocabulary, 2.0).to(device), LAWS[1:12:2])


@pytest.mark.parametrize("kind", ROWS)
def test_cuts_of_large_vocabularies_are_exact(device, kind):
    laws = [LAWS[2], Law(top_p=0.95, temperature=0.8)]
    expect_exact(ROWS[kind](len(laws), 49_152).to(device), laws)


def test_a_small_top_k_collects_hardly_more_than_it_keeps_and_draws_at_once(device):
    found = expect_exact(normal(2, 20_000, 3.0).to(device), [Law(top_k=50), Law(top_k=50, top_p=0.9)])
    assert all(50 <= row.size <= 80 and row.above == 0 and row.drawn for row in found)


def test_a_nucleus_of_tens_of_thousands_is_narrowed_before_it_is_collected(device):
    logits = normal(1, 49_152, 0.1).to(device)
    (found,) = expect_exact(logits, [Law(top_p=0.95)])
    assert found.above > 30_000 and found.size <= 2048 and not found.drawn


def test_a_crowd_at_the_cut_is_narrowed_twice(device):
    # The best group is far above the others, so that bins are wide for the crowd.
    logits = normal(1, 40_000, 0.02).to(device)
    logits[0, :128] += 3.0
    (found,) = expect_exact(logits, [Law(top_p=0.9)])
    assert 0 < found.size <= 1024


def test_more_tokens_than_can_be_compared_with_each_other_are_searched_in_rounds(device):
    logits = (normal(2, 20_000, 1.0) * 64).round().to(device) / 64
    found = expect_exact(logits, [Law(top_p=0.8), Law(top_k=2000, top_p=0.9)])
    assert all(row.size > 256 for row in found)


def test_a_crowd_that_no_pass_can_narrow_is_searched_in_rounds(device):
    # Steps of one unit in the last place, far below any bin.
    steps = torch.arange(9000, dtype=torch.int32) % 3
    logits = (torch.tensor([2.0]).view(torch.int32) - steps).view(torch.float32)[None].repeat(3, 1)
    logits[:, 0] = 9.0
    laws = [Law(top_p=0.6), Law(top_k=5000), Law(top_k=5000, top_p=0.99)]
    found = expect_exact(logits.to(device), laws)
    assert all(row.size > 2048 for row in found)


def test_ties_across_the_vocabulary_keep_the_lowest_ids(device):
    logits = torch.zeros(3, 10_000, device=device)
    found = expect_exact(logits, [Law(top_p=0.75), Law(top_k=5000), Law(top_k=6000, top_p=0.5)])
    assert [row.highest for row in found] == [7499, 4999, 2999]


def test_a_greedy_row_keeps_everything(device):
    logits = normal(2, 300, 1.0).to(device)
    batch = batch_of([Law(temperature=0.0, min_p=0.5, top_k=3), Law()], device)
    got = launch(logits, batch)
    assert int(got.token_ids[0]) == int(logits[0].argmax())
    expected = torch.softmax(logits[0].double(), 0).max()
    assert float(got.probability[0]) == pytest.approx(float(expected), rel=1e-5)


def test_neighbours_change_no_bit(device):
    laws = [Law(top_p=0.9), Law(top_k=5), Law(), Law(temperature=0.0), Law(min_p=0.1), Law(top_k=300)]
    logits = torch.cat([normal(3, 5000, 0.3), normal(3, 5000, 4.0)]).to(device)
    whole = launch(logits, batch_of(laws, device))
    order = [3, 5, 0, 2, 4, 1]
    batch = batch_of(laws, device)
    names = ("temperature", "top_k", "top_p", "log_min_p", "seeds", "positions")
    shuffled = {name: getattr(batch, name)[order] for name in names}
    again = launch(logits[order], SamplingBatch(**shuffled, filtered=True))
    for name in ("token_ids", "margin", "probability", "finite"):
        assert torch.equal(getattr(again, name), getattr(whole, name)[order])


def test_a_batch_without_filters_says_the_same_as_one_that_has_them_elsewhere(device):
    logits = normal(3, 5000, 2.0).to(device)
    batch = batch_of([Law(), Law(temperature=0.0), Law(top_k=3)], device)
    mixed = launch(logits, batch)
    names = ("temperature", "top_k", "top_p", "log_min_p", "seeds", "positions")
    plain = launch(
        logits[:2], SamplingBatch(**{name: getattr(batch, name)[:2] for name in names}, filtered=False)
    )
    assert torch.equal(plain.token_ids, mixed.token_ids[:2])
    assert torch.equal(plain.probability, mixed.probability[:2])
