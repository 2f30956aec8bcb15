from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from spearhead.errors import CalibrationError
from spearhead.model.checkpoint import open_checkpoint
from spearhead.quant.decoder import LayerTensors, plain_linear
from spearhead.quant.layer_pass import LayerVisit, visit_layers
from spearhead.quant.layers import StreamedLayers, final_hidden
from spearhead.quant.moments import Moments
from spearhead.quant.sequences import batch_of, batches

SEQUENCES = [list(range(3, 33)), list(range(40, 60)), list(range(7, 50))]


@pytest.fixture
def source(tiny_checkpoint: Callable[..., Path]) -> StreamedLayers:
    folder = tiny_checkpoint("llama")
    return StreamedLayers(open_checkpoint(str(folder)), dtype=torch.float32, device=torch.device("cpu"))


def moments_of(source: StreamedLayers, batch_size: int, skip_first: int = 0) -> dict[str, Moments]:
    found: dict[str, Moments] = {}

    def keep(visit: LayerVisit) -> LayerTensors:
        found.update({f"{visit.index}.{part}": moments for part, moments in visit.moments.items()})
        return visit.tensors

    groups = [batch.without_first(skip_first) for batch in batches(SEQUENCES, batch_size)]
    visit_layers(source, groups, keep)
    return found


def test_moments_are_those_of_the_inputs_and_padding_does_not_count(source: StreamedLayers) -> None:
    padded = moments_of(source, batch_size=3, skip_first=1)
    inputs: dict[str, list[torch.Tensor]] = {}

    def record(module: str, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        inputs.setdefault(module.removeprefix("model.layers."), []).append(x[0, 1:].double())
        return plain_linear(module, x, weight, bias)

    for sequence in SEQUENCES:  # one by one: nothing is padded
        final_hidden(source, torch.tensor([sequence]), record)
    assert set(inputs) == set(padded)
    for module, parts in inputs.items():
        x = torch.cat(parts)
        assert padded[module].count == len(x) == sum(map(len, SEQUENCES)) - 3
        torch.testing.assert_close(padded[module].second, x.T @ x / len(x), rtol=1e-4, atol=1e-6)
        torch.testing.assert_close(padded[module].mean_abs, x.abs().mean(0), rtol=1e-4, atol=1e-6)
        torch.testing.assert_close(padded[module].peak_abs, x.abs().amax(0), rtol=1e-4, atol=1e-6)


def test_later_layers_see_what_the_visitor_returned(source: StreamedLayers) -> None:
    batch = batch_of(SEQUENCES)

    def zero_the_mlp(visit: LayerVisit) -> LayerTensors:
        name = "mlp.down_proj.weight"
        return {**visit.tensors, name: torch.zeros_like(visit.tensors[name])}

    (stream,) = visit_layers(source, [batch], zero_the_mlp)
    silent = StreamedLayers(
        open_checkpoint(str(source._checkpoint.path)),
        dtype=torch.float32,
        device=torch.device("cpu"),
        replace=lambda module, weight: 0 * weight if module.endswith("down_proj") else weight,
    )
    normed = torch.nn.functional.rms_norm(
        stream, stream.shape[-1:], source.final_norm, source.config.rms_norm_eps
    )
    torch.testing.assert_close(normed, final_hidden(silent, batch.token_ids), rtol=1e-4, atol=1e-4)


def test_a_visitor_that_replaces_nothing_needs_each_layer_once(source: StreamedLayers) -> None:
    groups, moments = list(batches(SEQUENCES, 2)), []

    def keep(visit: LayerVisit) -> LayerTensors:
        moments.append(visit.moments)
        return {}

    once = visit_layers(source, groups, keep, replaces=False)
    seen = moments.copy()

    def same(visit: LayerVisit) -> LayerTensors:
        keep(visit)
        return visit.tensors

    twice = visit_layers(source, groups, same)
    assert all(torch.equal(left, right) for left, right in zip(once, twice, strict=True))
    for left, right in zip(seen, moments[len(seen) :], strict=True):
        assert all(torch.equal(left[part].second, right[part].second) for part in left)


def test_the_stream_waits_where_the_caller_puts_it_and_a_pass_can_go_on_from_there(
    source: StreamedLayers,
) -> None:
    kept: dict[tuple[int, int], torch.Tensor] = {}

    def keep(layer: int, batch: int, stream: torch.Tensor) -> torch.Tensor:
        kept[layer, batch] = stream
        return stream

    groups = list(batches(SEQUENCES, 2))
    whole = visit_layers(source, groups, lambda visit: visit.tensors, keep=keep)
    assert list(kept) == [(layer, batch) for layer in range(3) for batch in range(2)]
    visited: list[int] = []

    def note(visit: LayerVisit) -> LayerTensors:
        visited.append(visit.index)
        return visit.tensors

    rest = visit_layers(source, groups, note, first_layer=1, inputs=[kept[1, 0], kept[1, 1]])
    assert visited == [1]
    for left, right in zip(rest, whole, strict=True):
        assert torch.equal(left, right)


def test_infinity_in_a_calibration_token_is_an_error_that_names_module_and_token(
    tiny_checkpoint: Callable[..., Path],
) -> None:
    folder = tiny_checkpoint("llama")
    source = StreamedLayers(
        open_checkpoint(str(folder)),
        dtype=torch.float32,
        device=torch.device("cpu"),
        replace=lambda module, weight: weight * 3e38 if module.endswith("0.mlp.up_proj") else weight,
    )
    source.embedding[17] *= 1e6
    sequences = [[5, 6, 7], [5, 6, 17]]
    with pytest.raises(
        CalibrationError, match=r"layers.0.mlp.down_proj holds NaN or infinity at sequence \d"
    ):
        visit_layers(source, [batch_of(sequences)], lambda visit: visit.tensors)
