"""The kernel against the law and against the decoder's own operations; what it must leave alone."""

import pytest
import torch

pytest.importorskip("triton")

from kernels.rope_and_cache import rope_and_cache
from kernels.rope_and_cache.kernel import launch
from kernels.rope_and_cache.reference import rope_and_cache as reference
from spearhead.model.decoder import rms_norm, rotate

CPU = torch.device("cpu")
# One rounding to the type after float32, three with a norm; the interpreter cuts bfloat16 off.
BOUNDS = {torch.float32: 1e-6, torch.float16: 1e-3, torch.bfloat16: 1.5e-2}
POSITIONS = 50


def case(
    device: torch.device,
    dtype: torch.dtype = torch.float16,
    rows: int = 3,
    heads: tuple[int, int] = (4, 2),
    head_dim: int = 16,
    norms: bool = False,
) -> dict[str, object]:
    """Arguments of the operation; the cache is poisoned with NaN."""
    generator = torch.Generator().manual_seed(rows + head_dim)
    query_heads, kv_heads = heads

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator).to(device, dtype)

    angles = torch.outer(torch.arange(POSITIONS), 0.5 ** torch.arange(head_dim // 2)).to(device)
    return {
        "qkv": normal(rows, query_heads + 2 * kv_heads, head_dim),
        "cache": torch.full((2 * rows + 1, 2, kv_heads, head_dim), float("nan"), dtype=dtype, device=device),
        "cosines": angles.cos(),
        "sines": angles.sin(),
        "positions": torch.randint(0, POSITIONS, (rows,), generator=generator).to(device),
        "slots": torch.randperm(2 * rows + 1, generator=generator)[:rows].to(device),
        "query_heads": query_heads,
        "q_norm": 1 + normal(head_dim) / 8 if norms else None,
        "k_norm": 1 + normal(head_dim) / 8 if norms else None,
        "eps": 1e-5,
    }


def copied(arguments: dict[str, object]) -> dict[str, object]:
    return arguments | {name: arguments[name].clone() for name in ("qkv", "cache")}


def relative(got: torch.Tensor, expected: torch.Tensor) -> float:
    return float((got.double() - expected.double()).norm() / expected.double().norm())


@pytest.mark.parametrize("dtype", BOUNDS)
@pytest.mark.parametrize("norms", [False, True])
@pytest.mark.parametrize(
    ("rows", "heads", "head_dim"), [(1, (1, 1), 2), (3, (9, 3), 64), (17, (4, 2), 20), (2, (32, 8), 128)]
)
def test_it_follows_the_law(device, dtype, norms, rows, heads, head_dim):
    got = case(device, dtype, rows, heads, head_dim, norms)
    expected = copied(got)
    launch(**got)
    reference(**expected)
    slots = got["slots"]
    assert relative(got["qkv"], expected["qkv"]) < BOUNDS[dtype]
    assert relative(got["cache"][slots], expected["cache"][slots]) < BOUNDS[dtype]
    untouched = torch.ones(len(got["cache"]), dtype=torch.bool)
    untouched[slots.cpu()] = False
    assert got["cache"].cpu()[untouched].isnan().all()


@pytest.mark.parametrize("norms", [False, True])
def test_the_law_is_the_decoders(norms):
    arguments = case(CPU, torch.float32, norms=norms)
    heads, count = arguments["qkv"].clone(), 6
    turning = heads[:, :count]
    if norms:
        weights = torch.cat((arguments["q_norm"].expand(4, -1), arguments["k_norm"].expand(2, -1)))
        turning = rms_norm(turning, weights, torch.tensor(1e-5))
    cosines, sines = (arguments[name][arguments["positions"]] for name in ("cosines", "sines"))
    turned = rotate(
        turning,
        torch.cat((cosines, cosines), -1)[:, None].expand(-1, count, -1),
        torch.cat((-sines, sines), -1)[:, None].expand(-1, count, -1),
    )
    rope_and_cache(**arguments)
    assert relative(arguments["qkv"][:, :4], turned[:, :4]) < BOUNDS[torch.float32]
    written = arguments["cache"][arguments["slots"]]
    assert relative(written[:, 0], turned[:, 4:]) < BOUNDS[torch.float32]
    assert torch.equal(written[:, 1], heads[:, 6:])


def test_values_are_copied_bit_by_bit_and_keys_of_the_batch_stay(device):
    arguments = case(device)
    before = arguments["qkv"].clone()
    launch(**arguments)
    assert torch.equal(arguments["cache"][arguments["slots"]][:, 1], before[:, 6:])
    assert torch.equal(arguments["qkv"][:, 4:], before[:, 4:])


def test_a_negative_slot_is_written_nowhere(device):
    arguments = case(device)
    arguments["slots"][1] = -1
    launch(**arguments)
    written = ~arguments["cache"].isnan().flatten(1).any(1)
    assert written.nonzero().flatten().tolist() == sorted(arguments["slots"][[0, 2]].tolist())


def test_a_row_has_the_same_bits_alone_and_in_a_batch(device):
    whole = case(device, rows=17, norms=True)
    alone = copied(whole)
    launch(**whole)
    for name in ("qkv", "positions", "slots"):
        alone[name] = alone[name][5:6]
    launch(**alone)
    assert torch.equal(alone["qkv"][0], whole["qkv"][5])
    assert torch.equal(alone["cache"][alone["slots"][0]], whole["cache"][whole["slots"][5]])


def test_the_batch_may_be_a_view_of_wider_rows(device):
    arguments = case(device)
    wide = torch.zeros(3, 10, 16, dtype=torch.float16, device=device)
    wide[:, 1:9] = arguments["qkv"]
    strided = copied(arguments) | {"qkv": wide[:, 1:9]}
    launch(**arguments)
    launch(**strided)
    assert torch.equal(strided["qkv"], arguments["qkv"])
    assert not wide[:, [0, 9]].any()


def test_no_rows_are_no_launch(device):
    arguments = case(device)
    empty = arguments | {name: arguments[name][:0] for name in ("qkv", "positions", "slots")}
    launch(**empty)
    assert arguments["cache"].isnan().all()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"qkv": torch.ones(3, 8, 15).half()}, "heads have 15 dimensions"),
        ({"qkv": torch.ones(3, 9, 16).half()}, "qkv has 9 heads; with 4 query heads"),
        ({"qkv": torch.ones(8, 3, 16).half().transpose(0, 1)}, "heads of a row must be contiguous"),
        ({"cache": torch.ones(7, 2, 3, 16).half()}, r"cache has shape .* must be \(any, 2, 2, 16\)"),
        ({"slots": torch.zeros(4, dtype=torch.int64)}, r"slots has shape \(4,\)"),
        ({"positions": torch.zeros(3)}, "positions is torch.float32"),
        ({"sines": torch.zeros(50, 8).half()}, "sines is torch.float16; it must be torch.float32"),
        ({"k_norm": torch.ones(16)}, "k_norm is torch.float32; it must be torch.float16"),
    ],
)
def test_what_the_kernel_would_misread_is_refused(change, message):
    with pytest.raises(ValueError, match=message):
        launch(**(case(CPU) | change))
