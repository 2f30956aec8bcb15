"""Ranks compare all files that they compute with."""

from dataclasses import dataclass, field

import pytest

from verify_service.loading import digests


@dataclass
class Corrections:
    digest: str = "sha256:ec"


@dataclass
class Files:
    """What is compared of a checkpoint."""

    revision: str = "sha256:w"
    compensators: Corrections | None = field(default_factory=Corrections)


ALL = ("fp16", "w4", "w4+ec")


@pytest.mark.parametrize(
    "other",
    [
        (Files(revision="sha256:other"), Files()),
        (Files(compensators=Corrections("sha256:retrained")), Files()),
        (Files(compensators=None), Files()),
        (Files(), Files(revision="sha256:other")),
    ],
    ids=["weights", "compensators", "no compensators", "full precision"],
)
def test_another_file_is_noticed(other):
    assert digests(Files(), Files(), ALL) == digests(Files(), Files(), ALL)
    assert digests(*other, ALL) != digests(Files(), Files(), ALL)


def test_files_that_no_variant_reads_may_differ():
    other = Files(compensators=Corrections("sha256:retrained")), Files(revision="sha256:other")
    assert digests(*other, ("w4",)) == digests(Files(), Files(), ("w4",))
