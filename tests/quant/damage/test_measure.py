from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from spearhead.errors import CalibrationError
from spearhead.model.checkpoint import open_checkpoint
from spearhead.model.checkpoint.layout import linear_modules
from spearhead.quant.cka import linear_cka
from spearhead.quant.damage import DAMAGE_KINDS, DamageReport, measure_damage
from spearhead.quant.decoder import LayerTensors
from spearhead.quant.layers import ResidentLayers, StreamedLayers, final_hidden
from spearhead.quant.sequences import TokenBatch, batch_of

SEQUENCES = [list(range(3, 33)), list(range(40, 60)), list(range(7, 50))]


@pytest.fixture
def streamed(tiny_checkpoint: Callable[..., Path]) -> StreamedLayers:
    checkpoint = open_checkpoint(str(tiny_checkpoint("llama", num_hidden_layers=3)))
    return StreamedLayers(checkpoint, dtype=torch.float32, device=torch.device("cpu"))


@pytest.fixture
def source(streamed: StreamedLayers) -> ResidentLayers:
    return ResidentLayers(streamed)


def weight_of(source: ResidentLayers, module: str) -> Tensor:
    index, part = module.removeprefix("model.layers.").split(".", 1)
    return source.layer(int(index))[f"{part}.weight"]


class Rounded:
    """Weights rounded to a coarse grid; counts who was asked for."""

    def __init__(self, source: ResidentLayers) -> None:
        self.asked: list[str] = []
        self._source = source

    def __call__(self, module: str) -> Tensor:
        self.asked.append(module)
        weight = weight_of(self._source, module)
        step = weight.abs().amax(1, keepdim=True) / 7
        return (weight / step).round() * step


def measure(source: Any, replacement: Callable[[str], Tensor], **options: Any) -> DamageReport:
    options = {"also": DAMAGE_KINDS} | options
    return measure_damage(source, replacement, options.pop("batches", [batch_of(SEQUENCES)]), **options)


def hidden_with(source: ResidentLayers, module: str | None, weight: Tensor | None) -> Tensor:
    """Final hidden states of all sequences, each run alone through a model with one weight replaced."""

    def linear(name: str, x: Tensor, original: Tensor, bias: Tensor | None) -> Tensor:
        return torch.nn.functional.linear(
            x, weight if name == module and weight is not None else original, bias
        )

    with torch.no_grad():
        return torch.cat([final_hidden(source, torch.tensor([s]), linear)[0, 1:] for s in SEQUENCES])


def test_damage_is_that_of_whole_passes_with_one_module_replaced(source: ResidentLayers) -> None:
    rounded = Rounded(source)
    report = measure(source, rounded)
    modules = list(linear_modules(source.config))
    assert list(report.by_module) == modules == rounded.asked
    assert report.token_count == sum(map(len, SEQUENCES)) - 3
    whole = hidden_with(source, None, None)
    log_p = (whole @ source.head.T).double().log_softmax(-1)
    for module in modules:
        swapped = hidden_with(source, module, rounded(module))
        expected = 1 - linear_cka(whole, swapped)
        assert report.values["cka_final"][module] == pytest.approx(expected, rel=1e-3, abs=1e-8)
        log_q = (swapped @ source.head.T).double().log_softmax(-1)
        kl = float((log_p.exp() * (log_p - log_q)).sum(-1).mean())
        assert report.values["kl"][module] == pytest.approx(kl, rel=1e-3, abs=1e-7)


def test_block_damage_looks_at_the_stream_after_the_block(source: ResidentLayers) -> None:
    report = measure(source, Rounded(source), kind="cka_block", also=())
    assert set(report.values) == {"cka_block"}
    values = report.by_module
    assert min(values.values()) > 0
    # Of the last block only the final norm is missing, which scales tokens: near, not equal.
    final = measure(source, Rounded(source)).by_module
    last = "model.layers.2.mlp.down_proj"
    assert 0.2 < values[last] / final[last] < 5


def test_a_module_that_quantisation_does_not_change_has_no_damage_at_all(source: ResidentLayers) -> None:
    report = measure(source, lambda module: weight_of(source, module).clone())
    assert all(value == 0.0 for values in report.values.values() for value in values.values())


def test_the_worse_module_has_the_larger_damage(source: ResidentLayers) -> None:
    worse = "model.layers.1.mlp.up_proj"
    rounded = Rounded(source)
    report = measure(
        source,
        lambda module: torch.zeros_like(weight_of(source, module)) if module == worse else rounded(module),
    )
    assert all(max(values, key=lambda name: values[name]) == worse for values in report.values.values())


@pytest.mark.parametrize("kind", DAMAGE_KINDS)
def test_padding_does_not_count(source: ResidentLayers, kind: Any) -> None:
    alone = [batch_of([sequence]) for sequence in SEQUENCES]
    padded = measure(source, Rounded(source), kind=kind).by_module
    unpadded = measure(source, Rounded(source), kind=kind, batches=alone).by_module
    for module, value in padded.items():
        assert value == pytest.approx(unpadded[module], rel=1e-3, abs=1e-8)


def test_skipped_and_masked_tokens_do_not_count(source: ResidentLayers) -> None:
    batch = batch_of([list(range(3, 43))])
    masked = TokenBatch(token_ids=batch.token_ids, valid=batch.valid & (torch.arange(40) % 3 > 0))
    report = measure(source, Rounded(source), batches=[masked], skip_first=10)
    keep = masked.valid[0] & (torch.arange(40) >= 10)
    assert report.token_count == int(keep.sum())
    module = "model.layers.0.self_attn.v_proj"

    def rows(replaced: bool) -> Tensor:
        def linear(name: str, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
            used = Rounded(source)(module) if replaced and name == module else weight
            return torch.nn.functional.linear(x, used, bias)

        with torch.no_grad():
            return final_hidden(source, batch.token_ids, linear)[0][keep]

    assert report.by_module[module] == pytest.approx(1 - linear_cka(rows(False), rows(True)), rel=1e-6)


def test_streamed_layers_give_the_same_and_are_read_once_a_block(
    streamed: StreamedLayers, source: ResidentLayers
) -> None:
    reads: Counter[int] = Counter()

    class Counting(StreamedLayers):
        def layer(self, index: int) -> LayerTensors:
            reads[index] += 1
            return super().layer(index)

    counting = Counting(streamed._checkpoint, dtype=torch.float32, device=torch.device("cpu"))
    assert measure(counting, Rounded(source)).values == measure(source, Rounded(source)).values
    # The reference pass, the block itself, and the blocks before it.
    assert reads == {0: 2, 1: 3, 2: 4}


def test_an_interrupted_measurement_goes_on_where_it_was(source: ResidentLayers, tmp_path: Path) -> None:
    journal = tmp_path / "damage.jsonl"
    seen: list[tuple[int, int]] = []

    def stop(done: int, total: int) -> None:
        seen.append((done, total))
        if done == 14:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        measure(source, Rounded(source), journal=journal, progress=stop)
    assert seen == [(7, 21), (14, 21)]
    rounded = Rounded(source)
    resumed = measure(source, rounded, journal=journal)
    assert {module.split(".")[2] for module in rounded.asked} == {"2"}
    assert resumed.values == measure(source, Rounded(source)).values


@pytest.mark.parametrize(
    ("change", "differing"),
    [
        ({"identity": "other"}, "identity is 'one', wanted 'other'"),
        ({"also": ()}, "kinds is"),
        ({"skip_first": 2}, "tokens is"),
        ({"batches": [batch_of(SEQUENCES[:2])]}, "tokens is"),
    ],
)
def test_the_journal_of_another_measurement_is_refused(
    source: ResidentLayers, tmp_path: Path, change: dict[str, Any], differing: str
) -> None:
    options: dict[str, Any] = {"journal": tmp_path / "damage.jsonl", "identity": "one", "modules": MODULE}
    measure(source, Rounded(source), **options)
    with pytest.raises(CalibrationError, match=differing):
        measure(source, Rounded(source), **(options | change))


MODULE: Sequence[str] = ("model.layers.1.self_attn.o_proj",)


def test_only_the_modules_that_were_asked_for_are_measured(source: ResidentLayers) -> None:
    rounded = Rounded(source)
    assert list(measure(source, rounded, modules=MODULE).by_module) == rounded.asked == list(MODULE)
    with pytest.raises(CalibrationError, match="no linear module lm_head"):
        measure(source, rounded, modules=["lm_head"])


@pytest.mark.parametrize("kind", DAMAGE_KINDS)
def test_weights_that_are_not_finite_name_their_module(source: ResidentLayers, kind: Any) -> None:
    def broken(module: str) -> Tensor:
        return torch.full_like(weight_of(source, module), float("nan"))

    with pytest.raises(CalibrationError, match=r"layers\.1\.self_attn\.o_proj: .*NaN|is nan"):
        measure(source, broken, kind=kind, also=(), modules=MODULE)


def test_a_full_precision_model_that_overflows_is_told_apart(source: ResidentLayers) -> None:
    source.embedding = source.embedding * float("inf")
    with pytest.raises(CalibrationError, match="the full-precision model gives NaN"):
        measure(source, Rounded(source))


def test_a_weight_of_another_shape_names_its_module(source: ResidentLayers) -> None:
    with pytest.raises(
        CalibrationError, match=r"o_proj has shape \(3, 3\), the full-precision one \(64, 64\)"
    ):
        measure(source, lambda module: torch.zeros(3, 3), modules=MODULE)


def test_too_few_tokens_are_refused(source: ResidentLayers) -> None:
    with pytest.raises(CalibrationError, match="similarity of 3 tokens means nothing"):
        measure(source, Rounded(source), batches=[batch_of([[3, 4, 5, 6]])])


def test_measures_are_compared_by_rank(source: ResidentLayers) -> None:
    report = measure(source, Rounded(source))
    correlations = report.correlations()
    assert set(correlations) == {("cka_final", "cka_block"), ("cka_final", "kl"), ("cka_block", "kl")}
    agreement = correlations["cka_final", "kl"]
    assert agreement is not None and agreement > 0.5
