"""The report as data: what it holds, what it refuses, and its JSON."""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from spearhead.errors import CalibrationError
from spearhead.quant.report.codec import Json, decode, encode
from spearhead.quant.report.identity import Identity
from spearhead.quant.report.ladder import RungResult, TextScore, TrainingRun
from spearhead.quant.report.quality import ByteRatio, EvaluationTable, QualitySeries, TextReference
from spearhead.quant.report.selection import ModuleRow, Spectrum

FORMAT = "spearhead recovery report"
VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryReport:
    """What four bits lost, what came back, and at how many bytes.

    A part that was not run is an empty tuple, and ``spectrum`` is ``None``.

    Attributes:
        identity: Model, quantiser, software, machine, time.
        texts: The texts that everything else names; none twice.
        modules: All linear modules, also those without a compensator.
        spectrum: How damage spreads over them.
        training: One entry a rung and seed.
        rungs: In the order in which they were tried.
        series: Quality against bytes.
        byte_ratios: Comparisons at equal perplexity.
        evaluations: One table a text.
        warnings: Sentences that a reader must not miss.

    Raises:
        CalibrationError: A field has another type than declared, is not finite, or names a text that
            ``texts`` lacks; or something that must be unique stands twice.
    """

    identity: Identity
    texts: tuple[TextReference, ...]
    modules: tuple[ModuleRow, ...]
    spectrum: Spectrum | None
    training: tuple[TrainingRun, ...]
    rungs: tuple[RungResult, ...]
    series: tuple[QualitySeries, ...]
    byte_ratios: tuple[ByteRatio, ...]
    evaluations: tuple[EvaluationTable, ...]
    warnings: tuple[str, ...]

    def __post_init__(self) -> None:
        encode(self)
        names = [text.name for text in self.texts]
        _check_unique("texts", names)
        _check_unique("modules", [module.name for module in self.modules])
        _check_unique("modules", [f"layer {module.layer}, {module.projection}" for module in self.modules])
        _check_unique("training", [f"{run.rung}, seed {run.seed}" for run in self.training])
        _check_unique("rungs", [rung.rung for rung in self.rungs])
        _check_unique("series", [series.name for series in self.series])
        _check_unique("evaluations", [table.text for table in self.evaluations])
        for table in self.evaluations:
            _check_unique(f"evaluations.{table.text}.rows", [row.variant for row in table.rows])
        for path, scores in self._scores():
            _check_unique(path, [score.text for score in scores])
            _check_known(path, [score.text for score in scores], names)
        _check_known("byte_ratios.text", [ratio.text for ratio in self.byte_ratios], names)
        _check_known("evaluations.text", [table.text for table in self.evaluations], names)

    def to_json(self) -> str:
        """The report as JSON for people and programs; reads back as an equal report."""
        document: dict[str, Json] = {"format": FORMAT, "version": VERSION, **encode(self)}
        # ASCII alone: names come from others' files and may hold what UTF-8 cannot write.
        return json.dumps(document, indent=1, allow_nan=False) + "\n"

    @classmethod
    def from_json(cls, text: str) -> "RecoveryReport":
        """Reads what :meth:`to_json` wrote.

        Raises:
            CalibrationError: Not JSON, another format or version, or a field that is unknown, missing,
                of another type, not finite, or refused by its record.
        """
        try:
            data = json.loads(text, object_pairs_hook=_unique_object)
        except (ValueError, RecursionError) as error:
            raise CalibrationError(f"the report is not JSON ({error}); write it again") from error
        if not isinstance(data, dict) or data.pop("format", None) != FORMAT:
            raise CalibrationError(
                f"not a recovery report: 'format' is not {FORMAT!r}; give the report.json of a calibration"
            )
        version = data.pop("version", None)
        if version != VERSION or not isinstance(version, int) or isinstance(version, bool):
            raise CalibrationError(
                f"the report has version {version!r}, this release reads {VERSION}; use the release that "
                "wrote it"
            )
        return decode(cls, data)

    def _scores(self) -> Iterator[tuple[str, tuple[TextScore, ...]]]:
        for rung in self.rungs:
            yield f"rungs.{rung.rung}.texts", rung.texts
        for series in self.series:
            yield from ((f"series.{series.name}.points.texts", point.texts) for point in series.points)


def _check_known(path: str, names: Iterable[str], known: Sequence[str]) -> None:
    for name in names:
        if name not in known:
            raise CalibrationError(
                f"report field {path} names the text {name!r}, texts has {list(known)}; add it there"
            )


def _check_unique(path: str, names: Iterable[str]) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise CalibrationError(f"report field {path} has {name!r} twice; give each once")
        seen.add(name)


def _unique_object(pairs: list[tuple[str, Json]]) -> dict[str, Json]:
    _check_unique("of the file", (name for name, _ in pairs))
    return dict(pairs)
