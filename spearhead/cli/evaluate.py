"""``spearhead evaluate``: what quantised variants lose against full precision, side by side."""

import argparse
from pathlib import Path

from spearhead.cli.options import check_json_place, check_least, given, publish_line, refuse_idle
from spearhead.errors import ConfigError

_DTYPES = ("float32", "bfloat16", "float16")
_AT_LEAST_ONE = ("draft_tokens", "prompt_tokens", "output_tokens", "draws", "length", "self_sample_length")
_NOT_NEGATIVE = (
    "prompts",
    "self_samples",
    "temperature",
    "memory_gib",
    "seed",
    "self_sample_seed",
    "threads",
    "tokens_at_once",
    "stride",
    "max_segments",
)
OF_TEXTS = ("length", "stride", "bos_per_segment", "max_segments")
"""Options that only texts have a use for."""

OF_SELF_SAMPLES = ("self_sample_length", "self_sample_seed")
"""Options that only self-samples have a use for."""

OF_ACCEPTANCE = ("draft_tokens", "temperature", "output_tokens")
"""Options that only acceptance has a use for, beside those that choose drafters and prompts."""


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Adds the command."""
    parser = commands.add_parser("evaluate", help="perplexity, divergence and acceptance of quantised models")
    parser.set_defaults(run=run)
    add = parser.add_argument
    add("models", nargs="+", metavar="MODEL", help="folders, .gguf files or hub ids; full precision is found")
    add(
        "--quantization",
        action="append",
        default=[],
        metavar="SCHEME",
        help="also evaluate full precision rounded to nearest, such as channel or group32/7; repeatable",
    )
    add("--json", type=Path, metavar="FILE", help="also write the last line there")
    _add_text_options(parser)
    _add_acceptance_options(parser)
    add = parser.add_argument_group("computing").add_argument
    add("--device", default="auto", metavar="DEVICE", help="cpu, cuda, cuda:1, … (auto)")
    add("--dtype", choices=_DTYPES, default="float32", help="of the layers (%(default)s)")
    add("--threads", type=int, default=0, metavar="N", help="0 = as many as torch chooses (0)")
    add("--memory-gib", type=float, default=0.0, metavar="G", help="for layers; 0 = most of what is free (0)")
    add(
        "--tokens-at-once",
        type=int,
        default=0,
        metavar="N",
        help="in one batch; 0 = 2048, on a GPU 16384 (0)",
    )
    add("--draws", type=int, default=2000, metavar="N", help="resamples of the bootstrap (2000)")


def _add_text_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("texts").add_argument
    add("--text", type=Path, action="append", default=[], metavar="FILE", help="UTF-8; repeatable")
    add("--length", type=int, metavar="L", help="tokens of a segment (2048)")
    add("--stride", type=int, metavar="N", help="from segment to segment; 0 = no overlap (0)")
    add("--bos-per-segment", action="store_true", help="start each segment with the beginning token")
    add("--max-segments", type=int, metavar="N", help="of each text; 0 = all (0)")
    add("--self-samples", type=int, default=0, metavar="N", help="sequences that full precision writes (0)")
    add("--self-sample-length", type=int, metavar="L", help="tokens of each (256)")
    add("--self-sample-seed", type=int, metavar="N", help="not the calibration's (1009)")


def _add_acceptance_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("acceptance").add_argument
    add(
        "--drafter",
        action="append",
        default=[],
        metavar="self|ngram|MODEL",
        help="full precision itself, look-up, or a draft model; repeatable (self)",
    )
    add("--draft-tokens", type=int, metavar="K", help="drafts a round (5)")
    add("--temperature", type=float, metavar="T", help="0 = greedy (1.0)")
    add("--seed", type=int, default=0, metavar="N", help="of noise and resamples (0)")
    add(
        "--prompts",
        type=int,
        default=16,
        metavar="N",
        help="one a segment of the first text; 0 = no acceptance (16)",
    )
    add("--prompt-tokens", type=int, metavar="N", help="of each (128)")
    add("--output-tokens", type=int, metavar="N", help="written after each (128)")


def run(arguments: argparse.Namespace) -> int:
    """Evaluates; prints tables and, as the last line, one JSON document."""
    _check(arguments)
    # Imported here: torch takes seconds to load, and the other commands do without it.
    from spearhead.cli.evaluation import evaluate

    publish_line(evaluate(arguments), arguments.json)
    return 0


def _check(arguments: argparse.Namespace) -> None:
    if not arguments.text and not arguments.self_samples:
        raise ConfigError("nothing to evaluate on; give --text FILE (two are better) or --self-samples N")
    check_least(arguments, _AT_LEAST_ONE, 1)
    check_least(arguments, _NOT_NEGATIVE, 0)
    check_json_place(arguments.json)
    if not arguments.prompts:
        refuse_idle(given(arguments, ("drafter", "prompt_tokens", *OF_ACCEPTANCE)), "with --prompts 0")
    if not arguments.text:
        refuse_idle(given(arguments, OF_TEXTS), "without --text")
    if not arguments.self_samples:
        refuse_idle(given(arguments, OF_SELF_SAMPLES), "without --self-samples")
