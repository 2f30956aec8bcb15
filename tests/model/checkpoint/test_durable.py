"""The order in which content, entries and names reach the disk."""

import errno

import pytest

from spearhead.model.checkpoint.durable import put_in_place


def test_content_is_on_the_disk_before_its_name_and_the_name_before_the_return(tmp_path):
    written, place = tmp_path / "new.part", tmp_path / "file"
    written.write_text("new")
    place.write_text("old")
    seen = []
    put_in_place(written, place, lambda path: seen.append((path, place.read_text())))
    assert seen == [(written, "old"), (tmp_path, "new")]
    assert place.read_text() == "new"
    assert not written.exists()


def test_everything_in_a_folder_is_on_the_disk_before_the_folder_has_its_name(tmp_path):
    written, place = tmp_path / ".part", tmp_path / "artefact"
    (written / "spear").mkdir(parents=True)
    for name in ("model.safetensors", "spear/ec.json"):
        (written / name).write_text(name)
    seen = []
    put_in_place(written, place, lambda path: seen.append((path.relative_to(tmp_path), place.exists())))
    *before, last = seen
    assert not any(named for _, named in before)
    assert last == (tmp_path.relative_to(tmp_path), True)
    order = [str(path) for path, _ in before]
    assert sorted(order) == [".part", ".part/model.safetensors", ".part/spear", ".part/spear/ec.json"]
    assert order.index(".part/spear/ec.json") < order.index(".part/spear") < order.index(".part")


def test_what_the_disk_does_not_take_leaves_the_old_in_place(tmp_path):
    written, place = tmp_path / "new.part", tmp_path / "file"
    written.write_text("new")
    place.write_text("old")

    def refuse(_path):
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(OSError, match="No space left"):
        put_in_place(written, place, refuse)
    assert place.read_text() == "old"


def test_files_and_folders_really_go_to_the_disk(tmp_path):
    (tmp_path / "part").mkdir()
    (tmp_path / "part/one").write_text("1")
    put_in_place(tmp_path / "part", tmp_path / "whole")
    assert (tmp_path / "whole/one").read_text() == "1"
