"""``spearhead quantize``: a full-precision checkpoint in, a quantised artefact out."""

import argparse
import shutil
import sys
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from spearhead.cli.options import given, refuse_idle
from spearhead.cli.progress import ProgressBar, tell
from spearhead.cli.quantize_report import describe_report

if TYPE_CHECKING:
    from spearhead.quant import QuantizationRecipe, RunSettings
    from spearhead.quant.quantizing.progress import OnProgress
    from spearhead.quant.recipe import Choices

_METHODS = ("rtn", "rtn-clip", "rtn-clip-unweighted", "gptq", "gptq-clip", "awq", "awq-clip", "omniquant")
_METHOD_NUMBERS = {"act_order": "gptq", "damping": "gptq", "clipping_steps": "omniquant"}
"""Option to the methods that it belongs to, by how their names begin."""

_OF_THE_PASS = ("inputs", "dtype", "batch_size", "skip_first")
_NUMBERS = {"sequences": 128, "length": 512}
_OF_TOKENS = (*_NUMBERS, *_OF_THE_PASS)
_EPILOG = """
CHOICE is a scheme (tensor, channel, group32, group64 or group128, optionally /7, /7.5 or /8: the scale is the
largest weight divided by this) or w8 (8 bits per channel), optionally followed by :METHOD; dense keeps 16
bits. PATTERN is a module name in which * stands for anything, or re: and a regular expression; the last that
matches wins. Example: --scheme channel --method gptq --override '*down_proj=group64' --override
'model.layers.0.*=w8'. Methods other than rtn and rtn-clip-unweighted look at calibration tokens: those of
--calibration, or samples from the model itself. A run that was interrupted goes on when it is started again.
"""


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Adds the command."""
    parser = commands.add_parser("quantize", help="quantise a model to 4 bits", epilog=_EPILOG)
    parser.set_defaults(run=run)
    parser.add_argument("source", metavar="PATH|HUB_ID", help="folder, .gguf file or hub id")
    parser.add_argument("destination", type=Path, metavar="FOLDER", help="the artefact; must not exist")
    parser.add_argument("--scheme", default="group32", help="CHOICE for most modules (default %(default)s)")
    parser.add_argument("--method", choices=_METHODS, help="default rtn")
    parser.add_argument(
        "--override", action="append", default=[], metavar="PATTERN=CHOICE", help="may be repeated"
    )
    _add_method_numbers(parser.add_argument_group("numbers of the methods"))
    _add_calibration(parser.add_argument_group("calibration"))
    _add_running(parser.add_argument_group("running"))


def _add_method_numbers(group: "argparse._ArgumentGroup") -> None:
    group.add_argument(
        "--act-order", action="store_true", default=None, help="GPTQ visits important inputs first"
    )
    group.add_argument("--damping", type=float, help="GPTQ's first damping (default 0.01)")
    group.add_argument("--clipping-steps", type=int, help="of omniquant, a layer (default 100)")


def _add_calibration(group: "argparse._ArgumentGroup") -> None:
    group.add_argument(
        "--calibration", type=Path, metavar="FILE", help="a text; without it the model samples its own"
    )
    group.add_argument("--sequences", type=int, metavar="N", help=f"default {_NUMBERS['sequences']}")
    group.add_argument("--length", type=int, help=f"tokens of a sequence (default {_NUMBERS['length']})")
    group.add_argument("--skip-first", type=int, metavar="N", help="tokens that statistics leave out of each")
    group.add_argument(
        "--inputs",
        choices=("full", "quantized"),
        help="whether statistics see earlier layers in full precision or quantised (default full)",
    )


def _add_running(group: "argparse._ArgumentGroup") -> None:
    group.add_argument("--device", default="cpu", help="cpu or cuda (default %(default)s)")
    group.add_argument(
        "--dtype",
        choices=("float32", "bfloat16", "float16"),
        help="of the forward pass over calibration tokens (default float32)",
    )
    group.add_argument("--batch-size", type=int, metavar="N", help="default 8")
    group.add_argument(
        "--work", type=Path, metavar="DIR", help="where finished layers wait (default: beside the artefact)"
    )
    group.add_argument("--brief", action="store_true", help="print no table of errors; the artefact keeps it")
    group.add_argument("--restart", action="store_true", help="drop what an interrupted run left")


def run(arguments: argparse.Namespace) -> int:
    """Quantises and prints a report."""
    # Imported here: torch takes seconds to load, and the other commands do without it.
    from spearhead.quant import quantize_checkpoint
    from spearhead.quant.quantizing.checks import check_places

    recipe, settings = _recipe(arguments), _settings(arguments)
    output: Path = arguments.destination
    work = settings.work_folder(output)
    check_places(output, work)
    sampling = work.with_name(f"{work.name}.sampling")
    if settings.restart:
        shutil.rmtree(sampling, ignore_errors=True)
    try:
        sequences = _sequences(arguments, recipe, settings, sampling)
        report = quantize_checkpoint(
            arguments.source, output, recipe, sequences, settings=settings, progress=_progress()
        )
    except KeyboardInterrupt:
        print("\ninterrupted; the same command goes on with what is finished", file=sys.stderr)
        raise
    shutil.rmtree(sampling, ignore_errors=True)
    print(describe_report(report, brief=arguments.brief))
    return 0


def _progress() -> "OnProgress":
    from spearhead.quant import QuantizationProgress

    bar = ProgressBar("quantizing", unit="MiB")

    def on_progress(progress: QuantizationProgress) -> None:
        bar.start_from(progress.resumed_bytes >> 20)
        bar.move_to(progress.done_bytes >> 20, progress.total_bytes >> 20)

    return on_progress


def _recipe(arguments: argparse.Namespace) -> "QuantizationRecipe":
    from spearhead.quant import MethodOptions, QuantizationRecipe

    options = MethodOptions(**given(arguments, _METHOD_NUMBERS))
    return QuantizationRecipe.parse(arguments.scheme, arguments.method, arguments.override, options)


def _settings(arguments: argparse.Namespace) -> "RunSettings":
    from spearhead.quant import RunSettings

    return RunSettings(
        device=arguments.device,
        work=arguments.work,
        restart=arguments.restart,
        **given(arguments, _OF_THE_PASS),
    )


def _check_effect(arguments: argparse.Namespace, choices: "Choices", *, with_tokens: bool) -> None:
    """Refuses options that nothing would look at: whoever gives one expects something of it.

    Raises:
        ConfigError: Their names.
    """
    methods = {choice.method for choice in choices.values() if choice is not None}
    idle = [
        name
        for name in given(arguments, _METHOD_NUMBERS)
        if not any(method.startswith(_METHOD_NUMBERS[name]) for method in methods)
    ]
    idle += [] if with_tokens else given(arguments, _OF_TOKENS)
    used = f"{', '.join(sorted(methods))} with{'' if with_tokens else 'out'} calibration tokens"
    refuse_idle(idle, f"on {used}")


def _sequences(
    arguments: argparse.Namespace, recipe: "QuantizationRecipe", settings: "RunSettings", work: Path
) -> list[list[int]] | None:
    """Calibration tokens where they are given or needed; the recipe is checked before any are made."""
    from spearhead.model.checkpoint import open_checkpoint
    from spearhead.quant.quantizing.calibration import read_sequences
    from spearhead.quant.quantizing.checks import checked_choices, needs_statistics
    from spearhead.quant.quantizing.self_sampled import sampled_sequences

    numbers = _NUMBERS | given(arguments, _NUMBERS)
    count, length = numbers["sequences"], numbers["length"]
    with closing(open_checkpoint(arguments.source)) as checkpoint:
        choices = checked_choices(checkpoint, recipe)
        with_tokens = arguments.calibration is not None or needs_statistics(choices)
        _check_effect(arguments, choices, with_tokens=with_tokens)
        if arguments.calibration is not None:
            return read_sequences(checkpoint.path, arguments.calibration, length=length, count=count)
        if not with_tokens:
            return None
        bar = ProgressBar("sampling", unit="tokens")
        return sampled_sequences(
            checkpoint,
            count=count,
            length=length,
            settings=settings,
            work=work,
            progress=bar.move_to,
            tell=tell,
        )
