from spearhead.cli.checks.models import check_agreement, check_models


def test_a_folder_that_holds_no_model_is_wrong_and_says_what_to_give(tmp_path):
    (finding,) = check_models(str(tmp_path), None)
    assert not finding.ok
    assert "config.json" in finding.text
    assert finding.remedy


def test_a_damaged_file_is_wrong(tmp_path):
    path = tmp_path / "model.gguf"
    path.write_bytes(b"GGUF" + bytes(8))
    (finding,) = check_models(str(path), None)
    assert not finding.ok


def test_vocabularies_that_differ_are_wrong_with_both_hashes():
    finding = check_agreement("sha256:aa", "sha256:bb")
    assert not finding.ok
    assert "sha256:aa" in finding.text
    assert "sha256:bb" in finding.text
    assert check_agreement("sha256:aa", "sha256:aa").ok
