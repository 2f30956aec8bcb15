"""Logits and greedy text of our decoder against transformers, the oracle."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from kernels.compensator import compensate
from spearhead.model.attention import Segment
from spearhead.model.checkpoint import Checkpoint, load_variants, open_checkpoint
from spearhead.model.decoder import Decoder, RowBlocks
from spearhead.model.kv_cache import KvStorage
from spearhead.model.weights import ModelWeights
from spearhead.tokenizer import Tokenizer

Factory = Callable[..., Path]
CPU = torch.device("cpu")
PAGE = 4
LENGTH = 45
MODEL = Path("models/SmolLM2-135M-Instruct.Q4_1.gguf")

LLAMA3 = {"rope_type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 4.0}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}
WINDOW = {"use_sliding_window": True, "sliding_window": 8}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "llama, tied head": ("llama", {"tie_word_embeddings": True}),
    "llama, one key head": ("llama", {"num_key_value_heads": 1}),
    "llama, as many key heads as query heads": ("llama", {"num_key_value_heads": 4}),
    "llama, biases everywhere": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "llama, heads wider than the stream": ("llama", {"head_dim": 32}),
    "llama, another theta and epsilon": (
        "llama",
        {"rope_parameters": {"rope_type": "default", "rope_theta": 100.0}, "rms_norm_eps": 1e-2},
    ),
    "llama, linear RoPE": ("llama", {"rope_parameters": {"rope_type": "linear", "factor": 4.0}}),
    "llama, llama3 RoPE": (
        "llama",
        {"rope_parameters": LLAMA3 | {"factor": 8.0, "original_max_position_embeddings": 16}},
    ),
    "llama, yarn RoPE": ("llama", {"rope_parameters": YARN}),
    "llama, yarn RoPE with attention factor": (
        "llama",
        {"rope_parameters": YARN | {"attention_factor": 1.3}},
    ),
    "qwen2": ("qwen2", {}),
    "qwen2, tied head": ("qwen2", {"tie_word_embeddings": True}),
    "qwen2, window in the last layer": ("qwen2", WINDOW | {"max_window_layers": 1}),
    "qwen3": ("qwen3", {}),
    "qwen3, biases and wide heads": ("qwen3", {"attention_bias": True, "head_dim": 32}),
    "qwen3, tied head and yarn RoPE": ("qwen3", {"tie_word_embeddings": True, "rope_parameters": YARN}),
    "qwen3, window in the first layer": (
        "qwen3",
        WINDOW | {"layer_types": ["sliding_attention", "full_attention"]},
    ),
    "mistral, window": ("mistral", {"sliding_window": 8}),
    "mistral, no window": ("mistral", {"sliding_window": None}),
}


def build_decoder(checkpoint: Checkpoint, tokens: int, page_size: int = PAGE) -> Decoder:
    config = checkpoint.config
    storage = KvStorage(config, -(-tokens // page_size), page_size, torch.float32, CPU)
    return Decoder(config, storage, context_length=tokens, row_blocks=RowBlocks(), device=CPU)


def load(checkpoint: Checkpoint, variant: str) -> ModelWeights:
    return load_variants(checkpoint, variants=[variant], dtype=torch.float32, device=CPU)[variant]


def logits_in_chunks(
    decoder: Decoder, weights: ModelWeights, token_ids: Sequence[int], chunk: int
) -> torch.Tensor:
    """Logits of every position, computed a chunk at a time; the sequence's pages lie in reverse order."""
    pages = list(reversed(range(-(-len(token_ids) // PAGE))))
    rows = []
    for start in range(0, len(token_ids), chunk):
        piece = token_ids[start : start + chunk]
        segment = Segment(pages=pages[: -(-(start + len(piece)) // PAGE)], start=start, count=len(piece))
        rows.append(decoder.forward(weights, [segment], piece, range(len(piece))).logits)
    return torch.cat(rows)


def relative_error(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    """The worst row's."""
    return float(((ours - theirs).norm(dim=1) / theirs.norm(dim=1)).max())


def random_tokens(vocab_size: int) -> list[int]:
    return torch.randint(vocab_size, (LENGTH,), generator=torch.Generator().manual_seed(0)).tolist()


@pytest.mark.parametrize("case", CASES)
def test_logits_equal_those_of_transformers(tiny_checkpoint: Factory, case: str) -> None:
    architecture, overrides = CASES[case]
    folder = tiny_checkpoint(architecture, **overrides)
    checkpoint = open_checkpoint(str(folder))
    tokens = random_tokens(checkpoint.config.vocab_size)
    model = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager").eval()
    with torch.inference_mode():
        expected = model(torch.tensor([tokens])).logits[0]
    weights = load(checkpoint, "fp16")
    for chunk in (LENGTH, 7, 1):
        logits = logits_in_chunks(build_decoder(checkpoint, LENGTH), weights, tokens, chunk)
        assert relative_error(logits, expected) < 1e-4, f"chunks of {chunk}"


@pytest.mark.parametrize("case", ["llama, llama3 RoPE", "qwen2, window in the last layer", "mistral, window"])
def test_every_switch_of_a_case_matters(tiny_checkpoint: Factory, case: str) -> None:
    # Guards the test above: a scaling or window that changed nothing would prove nothing.
    architecture, overrides = CASES[case]
    checkpoint = open_checkpoint(str(tiny_checkpoint(architecture, **overrides)))
    off = {"sliding_window": None} if architecture == "mistral" else {}
    plain = open_checkpoint(str(tiny_checkpoint(architecture, **off)))
    tokens = random_tokens(checkpoint.config.vocab_size)
    first, second = (
        logits_in_chunks(build_decoder(each, LENGTH), load(each, "fp16"), tokens, LENGTH)
        for each in (checkpoint, plain)
    )
    assert relative_error(first, second) > 1e-2


@pytest.mark.parametrize("gate_width", [0, 4])
def test_compensated_logits_equal_transformers_with_hooks(
    tiny_checkpoint: Factory, tiny_artefact: Factory, add_compensators: Any, gate_width: int
) -> None:
    artefact = tiny_artefact(tiny_checkpoint("qwen2"))
    shapes = {
        "model.layers.0.self_attn.q_proj": (64, 64),
        "model.layers.0.self_attn.v_proj": (32, 64),
        "model.layers.1.self_attn.o_proj": (64, 64),
        "model.layers.1.mlp.up_proj": (96, 64),
        "model.layers.1.mlp.down_proj": (64, 96),
    }
    add_compensators(artefact, {name: (n, k, 4, gate_width) for name, (n, k) in shapes.items()})
    checkpoint = open_checkpoint(str(artefact))
    assert checkpoint.compensators is not None
    model = AutoModelForCausalLM.from_pretrained(artefact, dtype=torch.float32).eval()
    for name, found in checkpoint.compensators.by_module.items():
        gate = None if found.gate is None else (found.gate.w1, found.gate.b1, found.gate.w2, found.gate.b2)

        def correct(_: Any, inputs: Any, output: torch.Tensor, found: Any = found, gate: Any = gate) -> Any:
            return output + compensate(inputs[0], found.a, found.b, gate)

        model.get_submodule(name).register_forward_hook(correct)
    tokens = random_tokens(checkpoint.config.vocab_size)
    with torch.inference_mode():
        expected = model(torch.tensor([tokens])).logits[0]
    decoder = build_decoder(checkpoint, LENGTH)
    logits = logits_in_chunks(decoder, load(checkpoint, "w4+ec"), tokens, 7)
    assert relative_error(logits, expected) < 1e-4
    uncorrected = logits_in_chunks(decoder, load(checkpoint, "w4"), tokens, 7)
    assert relative_error(uncorrected, expected) > 1e-2


PROMPTS = (
    "The capital of France is a city that",
    "Once upon a time, in a small village by the sea,",
    "def fibonacci(n):\n    if n < 2:\n        return n\n    return",
    "In 1969, two astronauts landed on the moon and",
    "The three most important rules of cooking are",
    "Photosynthesis is the process by which plants",
    "Dear Sir or Madam,\n\nI am writing to you because",
    "A speculative decoder drafts tokens with a small model",
    "Here is a list of the planets of the solar system:",
    "The difference between a compiler and an interpreter",
    "import numpy as np\n\ndef softmax(x):",
    "Water boils at a lower temperature on a mountain",
    "Shakespeare wrote many plays, among them Hamlet,",
    "To repair a flat bicycle tyre, first remove the",
    "SELECT name, age FROM users WHERE age > 18 ORDER",
    "The stock market fell sharply on Monday after",
    "My grandmother used to say that the best way to",
    "Question: What is the largest ocean on Earth?\nAnswer:",
    "The theory of evolution by natural selection was",
    "Once the train had left the station, she opened",
)
GENERATED = 200


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Small matrices gain little from threads, and lose much when other processes want the cores."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def smollm2() -> Checkpoint:
    if not MODEL.exists():
        pytest.skip(f"{MODEL} is missing; run `make model`")
    return open_checkpoint(str(MODEL))


def transformers_model(checkpoint: Checkpoint) -> Any:
    """transformers' own model on our float32 weights."""
    config = AutoConfig.for_model(**checkpoint.hugging_face_config)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    weights = {name: checkpoint.tensor(name) for name in checkpoint.shapes}
    missing, unexpected = model.load_state_dict(weights, strict=False)
    assert (missing, unexpected) == (["lm_head.weight"], []), "the head is tied"
    return model.eval()


@pytest.mark.model
@pytest.mark.timeout(900)
@pytest.mark.usefixtures("one_thread")
def test_greedy_text_of_smollm2_equals_that_of_transformers(smollm2: Checkpoint) -> None:
    tokenizer = Tokenizer.load(MODEL)
    encoded = [tokenizer.encode(prompt) for prompt in PROMPTS]
    width = min(len(ids) for ids in encoded)
    # Prompts of one length need no padding, so that transformers computes them as a plain batch.
    prompts = [ids[:width] for ids in encoded]
    model = transformers_model(smollm2)
    expected = model.generate(
        torch.tensor(prompts),
        attention_mask=torch.ones(len(prompts), width, dtype=torch.int64),
        max_new_tokens=GENERATED,
        min_new_tokens=GENERATED,
        do_sample=False,
        eos_token_id=None,
        pad_token_id=0,
    )[:, width:].tolist()
    assert greedy(smollm2, prompts) == expected


def greedy(checkpoint: Checkpoint, prompts: list[list[int]]) -> list[list[int]]:
    """The likeliest tokens after each prompt, all prompts in one batch."""
    total = len(prompts[0]) + GENERATED
    page_size = 16
    count = -(-total // page_size)
    decoder = build_decoder(checkpoint, count * page_size * len(prompts), page_size)
    weights = load(checkpoint, "fp16")
    pages = [range(index * count, (index + 1) * count) for index in range(len(prompts))]
    outputs: list[list[int]] = [[] for _ in prompts]
    pieces, start = prompts, 0
    for _ in range(GENERATED):
        width = len(pieces[0])
        used = -(-(start + width) // page_size)
        segments = [Segment(pages=own[:used], start=start, count=width) for own in pages]
        flat = [token for piece in pieces for token in piece]
        last = [index * width + width - 1 for index in range(len(prompts))]
        chosen = decoder.forward(weights, segments, flat, last).logits.argmax(dim=1).tolist()
        for output, token in zip(outputs, chosen, strict=True):
            output.append(token)
        pieces, start = [[token] for token in chosen], start + width
    return outputs
