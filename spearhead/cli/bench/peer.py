"""The baseline: ``transformers.generate`` on the same weights and dtype, in a process of its own.

Run as ``python -m spearhead.cli.bench.peer``; the last line of its output is a JSON document.
"""

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spearhead.cli.bench.runs import COMPARISON_REPEATS
from spearhead.cli.bench.workload import PlannedRequest, plan_comparison
from spearhead.errors import SpearheadError


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerOptions:
    """What is timed.

    Attributes:
        model: Folder or .gguf file.
        dtype: "float32", "bfloat16" or "float16".
        streams: Batch sizes.
        output_tokens: Tokens a stream.
        threads: Compute threads; 0 = torch's default.
    """

    model: str
    dtype: str
    streams: tuple[int, ...]
    output_tokens: int
    threads: int


async def measure_peer(options: PeerOptions) -> dict[int, float]:
    """Runs the baseline.

    Returns:
        Tokens a second by number of streams.

    Raises:
        SpearheadError: It failed; the text holds its last lines.
    """
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "spearhead.cli.bench.peer"),
        *("--model", options.model, "--dtype", options.dtype),
        *("--streams", ",".join(map(str, options.streams))),
        *("--output-tokens", str(options.output_tokens), "--threads", str(options.threads)),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    output, errors = await process.communicate()
    if process.returncode != 0:
        last = "\n".join(errors.decode(errors="replace").splitlines()[-8:])
        raise SpearheadError(f"the transformers baseline failed with code {process.returncode}:\n{last}")
    rates: dict[str, float] = json.loads(output.decode().splitlines()[-1])
    return {int(streams): rate for streams, rate in rates.items()}


def main() -> int:
    """Times generate() and prints tokens a second by number of streams."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--streams", default="1,8")
    parser.add_argument("--output-tokens", type=int, default=64)
    parser.add_argument("--threads", type=int, default=0)
    arguments = parser.parse_args()
    streams = [int(part) for part in arguments.streams.split(",")]
    rates = _measure(arguments, streams)
    print(json.dumps(rates))
    return 0


def _measure(arguments: argparse.Namespace, streams: list[int]) -> dict[int, float]:
    import torch

    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    model, tokenizer = _load(Path(arguments.model), getattr(torch, arguments.dtype))
    with torch.inference_mode():
        return {count: _rate(model, tokenizer, count, arguments.output_tokens) for count in streams}


def _load(path: Path, dtype: Any) -> tuple[Any, Any]:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    where: dict[str, Any] = {"gguf_file": path.name} if path.suffix == ".gguf" else {}
    folder = path.parent if where else path
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, **where).eval()
    return model, AutoTokenizer.from_pretrained(folder, **where)


def _rate(model: Any, tokenizer: Any, streams: int, output_tokens: int) -> float:
    """Tokens a second of the fastest repeat, after one warm-up; prefill included."""
    best = 0.0
    for repeat in range(COMPARISON_REPEATS + 1):
        inputs = _inputs(tokenizer, plan_comparison(streams, output_tokens, repeat))
        began_s = time.perf_counter()
        output = model.generate(
            **inputs, do_sample=False, min_new_tokens=output_tokens, max_new_tokens=output_tokens
        )
        duration_s = time.perf_counter() - began_s
        if output.shape[1] != inputs["input_ids"].shape[1] + output_tokens:
            raise SystemExit("generate() returned another number of tokens than asked for")
        if repeat > 0:
            best = max(best, streams * output_tokens / duration_s)
    return best


def _inputs(tokenizer: Any, requests: Sequence[PlannedRequest]) -> Any:
    texts = [
        tokenizer.apply_chat_template(
            [{"role": "user", "content": request.prompt}], tokenize=False, add_generation_prompt=True
        )
        for request in requests
    ]
    tokenizer.padding_side = "left"
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    return tokenizer(texts, return_tensors="pt", padding=True, add_special_tokens=False)


if __name__ == "__main__":
    raise SystemExit(main())
