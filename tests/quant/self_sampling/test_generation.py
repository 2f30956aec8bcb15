from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from spearhead.errors import CalibrationError
from spearhead.model.checkpoint import open_checkpoint
from spearhead.quant.layers import ResidentLayers, StreamedLayers
from spearhead.quant.self_sampling import SamplingTokens, SelfSamplingConfig
from spearhead.quant.self_sampling.generation import generate

TOKENS = SamplingTokens(
    vocab_size=40, bos_token_id=1, eos_token_ids=(2,), chat_prefix_ids=(1, 5), chat_middle_ids=(2, 6)
)
CONFIG = SelfSamplingConfig(sequence_count=6, length=20, chat_fraction=0.5, hot_start_tokens=3)


def load(folder: Path, device: str) -> ResidentLayers:
    checkpoint = open_checkpoint(str(folder))
    return ResidentLayers(StreamedLayers(checkpoint, dtype=torch.float32, device=torch.device(device)))


def test_each_batch_has_its_own_random_numbers(tiny_checkpoint: Callable[..., Path]) -> None:
    source = load(tiny_checkpoint("llama"), "cpu")
    first, again, second = (
        generate(source, CONFIG, TOKENS, batch=batch, rows=6, on_token=lambda position: None)[0]
        for batch in (0, 0, 1)
    )
    assert torch.equal(first, again)
    assert not torch.equal(first, second)


def test_a_streamed_model_can_be_trained_with_after_sampling(tiny_checkpoint: Callable[..., Path]) -> None:
    checkpoint = open_checkpoint(str(tiny_checkpoint("llama")))
    source = StreamedLayers(checkpoint, dtype=torch.float32, device=torch.device("cpu"))
    generate(source, CONFIG, TOKENS, batch=0, rows=6, on_token=lambda position: None)
    hidden = torch.ones(source.config.hidden_size, requires_grad=True)
    (hidden * source.final_norm).sum().backward()
    assert torch.equal(hidden.grad, source.final_norm)


def test_memory_that_does_not_suffice_is_an_error_that_says_what_was_wanted(
    tiny_checkpoint: Callable[..., Path],
) -> None:
    class Exhausted(StreamedLayers):
        def layer(self, index: int) -> dict[str, torch.Tensor]:
            raise torch.OutOfMemoryError("CUDA out of memory")

    checkpoint = open_checkpoint(str(tiny_checkpoint("llama")))
    source = Exhausted(checkpoint, dtype=torch.float32, device=torch.device("cpu"))
    wanted = r"6 sequences of 20 tokens in step do not fit into the memory of cpu: .* 0\.0 GiB; lower"
    with pytest.raises(CalibrationError, match=wanted):
        generate(source, CONFIG, TOKENS, batch=0, rows=6, on_token=lambda position: None)


@pytest.fixture
def no_waiting() -> Iterator[Callable[[int], None]]:
    """Makes every wait for the GPU an error from the second token on, until all are written."""

    def after(position: int) -> None:
        torch.cuda.set_sync_debug_mode("error" if 1 < position < CONFIG.length else "default")

    yield after
    torch.cuda.set_sync_debug_mode("default")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device: sampling on one was not tried")
def test_a_gpu_writes_the_same_and_is_never_waited_for(
    tiny_checkpoint: Callable[..., Path], no_waiting: Callable[[int], None]
) -> None:
    folder = tiny_checkpoint("llama")
    on_cpu = generate(load(folder, "cpu"), CONFIG, TOKENS, batch=0, rows=6, on_token=lambda position: None)
    on_gpu = generate(load(folder, "cuda"), CONFIG, TOKENS, batch=0, rows=6, on_token=no_waiting)
    assert all(torch.equal(*pair) for pair in zip(on_cpu, on_gpu, strict=True))
    hot = replace(CONFIG, temperature=1.5)
    drawn = generate(load(folder, "cuda"), hot, TOKENS, batch=0, rows=6, on_token=no_waiting)[0]
    assert not torch.equal(drawn, on_gpu[0])
