"""A quantisation report as text; pure functions."""

from typing import TYPE_CHECKING

from spearhead.cli.tables import table

if TYPE_CHECKING:
    from spearhead.quant import ModuleReport, QuantizationReport

_SHOWN = 8


def describe_report(report: "QuantizationReport", *, brief: bool = False) -> str:
    """Errors by layer and projection (unless ``brief``), what went otherwise than asked, and the totals."""
    totals = (
        f"{report.path}: {report.module_count} modules, {report.quantization}; "
        f"{report.source_bytes / 1e6:.0f} MB became {report.artefact_bytes / 1e6:.0f} MB, "
        f"relative error of the weights {report.relative_error:.2%}"
    )
    weighted = report.mean_weighted_error
    if weighted is not None:
        totals += f", {weighted:.2%} as {report.calibration_tokens} calibration tokens see it (module mean)"
    errors = [] if brief else [_error_table(report)]
    return "\n".join([*errors, *_remarks(report), totals])


def _error_table(report: "QuantizationReport") -> str:
    """One row a layer, one column a projection, in percent."""
    by_layer: dict[str, dict[str, str]] = {}
    for module in report.modules:
        _, _, layer, part = module.module.split(".", 3)
        by_layer.setdefault(layer, {})[part.split(".")[-1].removesuffix("_proj")] = _cell(module)
    columns = list(next(iter(by_layer.values())))
    rows = [[layer, *(cells[column] for column in columns)] for layer, cells in by_layer.items()]
    return table([["error in %", *columns], *rows])


def _cell(module: "ModuleReport") -> str:
    if module.choice == "dense":
        return module.choice
    error = module.relative_error if module.weighted_error is None else module.weighted_error
    return f"{100 * error:.2f}"


def _remarks(report: "QuantizationReport") -> list[str]:
    """Notes of the run and of modules; equal ones once, with the modules that they are about."""
    by_note: dict[str, list[str]] = {}
    for module in report.modules:
        if module.note:
            by_note.setdefault(module.note, []).append(module.module.removeprefix("model."))
    return [
        *(f"note: {note}" for note in report.notes),
        *(f"note: {note}: {_named(modules)}" for note, modules in by_note.items()),
    ]


def _named(modules: list[str]) -> str:
    rest = len(modules) - _SHOWN
    return ", ".join(modules[:_SHOWN]) + (f" and {rest} more" if rest > 0 else "")
