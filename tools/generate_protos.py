"""Writes spearhead/v1 from protos/ (``--check`` compares instead, for CI)."""

import argparse
import sys
import tempfile
from importlib.resources import files
from pathlib import Path

from grpc_tools import protoc

ROOT = Path(__file__).resolve().parent.parent


def generate(destination: Path) -> None:
    """Runs protoc over every contract file; writes messages, their type stubs and the service stubs."""
    sources = sorted(str(path) for path in (ROOT / "protos").rglob("*.proto"))
    well_known = str(files("grpc_tools") / "_proto")
    arguments = ["protoc", f"-I{ROOT / 'protos'}", f"-I{well_known}"]
    arguments += [f"--{kind}={destination}" for kind in ("python_out", "pyi_out", "grpc_python_out")]
    if protoc.main(arguments + sources) != 0:
        raise SystemExit("protoc failed; its message is above")


def stale_files(fresh: Path) -> list[str]:
    """Names of generated files that differ between ``fresh`` and the repository."""
    names = {str(path.relative_to(fresh)) for path in fresh.rglob("*_pb2*")}
    names |= {str(path.relative_to(ROOT)) for path in (ROOT / "spearhead" / "v1").glob("*_pb2*")}

    def text(base: Path, name: str) -> str | None:
        return (base / name).read_text() if (base / name).is_file() else None

    return sorted(name for name in names if text(fresh, name) != text(ROOT, name))


def main() -> int:
    """Generates, or with ``--check`` reports drift and returns 1."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare with the repository, write nothing")
    if not parser.parse_args().check:
        generate(ROOT)
        return 0
    with tempfile.TemporaryDirectory() as folder:
        generate(Path(folder))
        stale = stale_files(Path(folder))
    if stale:
        print("generated code is stale, run `make protos`: " + ", ".join(stale), file=sys.stderr)
    return 1 if stale else 0


if __name__ == "__main__":
    raise SystemExit(main())
