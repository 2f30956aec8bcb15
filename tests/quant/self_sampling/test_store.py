from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from spearhead.errors import CalibrationError
from spearhead.quant.self_sampling import (
    SampledSequences,
    SamplingOrigin,
    SamplingTokens,
    SelfSamplingConfig,
    load_sequences,
)

ORIGIN = SamplingOrigin(
    config=SelfSamplingConfig(sequence_count=20, length=6, seed=8),
    tokens=SamplingTokens(vocab_size=50, bos_token_id=1, eos_token_ids=(2,)),
    revision="sha256:aa",
)


@pytest.fixture
def sequences() -> SampledSequences:
    starts = torch.zeros(20, 6, dtype=torch.bool)
    starts[:, 0] = True
    starts[3, 4] = True
    ids = torch.arange(120, dtype=torch.int32).reshape(20, 6)
    return SampledSequences(token_ids=ids, document_starts=starts, rejected=3, origin=ORIGIN)


def test_what_was_saved_is_loaded(sequences: SampledSequences, tmp_path: Path) -> None:
    path = tmp_path / "new" / "sequences.safetensors"
    sequences.save(path)
    loaded = load_sequences(path, ORIGIN)
    assert torch.equal(loaded.token_ids, sequences.token_ids)
    assert torch.equal(loaded.document_starts, sequences.document_starts)
    assert (loaded.rejected, loaded.origin) == (3, ORIGIN)
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_sequences_of_another_model_or_configuration_are_refused(
    sequences: SampledSequences, tmp_path: Path
) -> None:
    path = tmp_path / "sequences.safetensors"
    sequences.save(path)
    with pytest.raises(CalibrationError, match="revision is 'sha256:aa', wanted 'sha256:bb'"):
        load_sequences(path, replace(ORIGIN, revision="sha256:bb"))
    with pytest.raises(CalibrationError, match=r"temperature is 1\.0, wanted 0\.5"):
        load_sequences(path, replace(ORIGIN, config=replace(ORIGIN.config, temperature=0.5)))
    with pytest.raises(CalibrationError, match="bos_token_id is 1, wanted 4"):
        load_sequences(path, replace(ORIGIN, tokens=replace(ORIGIN.tokens, bos_token_id=4)))


@pytest.mark.parametrize("content", [b"", b"\x08\x00\x00\x00\x00\x00\x00\x00{}      "])
def test_a_file_that_is_none_is_refused(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "sequences.safetensors"
    path.write_bytes(content)
    with pytest.raises(CalibrationError, match="does not hold sampled sequences"):
        load_sequences(path, ORIGIN)


def test_another_safetensors_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "sequences.safetensors"
    save_file({"token_ids": torch.zeros(1)}, path)
    with pytest.raises(CalibrationError, match="does not hold sampled sequences"):
        load_sequences(path, ORIGIN)


def test_a_file_that_cannot_be_written_is_an_error_and_leaves_nothing(
    sequences: SampledSequences, tmp_path: Path
) -> None:
    target = tmp_path / "sequences.safetensors"
    target.mkdir()
    (target / "occupied").touch()
    with pytest.raises(CalibrationError, match="cannot be written"):
        sequences.save(target)
    assert [file.name for file in tmp_path.iterdir()] == [target.name]


def test_the_split_is_disjoint_complete_and_always_the_same(sequences: SampledSequences) -> None:
    train, heldout = sequences.split(holdout=0.1)
    assert (len(train.token_ids), len(heldout.token_ids)) == (18, 2)
    together = torch.cat([train.token_ids, heldout.token_ids])
    assert torch.equal(together[together[:, 0].argsort()], sequences.token_ids)
    assert torch.equal(heldout.token_ids, sequences.split(holdout=0.1)[1].token_ids)
    assert torch.equal(train.document_starts.sum(), 20 - 2 + torch.tensor(3 in _places(train)).long())


def test_too_few_sequences_cannot_be_split(sequences: SampledSequences) -> None:
    with pytest.raises(CalibrationError, match=r"0\.1 of 1 sequences cannot be kept aside"):
        sequences.select([0]).split()


def _places(sequences: SampledSequences) -> list[int]:
    return (sequences.token_ids[:, 0] // 6).tolist()
