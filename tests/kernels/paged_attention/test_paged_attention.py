"""The kernels against the law and against the processor's attention; bit-equality whatever the batch."""

import math
from collections.abc import Sequence

import pytest
import torch

pytest.importorskip("triton")

from kernels.compensator.layout import Factors, pack_compensators
from kernels.paged_attention import AttentionConfig, PagedBatch, default_config, paged_attention
from kernels.paged_attention.launch import launch
from kernels.paged_attention.reference import paged_attention as reference
from kernels.producer import code_workspace, gated_codes, total_codes
from spearhead.model.attention import Segment, build_groups
from spearhead.model.attention import paged_attention as processor_attention

CPU = torch.device("cpu")
# float32: sums of up to 150 products in another order. float16: weights and the result are rounded once each.
# bfloat16 likewise; Triton's interpreter cannot multiply it.
BOUNDS = {torch.float32: 2e-6, torch.float16: 1e-3, torch.bfloat16: 8e-3}
SMALL = AttentionConfig(tile_rows=16, piece_tokens=32, block_keys=16)
HEADS, KV_HEADS, HEAD_DIM, PAGE = 6, 2, 20, 16


class Case:
    """Sequences (length, new tokens) with random pages; slots that hold no token are poisoned with NaN."""

    def __init__(
        self,
        sequences: Sequence[tuple[int, int]],
        device: torch.device,
        dtype: torch.dtype = torch.float32,
        seed: int = 0,
    ) -> None:
        generator = torch.Generator().manual_seed(seed)
        widths = [-(-length // PAGE) for length, _ in sequences]
        pages = torch.randperm(sum(widths) + 3, generator=generator, dtype=torch.int32)
        table = torch.full((len(sequences), max(widths)), -1, dtype=torch.int32)
        total = sum(count for _, count in sequences)
        cache = torch.full(((sum(widths) + 3) * PAGE, 2, KV_HEADS, HEAD_DIM), float("nan"))
        used, positions = 0, []
        for index, ((length, count), width) in enumerate(zip(sequences, widths, strict=True)):
            table[index, :width] = pages[used : used + width]
            used += width
            tokens = torch.arange(length)
            slots = table[index].long()[tokens // PAGE] * PAGE + tokens % PAGE
            cache[slots] = torch.randn(length, *cache.shape[1:], generator=generator)
            positions += range(length - count, length)
        starts = torch.tensor([0, *[count for _, count in sequences]], dtype=torch.int32).cumsum(0)
        self.query = torch.randn(total, HEADS, HEAD_DIM, generator=generator).to(device, dtype)
        self.cache = cache.to(device, dtype)
        self.batch = PagedBatch(
            page_table=table.to(device),
            row_starts=starts.to(device, torch.int32),
            lengths=torch.tensor([length for length, _ in sequences], dtype=torch.int32, device=device),
            positions=torch.tensor(positions, device=device),
            page_size=PAGE,
            max_rows=max(count for _, count in sequences),
            max_length=max(length for length, _ in sequences),
        )

    def run(self, window: int | None = None, whole: bool | None = None, **others: object) -> torch.Tensor:
        scale = HEAD_DIM**-0.5
        options = {"config": SMALL, "whole": whole} | others
        return launch(self.query, self.cache, self.batch, scale, window, **options).y

    def expected(self, window: int | None = None) -> torch.Tensor:
        return reference(self.query, self.cache, self.batch, HEAD_DIM**-0.5, window)


def relative(got: torch.Tensor, expected: torch.Tensor) -> float:
    return float((got.double() - expected.double()).norm() / expected.double().norm())


@pytest.fixture(autouse=True)
def _poison(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory that a launcher allocates starts as NaN, so that an element never written shows."""
    plain = torch.empty
    monkeypatch.setattr(torch, "empty", lambda *a, **k: _filled(plain(*a, **k)))


def _filled(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.fill_(float("nan")) if tensor.is_floating_point() else tensor


MIXED = [(1, 1), (100, 17), (17, 0)]
PROMPTS = [(63, 30)]


@pytest.mark.parametrize(
    ("sequences", "window", "whole"),
    [
        (MIXED, None, False),
        (MIXED, 1, False),
        (MIXED, 20, False),
        (MIXED, 70, True),
        (PROMPTS, None, True),
        (PROMPTS, 20, True),
    ],
)
@pytest.mark.parametrize("dtype", BOUNDS)
def test_it_follows_the_law(device, dtype, sequences, window, whole):
    if dtype == torch.bfloat16 and device.type == "cpu":
        pytest.skip("Triton's interpreter cannot multiply bfloat16")
    case = Case(sequences, device, dtype)
    assert relative(case.run(window, whole), case.expected(window)) < BOUNDS[dtype]


@pytest.mark.parametrize("window", [None, 20])
def test_the_law_is_the_processors(window):
    case = Case([(33, 5), (100, 17)], CPU)
    table, starts = case.batch.page_table.clamp(min=0).tolist(), case.batch.row_starts.tolist()
    segments = [
        Segment(pages=table[i], start=length - starts[i + 1] + starts[i], count=starts[i + 1] - starts[i])
        for i, length in enumerate(case.batch.lengths.tolist())
    ]
    cache = case.cache.nan_to_num()
    groups = build_groups(
        segments,
        page_size=PAGE,
        heads_per_kv_head=HEADS // KV_HEADS,
        row_block=4,
        windows=frozenset({window}),
        device=CPU,
    )
    scaled = case.query * (HEAD_DIM**-0.5 * math.log2(math.e))
    expected = torch.zeros(len(case.query), HEADS * HEAD_DIM)
    for group in groups:
        expected[group.valid_rows] = processor_attention(scaled, cache, group, window, PAGE)
    got = paged_attention(case.query, case.cache, case.batch, HEAD_DIM**-0.5, window).y
    assert relative(got, expected) < BOUNDS[torch.float32]


def test_one_program_and_many_give_equal_bits(device):
    case = Case([(1, 1), (100, 7)], device, torch.float16)
    assert torch.equal(case.run(80, whole=True), case.run(80, whole=False))


@pytest.mark.parametrize(("whole", "window"), [(False, None), (True, 20)])
def test_a_row_has_the_same_bits_alone_in_a_batch_and_with_any_query_length(device, whole, window):
    case = Case([(100, 17), (40, 3)], device, torch.float16)
    expected = case.run(window, whole)
    for count in (1, 5, 7):
        # The first rows of sequence 0, as if the others did not exist yet.
        batch = PagedBatch(
            page_table=case.batch.page_table[:1],
            row_starts=torch.tensor([0, count], dtype=torch.int32, device=device),
            lengths=torch.tensor([83 + count], dtype=torch.int32, device=device),
            positions=torch.arange(83, 83 + count, device=device),
            page_size=PAGE,
            max_rows=count,
            max_length=83 + count,
        )
        got = launch(case.query[:count], case.cache, batch, HEAD_DIM**-0.5, window, config=SMALL, whole=whole)
        assert torch.equal(got.y, expected[:count])


@pytest.mark.parametrize("whole", [False, True])
def test_one_row_at_a_time_has_the_bits_of_a_draft(device, whole):
    case = Case([(100, 7)], device, torch.float16)
    expected = case.run(None, whole)
    for row in (0, 3, 6):
        batch = PagedBatch(
            page_table=case.batch.page_table,
            row_starts=torch.tensor([0, 1], dtype=torch.int32, device=device),
            lengths=torch.tensor([94 + row], dtype=torch.int32, device=device),
            positions=torch.tensor([93 + row], device=device),
            page_size=PAGE,
            max_rows=1,
            max_length=112,
        )
        query = case.query[row : row + 1]
        got = launch(query, case.cache, batch, HEAD_DIM**-0.5, config=SMALL, whole=whole).y
        assert torch.equal(got[0], expected[row])


def test_larger_limits_than_needed_change_nothing(device):
    case = Case([(33, 5), (20, 2)], device)
    expected = case.run()
    table = torch.nn.functional.pad(case.batch.page_table, (0, 5), value=-1)
    case.batch = PagedBatch(
        page_table=table,
        row_starts=case.batch.row_starts,
        lengths=case.batch.lengths,
        positions=case.batch.positions,
        page_size=PAGE,
        max_rows=17,
        max_length=table.shape[1] * PAGE,
    )
    for whole in (False, True):
        assert torch.equal(case.run(whole=whole), expected)


@pytest.mark.parametrize("whole", [False, True])
def test_rows_of_no_sequence_become_zeros(device, whole):
    case = Case([(33, 3)], device)
    expected = case.run(whole=whole)
    case.query = torch.cat((case.query, torch.full((2, HEADS, HEAD_DIM), 3.0, device=device)))
    positions = torch.cat((case.batch.positions, torch.tensor([-1, -1], device=device)))
    case.batch = PagedBatch(
        page_table=case.batch.page_table,
        row_starts=case.batch.row_starts,
        lengths=case.batch.lengths,
        positions=positions,
        page_size=PAGE,
        max_rows=3,
        max_length=33,
    )
    got = case.run(whole=whole)
    assert torch.equal(got[:3], expected) and not got[3:].any()


def test_large_scores_do_not_overflow(device):
    case = Case([(40, 4)], device)
    case.query *= 1e4
    assert relative(case.run(), case.expected()) < 1e-3  # scores of 1e5 have an absolute error of 1e-2


def test_queries_may_be_a_view_of_wider_rows(device):
    case = Case([(33, 5)], device)
    expected = case.run()
    wide = torch.zeros(5, HEADS + 4, HEAD_DIM, device=device)
    wide[:, :HEADS] = case.query
    case.query = wide[:, :HEADS]
    assert torch.equal(case.run(), expected)


@pytest.mark.parametrize("rank", [7, 300])  # 300: more than a program holds at once
def test_codes_of_the_result_follow_the_law(device, rank):
    case = Case([(33, 5), (70, 2)], device, torch.float16)
    generator = torch.Generator().manual_seed(5)
    a = (torch.randn(rank, HEADS * HEAD_DIM, generator=generator) / 10).to(device, torch.float16)
    shapes = ((4, rank), (4,), (rank, 4), (rank,))
    gate = tuple(torch.randn(*s, generator=generator).to(device) for s in shapes)
    packed = pack_compensators([Factors(a=a, b=a[:, :1].T, gate=gate)], torch.float16)
    workspace = code_workspace(7, HEADS * HEAD_DIM, packed.code_width, device)
    got = launch(case.query, case.cache, case.batch, 0.2, None, packed, workspace, config=SMALL)
    assert relative(total_codes(got.codes), gated_codes(got.y, packed)) < 1e-5  # float32 sums of 120 products
    assert not workspace.arrivals.any()


def test_no_rows_are_no_launch(device):
    case = Case([(33, 5)], device)
    case.query = case.query[:0]
    case.batch = PagedBatch(
        page_table=case.batch.page_table,
        row_starts=torch.zeros(2, dtype=torch.int32, device=device),
        lengths=case.batch.lengths,
        positions=case.batch.positions[:0],
        page_size=PAGE,
        max_rows=0,
        max_length=33,
    )
    assert case.run().shape == (0, HEADS * HEAD_DIM)


@pytest.mark.parametrize(("group", "tile_rows"), [(1, 16), (3, 16), (4, 32), (8, 64), (16, 64)])
def test_a_tile_holds_five_rows_if_it_can(group, tile_rows):
    assert default_config(group).tile_rows == tile_rows


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"tile_rows": 8}, "tile_rows is 8"),
        ({"tile_rows": 16, "block_keys": 24}, "block_keys is 24"),
        ({"tile_rows": 16, "piece_tokens": 96}, "piece_tokens is 96; block_keys = 64 must divide it"),
    ],
)
def test_configurations_that_cannot_run_are_refused(values, message):
    with pytest.raises(ValueError, match=message):
        AttentionConfig(**values)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"query": torch.ones(5, 7, HEAD_DIM)}, "7 query heads cannot share 2 key heads"),
        (
            {"query": torch.ones(5, HEADS, HEAD_DIM).half()},
            "cache is torch.float32; it must be torch.float16",
        ),
        ({"query": torch.ones(HEADS, 5, HEAD_DIM).transpose(0, 1)}, "heads of a row must be contiguous"),
        ({"cache": torch.ones(64, 2, KV_HEADS, 16)}, r"cache has shape .* must be \(any, 2, any, 20\)"),
        ({"window": 0}, "window is 0"),
    ],
)
def test_what_the_kernel_would_misread_is_refused(change, message):
    case = Case([(33, 5)], CPU)
    arguments = {"query": case.query, "cache": case.cache, "batch": case.batch, "scale": 1.0}
    with pytest.raises(ValueError, match=message):
        launch(**(arguments | change))


def test_a_page_table_that_is_too_narrow_is_refused():
    case = Case([(33, 5)], CPU)
    batch = PagedBatch(
        page_table=case.batch.page_table[:, :2].contiguous(),
        row_starts=case.batch.row_starts,
        lengths=case.batch.lengths,
        positions=case.batch.positions,
        page_size=PAGE,
        max_rows=5,
        max_length=33,
    )
    with pytest.raises(ValueError, match="max_length is 33; a row of the page table has room for 32 tokens"):
        launch(case.query, case.cache, batch, 1.0)
