import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def write(image, output):
    return subprocess.run(
        [sys.executable, str(ROOT / "tools" / "write_sbom.py"), image, str(output)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip


@pytest.fixture(scope="module")
def bills(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bills")
    for image in ("scheduler", "cpu", "gpu"):
        assert write(image, folder / image).returncode == 0
    return {image: json.loads((folder / image).read_text("utf-8")) for image in ("scheduler", "cpu", "gpu")}


def test_a_bill_lists_every_locked_package_once_with_its_digests(bills):
    files = ("scheduler.txt", "models.txt", "torch.txt")
    text = "".join((ROOT / "deploy" / "requirements" / name).read_text("utf-8") for name in files)
    locked = {tuple(entry) for entry in re.findall(r"^([\w.-]+)==([^\s\\]+)", text, re.MULTILINE)}
    listed = [(part["name"], part["version"]) for part in bills["gpu"]["components"]]
    assert len(listed) == len(set(listed))
    assert {(re.sub(r"[-_.]+", "-", name).lower(), version) for name, version in locked} == set(listed)
    digests = [item["value"] for part in bills["gpu"]["components"] for item in part["properties"]]
    assert len(digests) == text.count("--hash=sha256:")


def test_the_schedulers_bill_has_no_torch(bills):
    assert "torch" not in {part["name"] for part in bills["scheduler"]["components"]}
    assert "torch" in {part["name"] for part in bills["gpu"]["components"]}


def test_a_bill_is_cyclonedx_whose_references_resolve(bills):
    for image, bill in bills.items():
        assert (bill["bomFormat"], bill["specVersion"], bill["version"]) == ("CycloneDX", "1.6", 1)
        assert re.fullmatch(r"urn:uuid:[0-9a-f-]{36}", bill["serialNumber"])
        root = bill["metadata"]["component"]
        assert (root["type"], root["name"]) == ("container", f"spearhead-{image}")
        ((edges),) = bill["dependencies"]
        assert edges["ref"] == root["bom-ref"]
        assert edges["dependsOn"] == [part["bom-ref"] for part in bill["components"]]
        assert all(
            part["purl"] == f"pkg:pypi/{part['name']}@{part['version']}" for part in bill["components"]
        )


def test_the_same_lock_gives_the_same_bytes(bills, tmp_path):
    write("scheduler", tmp_path / "again")
    assert json.loads((tmp_path / "again").read_text("utf-8")) == bills["scheduler"]
    assert bills["scheduler"]["serialNumber"] != bills["gpu"]["serialNumber"]
