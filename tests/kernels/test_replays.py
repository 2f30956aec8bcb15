"""On a GPU, a thousand replays of a captured launch give the same bits, and so does any cut of a batch."""

from collections.abc import Callable

import pytest
import torch

pytest.importorskip("triton")

from kernels.compensator.layout import Factors, GpuCompensator, pack_compensators
from kernels.paged_attention import PagedBatch
from kernels.paged_attention.launch import launch as attend
from kernels.producer import CodeWorkspace, code_workspace
from kernels.rms_norm.kernel import launch as norm
from kernels.sample import SamplingBatch
from kernels.sample.launch import launch as sample
from kernels.silu_mul.kernel import launch as silu

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="replays graphs, which needs a CUDA device"),
]
REPLAYS = 1000


def expect_equal_replays(call: Callable[[], list[torch.Tensor]]) -> None:
    expected = [output.clone() for output in call()]
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        outputs = call()
    different = torch.zeros((), dtype=torch.int64, device="cuda")
    for _ in range(REPLAYS):
        for output in outputs:
            output.fill_(float("nan") if output.is_floating_point() else -1)
        graph.replay()
        for output, wanted in zip(outputs, expected, strict=True):
            different += (output != wanted).sum()
    assert int(different) == 0


def gated(columns: int, projections: int) -> GpuCompensator:
    a = torch.randn(16, columns, device="cuda", dtype=torch.float16) * columns**-0.5
    w1, w2 = torch.randn(2, 16, 16, device="cuda")
    b1, b2 = torch.randn(2, 16, device="cuda")
    return pack_compensators([Factors(a=a, b=a[:, :1].T, gate=(w1, b1, w2, b2))] * projections, torch.float16)


def workspace(rows: int, packed: GpuCompensator) -> CodeWorkspace:
    space = code_workspace(rows, packed.a.shape[2], packed.code_width, packed.a.device)
    space.partials.fill_(float("nan"))
    return space


@pytest.mark.parametrize("rows", [1, 5, 64, 100])
def test_norms_and_codes(rows):
    packed = gated(4096, 3)
    space = workspace(rows, packed)
    x, residual = torch.randn(2, rows, 4096, device="cuda", dtype=torch.float16)
    weight = torch.randn(4096, device="cuda", dtype=torch.float16)

    def call() -> list[torch.Tensor]:
        result = norm(x, weight, 1e-5, residual, packed, space)
        return [result.y, result.hidden, result.codes]

    expect_equal_replays(call)
    assert not space.arrivals.any()


@pytest.mark.parametrize("rows", [1, 5, 64, 100])
def test_activations_and_codes(rows):
    packed = gated(14336, 1)
    space = workspace(rows, packed)
    gate_up = torch.randn(rows, 2 * 14336, device="cuda", dtype=torch.float16)

    def call() -> list[torch.Tensor]:
        result = silu(gate_up, packed, space)
        return [result.y, result.codes]

    expect_equal_replays(call)
    assert not space.arrivals.any()


LENGTHS = (17, 300, 777, 1024)


def paged(pages: torch.Tensor, rows: int, hidden: int) -> PagedBatch:
    """The last ``rows`` rows of each sequence, without the ``hidden`` tokens after them."""
    lengths = [length - hidden for length in LENGTHS]
    return PagedBatch(
        page_table=pages,
        row_starts=torch.arange(len(LENGTHS) + 1, device="cuda", dtype=torch.int32) * rows,
        lengths=torch.tensor(lengths, device="cuda", dtype=torch.int32),
        positions=torch.cat([torch.arange(length - rows, length) for length in lengths]).cuda(),
        page_size=16,
        max_rows=rows,
        max_length=max(lengths),
    )


@pytest.mark.parametrize("heads", [8, 32, 64])
@pytest.mark.parametrize("rows", [5, 17])
@pytest.mark.parametrize("whole", [False, True])
def test_attention(heads, rows, whole):
    pages = torch.randperm(4 * 64, device="cuda", dtype=torch.int32).view(4, 64)
    cache = torch.randn(4 * 64 * 16, 2, 8, 128, device="cuda", dtype=torch.float16)
    query = torch.randn(len(LENGTHS), rows, heads, 128, device="cuda", dtype=torch.float16)

    def attended(first: int, last: int) -> Callable[[], torch.Tensor]:
        # Everything that is copied from the processor is made before the call, which may be captured.
        batch = paged(pages, last - first, rows - last)
        part = query[:, first:last].reshape(-1, heads, 128)

        def call() -> torch.Tensor:
            result = attend(part, cache, batch, 128**-0.5, whole=whole).y
            return result.view(len(LENGTHS), last - first, -1)

        return call

    all_rows = attended(0, rows)
    expect_equal_replays(lambda: [all_rows()])
    expected = all_rows()
    for first, last in [(row, row + 1) for row in range(rows)] + [(0, 3), (2, rows)]:
        assert torch.equal(attended(first, last)(), expected[:, first:last])
    other = attend(query.flatten(0, 1), cache, paged(pages, rows, 0), 128**-0.5, whole=not whole).y
    assert torch.equal(other.view_as(expected), expected)


def test_tokens():
    rows = 8
    logits = 3 * torch.randn(rows, 152_064, device="cuda")
    batch = SamplingBatch(
        temperature=torch.full((rows,), 0.8, device="cuda"),
        top_k=torch.tensor([0, 1, 5, 50, 0, 0, 500, 0], dtype=torch.int32, device="cuda"),
        top_p=torch.tensor([1, 1, 0.9, 0.95, 0.5, 0.99, 1, 1], dtype=torch.float64, device="cuda"),
        log_min_p=torch.full((rows,), -5.0, device="cuda"),
        seeds=torch.arange(rows, device="cuda"),
        positions=torch.arange(rows, device="cuda"),
        filtered=True,
        alternatives=5,
    )

    def call() -> list[torch.Tensor]:
        result = sample(logits, batch)
        return [result.token_ids, result.probability, result.logprobs.rank, result.logprobs.top_token_ids]

    expect_equal_replays(call)
