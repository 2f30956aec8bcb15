"""Times every kernel of a model's forward pass, gate first. Needs Triton."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from kernels.linear import multiply_blocks
from kernels.paged_attention import paged_attention
from kernels.paged_attention.bench import inputs as attention_inputs
from kernels.producer import gated_codes
from kernels.profile.table import KernelTime
from kernels.rope_and_cache import rope_and_cache
from kernels.sample import sample
from kernels.sample.bench import LAWS, batch_of
from kernels.tuning.fronts import Front
from kernels.tuning.products import BOUNDS, Product, cold, draw, relative_error
from kernels.tuning.timing import Timing, rotation
from kernels.w4a16 import Plans, Rooms, Workspace, computes_codes, gpu
from kernels.w4a16.plan import LayerPlan
from kernels.w4a16.shapes import ModelShape, Shape

Timer = Callable[[Sequence[Callable[[], object]]], Timing]
_NO_TIME = Timing(median_us=0.0, p10_us=0.0, p90_us=0.0)
_SEQUENCES = 4  # of which three tell what one more costs
_POSITIONS = 8192  # rows of the rotary tables
_SAMPLED_ROWS = 256  # a step samples no more rows; beyond, the last slope holds


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """What is measured.

    Attributes:
        model: Its dimensions, on one GPU.
        group: Group size of the 4-bit weights, 0 = per channel.
        rank: Of each projection's compensator.
        dtype: Compute type.
        device: Where.
        plans: Of the device.
        rows: Row buckets of products.
        attention_rows: New rows of a sequence.
        contexts: Tokens before them.
        timer: Times calls that take other memory each.
    """

    model: ModelShape
    group: int
    rank: int
    dtype: torch.dtype
    device: torch.device
    plans: Plans
    rows: tuple[int, ...]
    attention_rows: tuple[int, ...]
    contexts: tuple[int, ...]
    timer: Timer


@torch.inference_mode()
def measure(setup: Setup) -> Iterator[KernelTime]:
    """Times all kernels, those that decide a step first.

    Raises:
        RuntimeError: A product is wrong; nothing is timed then.
    """
    for shape in setup.model.products:
        yield from _products(setup, shape)
    yield from _attentions(setup)
    yield from _heads(setup)
    yield from _ropes(setup)


def _products(setup: Setup, shape: Shape) -> Iterator[KernelTime]:
    """One product and the kernel in front of it, plain and with compensators."""
    product = draw(shape, setup.group, setup.rank, setup.dtype, device=setup.device)
    weight, width = product.weights[0], product.compensators[0].code_width
    # As served: rows must not depend on the batch, so that the dense path is not taken.
    plan = replace(setup.plans.of(weight), dense_from=None)
    workspace = Workspace.for_layers([(weight, plan)], rows=max(setup.rows), code_width=width)
    front = Front(shape, code_width=width, rows=max(setup.rows), dtype=setup.dtype, device=setup.device)
    entry = partial(_entry, name=shape.name, k=weight.in_features, calls=setup.model.layer_count)
    for rows in setup.rows:
        x, factors = product.inputs(rows), cold(product.compensators[0], rows)
        inside = computes_codes(factors[0], rows)  # then the kernel in front runs without compensators
        codes = None if inside else front.run(rows, factors[0]).codes
        products = _Products(product, plan, workspace, x, codes)
        products.check()
        for rank in (0, width):
            calls = [partial(products.multiply, copy, rank > 0) for copy in range(len(product.weights))]
            timing = setup.timer(calls)
            yield entry("w4a16", timing, n=weight.out_features, group=setup.group, rank=rank, rows=rows)
            coded = rank > 0 and not inside
            if front.op == "codes" and not coded:
                if rank:  # said, since the scheduler holds the smallest known row count to be the least price
                    yield entry(front.op, _NO_TIME, rank=rank, rows=rows)
            else:
                fronts = [partial(front.run, rows, factor if coded else None) for factor in factors]
                yield entry(front.op, setup.timer(fronts), rank=rank, rows=rows)


class _Products:
    """A product as it is served, with the codes that it is given or computes."""

    def __init__(
        self, product: Product, plan: LayerPlan, workspace: Workspace, x: Tensor, codes: Tensor | None
    ) -> None:
        self._product, self._plan, self._workspace, self._x, self._codes = product, plan, workspace, x, codes
        self._rooms = Rooms(x.device)

    def multiply(self, copy: int, compensated: bool) -> Tensor:
        weight, compensator = self._product.weights[copy], self._product.compensators[copy]
        if not compensated:
            return gpu.multiply(self._x, weight, self._plan, self._workspace)
        room = None
        if self._codes is None:
            room = self._rooms.of_copy(copy, self._product.compensators, len(self._x))
        return gpu.multiply(
            self._x,
            weight,
            self._plan,
            self._workspace,
            compensator=compensator,
            codes=self._codes,
            room=room,
        )

    def check(self) -> None:
        codes = self._codes
        if codes is None:
            codes = gated_codes(self._x, self._product.compensators[0])[None]
        for compensated, roundings in ((False, 1), (True, 2)):
            expected = self._product.expected(self._x, codes if compensated else None)
            error = relative_error(self.multiply(0, compensated), expected)
            if not error < roundings * BOUNDS[self._product.dtype]:
                raise RuntimeError(
                    f"wrong product of {len(self._x)} rows: relative error {error:.1e}; {self._plan}"
                )


def _attentions(setup: Setup) -> Iterator[KernelTime]:
    """What one more sequence costs, as the scheduler adds it up."""
    shape = (*setup.model.heads, setup.model.head_dim)
    for context in setup.contexts:
        for rows in setup.attention_rows:
            one, several = (_attention(setup, shape, context, rows, count) for count in (1, _SEQUENCES))
            more = Timing(
                median_us=_marginal(one.median_us, several.median_us),
                p10_us=_marginal(one.p10_us, several.p10_us),
                p90_us=_marginal(one.p90_us, several.p90_us),
            )
            yield _entry(
                "paged_attention",
                more,
                name="attention",
                rows=rows,
                context=context,
                calls=setup.model.layer_count,
            )


def _marginal(one_us: float, several_us: float) -> float:
    return max((several_us - one_us) / (_SEQUENCES - 1), 0.0)


def _attention(setup: Setup, shape: tuple[int, int, int], context: int, rows: int, sequences: int) -> Timing:
    length = context + rows
    copies = rotation(sequences * length * 4 * shape[1] * shape[2])
    make = partial(attention_inputs, sequences, length, rows, shape, dtype=setup.dtype, device=setup.device)
    run = partial(paged_attention, scale=shape[2] ** -0.5)
    return setup.timer([partial(run, *make()) for _ in range(copies)])


def _heads(setup: Setup) -> Iterator[KernelTime]:
    """The dense product over the vocabulary, and a draw through all filters."""
    vocabulary, hidden = setup.model.vocab_size // setup.model.tensor_parallel_size, setup.model.hidden_size
    randn = partial(torch.randn, device=setup.device, dtype=setup.dtype)
    heads = [randn(vocabulary, hidden) for _ in range(rotation(2 * vocabulary * hidden))]
    for rows in (rows for rows in setup.rows if rows <= _SAMPLED_ROWS):
        x = randn(rows, hidden)
        timing = setup.timer([partial(multiply_blocks, x, head) for head in heads])
        yield _entry("linear", timing, name="head", n=vocabulary, k=hidden, rows=rows, calls=1)
        batch = batch_of(rows, LAWS["all filters"], setup.device)
        whole = setup.model.vocab_size  # which every GPU draws from
        copies = range(rotation(4 * rows * whole))
        logits = [3 * torch.randn(rows, whole, device=setup.device) for _ in copies]
        timing = setup.timer([partial(sample, one, batch) for one in logits])
        yield _entry("sample", timing, name="all filters", n=whole, rows=rows, calls=1)


def _ropes(setup: Setup) -> Iterator[KernelTime]:
    model, device = setup.model, setup.device
    heads, kv_heads = model.heads
    total = heads + 2 * kv_heads
    cosines, sines = torch.randn(2, _POSITIONS, model.head_dim // 2, device=device)
    for rows in setup.rows:
        cache = torch.zeros(2 * rows, 2, kv_heads, model.head_dim, dtype=setup.dtype, device=device)
        qkv = torch.randn(rows, total, model.head_dim, dtype=setup.dtype, device=device)
        positions = torch.randint(0, _POSITIONS, (rows,), device=device)
        slots = torch.randperm(2 * rows, device=device)[:rows]
        call = partial(rope_and_cache, qkv, cache, cosines, sines, positions, slots, heads)
        timing, width = setup.timer([call, call]), total * model.head_dim
        yield _entry("rope_and_cache", timing, name="rope", k=width, rows=rows, calls=model.layer_count)


def _entry(
    op: str,
    timing: Timing,
    *,
    name: str,
    rows: int,
    calls: int,
    n: int = 0,
    k: int = 0,
    group: int = 0,
    rank: int = 0,
    context: int = 0,
) -> KernelTime:
    return KernelTime(
        op=op,
        name=name,
        n=n,
        k=k,
        group=group,
        rank=rank,
        rows=rows,
        context=context,
        calls_per_forward=calls,
        median_us=timing.median_us,
        p10_us=timing.p10_us,
        p90_us=timing.p90_us,
    )
