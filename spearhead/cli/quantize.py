"""``spearhead quantize``: a full-precision checkpoint in, a 4-bit artefact out."""

import argparse
from pathlib import Path

from spearhead.cli.progress import ProgressBar


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Adds the command."""
    parser = commands.add_parser("quantize", help="round a model to 4 bits (round to nearest)")
    parser.set_defaults(run=run)
    parser.add_argument("source", metavar="PATH|HUB_ID", help="folder, .gguf file or hub id")
    parser.add_argument("destination", type=Path, metavar="FOLDER", help="the artefact; must not exist")
    parser.add_argument(
        "--scheme",
        default="group32",
        help="tensor, channel, group32, group64 or group128: what shares a scale (default %(default)s)",
    )


def run(arguments: argparse.Namespace) -> int:
    """Quantises and prints a report."""
    # Imported here: torch takes seconds to load, and the other commands do without it.
    from spearhead.model.quantization import QuantizationScheme
    from spearhead.quant import QuantizationProgress, quantize_checkpoint

    bar = ProgressBar("quantizing", unit="MiB")

    def on_progress(progress: QuantizationProgress) -> None:
        bar.move_to(progress.done_bytes >> 20, progress.total_bytes >> 20)

    report = quantize_checkpoint(
        arguments.source,
        arguments.destination,
        QuantizationScheme.parse(arguments.scheme),
        on_progress,
    )
    print(
        f"{report.path}: {report.module_count} modules, {report.quantization}; "
        f"{report.source_bytes / 1e6:.0f} MB became {report.artefact_bytes / 1e6:.0f} MB, "
        f"relative error of the weights {report.relative_error:.2%}"
    )
    return 0
