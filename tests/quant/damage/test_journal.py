from pathlib import Path

import pytest

from spearhead.errors import CalibrationError
from spearhead.quant.damage.journal import DamageJournal, Measured

HEADER = {"kinds": ["kl"], "identity": "a"}
FIRST: dict[str, Measured] = {"up": {"kl": 0.5}, "down": {"kl": 1.2345678901234567}}


def test_what_was_added_is_read_back_exactly(tmp_path: Path) -> None:
    path = tmp_path / "new" / "damage.jsonl"
    journal = DamageJournal(path, HEADER)
    journal.add({"up": FIRST["up"]})
    journal.add({"down": FIRST["down"]})
    assert DamageJournal(path, HEADER).measured == FIRST == journal.measured


@pytest.mark.parametrize("cut", [1, 5, 30])
def test_a_line_that_a_kill_cut_off_is_dropped_and_can_be_written_again(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "damage.jsonl"
    DamageJournal(path, HEADER).add(FIRST)
    path.write_bytes(path.read_bytes()[:-cut])
    resumed = DamageJournal(path, HEADER)
    assert resumed.measured == {"up": FIRST["up"]}
    resumed.add({"down": FIRST["down"]})
    assert DamageJournal(path, HEADER).measured == FIRST


def test_a_header_that_a_kill_cut_off_starts_anew(tmp_path: Path) -> None:
    path = tmp_path / "damage.jsonl"
    path.write_text('{"kinds')
    DamageJournal(path, HEADER).add(FIRST)
    assert DamageJournal(path, HEADER).measured == FIRST


def test_another_measurement_is_refused_with_what_differs(tmp_path: Path) -> None:
    path = tmp_path / "damage.jsonl"
    DamageJournal(path, HEADER).add(FIRST)
    with pytest.raises(CalibrationError, match="identity is 'a', wanted 'b'"):
        DamageJournal(path, HEADER | {"identity": "b"})


@pytest.mark.parametrize(
    "content", ["not json\n", '{"kinds": ["kl"], "identity": "a"}\n{"kl": 1}\n', "{}\n[]\n"]
)
def test_a_damaged_file_is_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "damage.jsonl"
    path.write_text(content)
    with pytest.raises(CalibrationError, match="is damaged"):
        DamageJournal(path, HEADER)


def test_a_file_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(CalibrationError, match="cannot be written"):
        DamageJournal(tmp_path / "file" / "damage.jsonl", HEADER).add(FIRST)
