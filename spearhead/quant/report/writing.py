"""Report files, written whole or not at all."""

import tempfile
from pathlib import Path

from spearhead.errors import CalibrationError
from spearhead.model.checkpoint.durable import put_in_place, sync_to_disk
from spearhead.quant.report.document import RecoveryReport
from spearhead.quant.report.html import report_html


def write_report(report: RecoveryReport, folder: Path) -> None:
    """Writes ``report.json`` and ``report.html``.

    Both are complete on the disk before either takes its name: a full disk leaves the files of before.

    Args:
        report: What to write.
        folder: Made if it does not exist; files of an earlier report are replaced.

    Raises:
        CalibrationError: The files cannot be written.
    """
    _write({folder / "report.json": report.to_json(), folder / "report.html": report_html(report)})


def render(json_path: Path, html_path: Path) -> None:
    """Makes the page of a report that was written earlier.

    Args:
        json_path: A ``report.json``.
        html_path: The page to write; its folder is made if it does not exist.

    Raises:
        CalibrationError: The report cannot be read, is no report, or the page cannot be written.
    """
    try:
        content = json_path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise CalibrationError(f"cannot read the report {json_path}: {error}; check the path") from error
    _write({html_path: report_html(RecoveryReport.from_json(content))})


def _write(contents: dict[Path, str]) -> None:
    temporary: dict[Path, Path] = {}
    try:
        for path, content in contents.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            temporary[path] = _write_temporary(path, content)
        for path, source in temporary.items():
            put_in_place(source, path)
    except OSError as error:
        raise CalibrationError(
            f"cannot write the report {', '.join(map(str, contents))}: {error}; choose another folder or "
            "free some space"
        ) from error
    finally:
        for source in temporary.values():
            source.unlink(missing_ok=True)


def _write_temporary(path: Path, content: str) -> Path:
    with tempfile.NamedTemporaryFile(
        "w", encoding="utf-8", dir=path.parent, prefix=f".{path.name}.", delete=False
    ) as file:
        source = Path(file.name)
        try:
            file.write(content)
            file.flush()
            sync_to_disk(source)
        except OSError:
            source.unlink()
            raise
    source.chmod(0o644)  # temporary files are private
    return source
