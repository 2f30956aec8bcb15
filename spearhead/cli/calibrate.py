"""``spearhead calibrate``: compensators for a quantised artefact, kept only where they prove themselves."""

import argparse
import signal
import sys
from pathlib import Path
from types import FrameType

from spearhead.cli.options import check_json_place, check_least, given, publish_line, refuse_idle
from spearhead.errors import ConfigError

_EPILOG = """
The artefact may be one of `spearhead quantize`, a published compressed-tensors, GPTQ or AWQ checkpoint, or a
.gguf file (its blocks are the 4-bit weights). Every stage is kept in a work folder: a run that was
interrupted goes on when the same command is given again. The last line on standard output is one JSON
document.
"""
_FACTOR_BITS = (16, 8, 4)
_DAMAGE = ("cka_final", "cka_block", "kl")
_RECIPES = ("full", "reduced")
_GATES = ("auto", "off", "force")
_DTYPES = ("auto", "float32", "bfloat16")
OF_TEXTS = ("length", "max_segments")
"""Options that only texts have a use for."""

_OF_SAMPLING = ("sampling_batch", "chat_fraction")


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Adds the command."""
    parser = commands.add_parser("calibrate", help="win back what 4 bits lost", epilog=_EPILOG)
    parser.set_defaults(run=run)
    add = parser.add_argument
    add("artefact", type=Path, metavar="ARTEFACT", help="folder of 4-bit weights, or a .gguf file")
    add("--full-precision", metavar="PATH|HUB_ID", help="default: what the artefact was made from")
    add("--budget", default="1%", metavar="SHARE|BYTES", help="share of the 4-bit weights, or bytes (1%%)")
    add("--recipe", choices=_RECIPES, help="full, or one for two cores (full on a GPU, else reduced)")
    add("--factor-bits", type=int, choices=_FACTOR_BITS, default=16, help="of compensators (16)")
    add("--gate", choices=_GATES, help="adaptive gates: keep if they win, none, always (the recipe's)")
    add("--seed", type=int, default=0, metavar="N", help="of everything random (0)")
    add("--force", action="store_true", help="replace compensators that are there")
    add("--work", type=Path, metavar="DIR", help="where stages stay (beside the artefact, and removed)")
    _add_sequences(parser.add_argument_group("sequences (defaults are the recipe's)"))
    _add_selection(parser.add_argument_group("selection"))
    _add_training(parser.add_argument_group("training (defaults are the recipe's)"))
    _add_results(parser.add_argument_group("results"))
    _add_computing(parser.add_argument_group("computing"))


def _add_sequences(group: "argparse._ArgumentGroup") -> None:
    add = group.add_argument
    add("--calibration-text", type=Path, metavar="FILE", help="learn from a text instead of samples")
    add("--sequences", type=Path, metavar="FILE", help="learn from the samples of an earlier run")
    add("--save-sequences", type=Path, metavar="FILE", help="keep the samples for another run")
    add("--sequence-count", type=int, metavar="N", help="a tenth of them is held out")
    add("--sequence-length", type=int, metavar="L", help="tokens of each")
    add("--sampling-batch", type=int, metavar="N", help="written in step; part of what is sampled")
    add("--chat-fraction", type=float, metavar="SHARE", help="of the sequences that are conversations")
    add("--moments-sequences", type=int, metavar="N", help="that statistics are taken from")
    add("--skip-first", type=int, metavar="N", help="tokens of each document that do not count (1)")


def _add_selection(group: "argparse._ArgumentGroup") -> None:
    add = group.add_argument
    add("--damage", choices=_DAMAGE, help="what decides how badly a module was hit (cka_final)")
    add("--damage-tokens", type=int, metavar="N", help="that damage is measured on")
    add("--cost-weight", type=float, metavar="λ", help="0 = damage alone, 1 = damage per time (0.25)")
    add("--coverage", type=float, metavar="κ", help="selected over effectively damaged modules (2)")
    add("--tensor-parallel-size", type=int, metavar="N", help="devices that costs are counted for (1)")
    add("--min-rank", type=int, metavar="R", help="least rank of a compensator (1)")
    add("--max-rank", type=int, metavar="R", help="largest rank (64)")
    add("--rank-quantum", type=int, metavar="R", help="ranks are multiples of it (1)")
    add("--include-w8", action="store_true", default=None, help="also mend modules in 8 bits")


def _add_training(group: "argparse._ArgumentGroup") -> None:
    add = group.add_argument
    add("--steps", type=int, metavar="N", help="updates")
    add("--sequences-per-step", type=int, metavar="N", help="sequences of an update")
    add("--learning-rate", type=float, metavar="RATE", help="of factors, as a share of their size (0.02)")
    add("--gate-learning-rate", type=float, metavar="RATE", help="of gates")
    add("--evaluate-every", type=int, metavar="N", help="updates between looks at the held-out loss")
    add("--patience", type=int, metavar="N", help="looks without a new best that end training; 0 = all steps")


def _add_results(group: "argparse._ArgumentGroup") -> None:
    add = group.add_argument
    add("--text", type=Path, action="append", default=[], metavar="FILE", help="score on it; repeatable")
    add("--length", type=int, metavar="L", help="tokens of a segment of a text (2048)")
    add("--max-segments", type=int, metavar="N", help="of each text; 0 = all (0)")
    add("--report", type=Path, metavar="DIR", help="where report.json and .html go (in the artefact)")
    add("--baselines", action="store_true", help="also score published methods and other placements")
    add("--baseline-rank", type=int, metavar="R", help="their largest rank (32)")
    add("--export-lora", type=Path, metavar="DIR", help="also write the best set without gates as LoRA")
    add("--json", type=Path, metavar="FILE", help="also write the last line there")


def _add_computing(group: "argparse._ArgumentGroup") -> None:
    add = group.add_argument
    add("--device", default="auto", metavar="DEVICE", help="cpu, cuda, cuda:1, … (auto)")
    add("--dtype", choices=_DTYPES, default="auto", help="of sampling and training (auto)")
    add("--threads", type=int, default=0, metavar="N", help="0 = as many as torch chooses (0)")
    add(
        "--memory-gib",
        type=float,
        default=0.0,
        metavar="G",
        help="for layers and hidden states; 0 = most of what is free (0)",
    )
    add("--tokens-at-once", type=int, default=0, metavar="N", help="in a batch; 0 = 2048, on a GPU 16384 (0)")


def run(arguments: argparse.Namespace) -> int:
    """Calibrates; prints tables and, as the last line, one JSON document."""
    _check(arguments)
    # Imported here: torch takes seconds to load, and the other commands do without it.
    from spearhead.cli.calibration import calibrate_artefact

    before = signal.signal(signal.SIGTERM, _interrupt)
    try:
        line = calibrate_artefact(arguments)
    except KeyboardInterrupt:
        print(
            "\ninterrupted; finished work is kept: give the same command again to go on",
            file=sys.stderr,
            flush=True,
        )
        raise
    finally:
        signal.signal(signal.SIGTERM, before)
    publish_line(line, arguments.json)
    return 0


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _check(arguments: argparse.Namespace) -> None:
    parse_budget(arguments.budget)
    if arguments.calibration_text is not None and arguments.sequences is not None:
        raise ConfigError("--calibration-text and --sequences exclude each other; give one of them")
    if arguments.calibration_text is not None and arguments.save_sequences is not None:
        raise ConfigError(
            "--save-sequences keeps what the model wrote, and with --calibration-text it writes nothing; "
            "leave one of them out"
        )
    check_json_place(arguments.json)
    check_least(arguments, ("memory_gib", "tokens_at_once", "threads", "max_segments"), 0)
    check_least(arguments, ("length", "baseline_rank", "sampling_batch"), 1)
    _check_effect(arguments)
    for option in ("text", "calibration_text", "sequences"):
        given = getattr(arguments, option)
        for path in given if isinstance(given, list) else [given]:
            if path is not None and not path.is_file():
                raise ConfigError(f"--{option.replace('_', '-')} {path} is no file")
    if arguments.export_lora is not None and arguments.export_lora.exists():
        raise ConfigError(f"--export-lora {arguments.export_lora} exists; choose another folder")


def _check_effect(arguments: argparse.Namespace) -> None:
    if arguments.gate in (None, "off"):  # no recipe trains gates unless it is told to
        refuse_idle(given(arguments, ["gate_learning_rate"]), "without gates (--gate auto or force)")
    if arguments.calibration_text is not None:
        refuse_idle(given(arguments, _OF_SAMPLING), "with --calibration-text")
    if arguments.sequences is not None:
        refuse_idle(given(arguments, ["sampling_batch"]), "with --sequences")
    if not arguments.text:
        refuse_idle(given(arguments, OF_TEXTS), "without --text")
    if not arguments.baselines:
        refuse_idle(given(arguments, ["baseline_rank"]), "without --baselines")


def parse_budget(text: str) -> tuple[float, int]:
    """Reads ``1%`` or a number of bytes as (share, bytes), one of them 0.

    Raises:
        ConfigError: Anything else.
    """
    try:
        if text.endswith("%"):
            share = float(text.removesuffix("%")) / 100
            if 0 < share < 1:
                return share, 0
        elif int(text) > 0:
            return 0.0, int(text)
    except ValueError:
        pass
    raise ConfigError(f"--budget {text!r} is not understood; give a share such as 1% or a number of bytes")
