"""Writes the bill of materials of an image, from the lock files that the image is built from.

Usage: write_sbom.py IMAGE OUTPUT, where IMAGE is scheduler, cpu or gpu. CycloneDX 1.6 JSON, the same bytes
for the same lock files. It lists the Python packages that we install, each with the digests of the files that
may be installed for it; what the base image brings is in the base image's own bill.
"""

import argparse
import json
import re
import sys
import tomllib
import uuid
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
LOCKS = {
    "scheduler": ("scheduler.txt",),
    "cpu": ("scheduler.txt", "models.txt", "torch.txt"),
    "gpu": ("scheduler.txt", "models.txt", "torch.txt"),
}
_ENTRY = re.compile(r"([A-Za-z0-9._-]+)(?:\[[^\]]*\])?==([^\s;\\]+)(.*)", re.DOTALL)


def components(text: str) -> list[dict[str, Any]]:
    """One component for each entry of a lock file.

    Raises:
        SystemExit: An entry pins no version or has no digest.
    """
    found = []
    for entry in re.split(r"\n(?=\S)", text.strip()):
        if entry.startswith("#"):
            continue
        match = _ENTRY.fullmatch(entry)
        digests = re.findall(r"--hash=sha256:([0-9a-f]{64})", entry)
        if match is None or not digests:
            raise SystemExit(f"{entry.split()[0]} is not locked to a version with digests; lock again")
        name = re.sub(r"[-_.]+", "-", match[1]).lower()
        found.append(
            {
                "type": "library",
                "bom-ref": f"pkg:pypi/{name}@{match[2]}",
                "name": name,
                "version": match[2],
                "purl": f"pkg:pypi/{name}@{match[2]}",
                "properties": [{"name": "spearhead:file:sha256", "value": digest} for digest in digests],
            }
        )
    return found


def bill_of_materials(image: str, folder: Path, version: str) -> dict[str, Any]:
    """The document.

    Args:
        image: One of :data:`LOCKS`.
        folder: Of the lock files.
        version: Of the product.
    """
    found = [part for name in LOCKS[image] for part in components((folder / name).read_text("utf-8"))]
    found.sort(key=lambda part: part["bom-ref"])
    root = f"pkg:generic/spearhead-{image}@{version}"
    content = json.dumps([root, found])
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, content)}",
        "version": 1,
        "metadata": {
            "component": {
                "type": "container",
                "bom-ref": root,
                "name": f"spearhead-{image}",
                "version": version,
            },
            "properties": [{"name": "spearhead:scope", "value": "Python packages; not the base image"}],
        },
        "components": found,
        "dependencies": [{"ref": root, "dependsOn": [part["bom-ref"] for part in found]}],
    }


def main() -> int:
    """Writes the file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("image", choices=sorted(LOCKS))
    parser.add_argument("output", type=Path)
    arguments = parser.parse_args()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    version = project.get("version", "0")
    document = bill_of_materials(arguments.image, ROOT / "deploy" / "requirements", version)
    arguments.output.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
