import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from spearhead.errors import CalibrationError
from spearhead.quant.report import RecoveryReport, render, report_html, write_report
from spearhead.quant.report.__main__ import main

MakeReport = Callable[..., RecoveryReport]


def test_both_files_are_written_and_nothing_else(make_report: MakeReport, tmp_path: Path) -> None:
    folder = tmp_path / "new" / "report"
    write_report(make_report(), folder)
    assert sorted(path.name for path in folder.iterdir()) == ["report.html", "report.json"]
    assert RecoveryReport.from_json((folder / "report.json").read_text()) == make_report()
    assert (folder / "report.html").read_text(encoding="utf-8") == report_html(make_report())
    assert stat.S_IMODE((folder / "report.html").stat().st_mode) == 0o644


def test_a_report_replaces_the_one_before(make_report: MakeReport, tmp_path: Path) -> None:
    write_report(make_report(), tmp_path)
    write_report(make_report(warnings=()), tmp_path)
    assert RecoveryReport.from_json((tmp_path / "report.json").read_text()) == make_report(warnings=())


def test_a_failure_leaves_no_temporary_files(make_report: MakeReport, tmp_path: Path) -> None:
    (tmp_path / "report.html").mkdir()  # cannot be replaced by a file
    (tmp_path / "report.html" / "inside").touch()
    with pytest.raises(CalibrationError, match="cannot write the report"):
        write_report(make_report(), tmp_path)
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


def test_a_folder_that_cannot_be_made_is_an_error_with_its_name(
    make_report: MakeReport, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(CalibrationError, match="file/report"):
        write_report(make_report(), tmp_path / "file" / "report")


def test_the_page_can_be_made_later(make_report: MakeReport, tmp_path: Path) -> None:
    write_report(make_report(), tmp_path)
    render(tmp_path / "report.json", tmp_path / "pages" / "again.html")
    assert (tmp_path / "pages" / "again.html").read_bytes() == (tmp_path / "report.html").read_bytes()


def test_the_command_makes_the_page(make_report: MakeReport, tmp_path: Path) -> None:
    write_report(make_report(), tmp_path)
    assert main([str(tmp_path / "report.json"), str(tmp_path / "again.html")]) == 0
    assert (tmp_path / "again.html").read_bytes() == (tmp_path / "report.html").read_bytes()


@pytest.mark.parametrize("content", [None, b"\xff\xfe", b"{}"])
def test_the_command_names_what_is_wrong_and_writes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes | None
) -> None:
    if content is not None:
        (tmp_path / "report.json").write_bytes(content)
    assert main([str(tmp_path / "report.json"), str(tmp_path / "page.html")]) == 2
    assert capsys.readouterr().err.startswith("error: ")
    assert not (tmp_path / "page.html").exists()
