"""What the images install is locked, and is what pyproject.toml asks for."""

import re
import tomllib

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.deploy.helm import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
IMAGES = {
    "scheduler": (("scheduler.txt",), ("fast",)),
    "gpu": (("scheduler.txt", "models.txt", "torch.txt"), ("fast", "models")),
}


def locked(*names):
    """Name to version of every entry, with at least one hash each."""
    found = {}
    for name in names:
        text = (ROOT / "deploy" / "requirements" / name).read_text(encoding="utf-8")
        for entry in re.split(r"\n(?=\S)", text.strip())[1:]:
            requirement, version = entry.split()[0].split("==")
            assert "--hash=sha256:" in entry, requirement
            assert requirement not in found, f"{requirement} is locked twice"
            found[canonicalize_name(requirement)] = version
    return found


@pytest.mark.parametrize("image", IMAGES)
def test_everything_that_the_project_needs_is_locked_at_a_version_that_it_takes(image):
    files, extras = IMAGES[image]
    versions = locked(*files)
    wanted = [
        *PROJECT["dependencies"],
        *(item for name in extras for item in PROJECT["optional-dependencies"][name]),
    ]
    for requirement in map(Requirement, wanted):
        version = versions.get(canonicalize_name(requirement.name))
        assert version is not None, f"{requirement.name} is not locked; run tools/lock_requirements.py"
        assert requirement.specifier.contains(version), f"{requirement} does not take {version}"


def test_torch_is_the_one_that_developers_install():
    (wanted,) = re.findall(r"^TORCH \?= (torch==\S+)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    (argument,) = re.findall(r"^ARG TORCH=(\S+)$", (ROOT / "deploy/Dockerfile").read_text(), re.MULTILINE)
    assert wanted == argument == f"torch=={locked('torch.txt')['torch']}"


def test_the_distribution_that_would_shadow_our_kernels_is_in_no_image():
    assert "kernels" not in locked("scheduler.txt", "models.txt", "torch.txt")


def test_no_lock_names_where_packages_come_from():
    for name in ("scheduler.txt", "models.txt", "torch.txt"):
        assert "://" not in (ROOT / "deploy" / "requirements" / name).read_text(encoding="utf-8")
