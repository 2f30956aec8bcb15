"""The baseline: ``transformers.generate`` on the same weights and dtype, in a process of its own.

Run as ``python -m spearhead.cli.bench.peer``; the last line of its output is a JSON document.
"""

import argparse
import asyncio
import json
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spearhead.errors import SpearheadError

_PROMPT = "Write a long story about a lighthouse keeper who collects letters found in bottles."
_REPEATS = 3


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


async def measure_peer(options: PeerOptions) -> dict[str, object]:
    """Runs the baseline.

    Returns:
        Its JSON document: tokens a second by number of streams.

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
    document: dict[str, object] = json.loads(output.decode().splitlines()[-1])
    return document


def main() -> int:
    """Times generate() and prints the document."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--streams", default="1,8")
    parser.add_argument("--output-tokens", type=int, default=64)
    parser.add_argument("--threads", type=int, default=0)
    arguments = parser.parse_args()
    streams = [int(part) for part in arguments.streams.split(",")]
    print(json.dumps(_measure(arguments, streams)))
    return 0


def _measure(arguments: argparse.Namespace, streams: list[int]) -> dict[str, Any]:
    import torch

    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    torch.manual_seed(0)
    model, tokenizer = _load(Path(arguments.model), getattr(torch, arguments.dtype))
    return {
        "threads": torch.get_num_threads(),
        "output_tokens": arguments.output_tokens,
        "tokens_per_s": {
            str(count): round(_rate(model, tokenizer, count, arguments.output_tokens), 2) for count in streams
        },
    }


def _load(path: Path, dtype: Any) -> tuple[Any, Any]:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    where: dict[str, Any] = {"gguf_file": path.name} if path.suffix == ".gguf" else {}
    folder = path.parent if where else path
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, **where).eval()
    return model, AutoTokenizer.from_pretrained(folder, **where)


def _rate(model: Any, tokenizer: Any, streams: int, output_tokens: int) -> float:
    """Tokens a second of the fastest of some repeats, after one warm-up; prefill included."""
    import torch

    chat = [{"role": "user", "content": _PROMPT}]
    text = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
    inputs = tokenizer([text] * streams, return_tensors="pt", add_special_tokens=False)
    durations = []
    for _ in range(_REPEATS + 1):
        began_s = time.perf_counter()
        with torch.inference_mode():
            output = model.generate(
                **inputs, do_sample=False, min_new_tokens=output_tokens, max_new_tokens=output_tokens
            )
        durations.append(time.perf_counter() - began_s)
        if output.shape[1] != inputs["input_ids"].shape[1] + output_tokens:
            raise SystemExit("generate() returned another number of tokens than asked for")
    return streams * output_tokens / min(durations[1:])


if __name__ == "__main__":
    raise SystemExit(main())
