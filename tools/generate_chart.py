"""Writes what the Helm chart repeats from elsewhere: the schema of service settings, and the table of values.

Usage: generate_chart.py [--check]. With --check nothing is written, and whatever is not up to date is named.
"""

import argparse
import dataclasses
import json
import re
import sys
import types
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from draft_service.config import DraftConfig  # noqa: E402
from scheduler_service.config import SchedulerConfig  # noqa: E402
from verify_service.config import VerifyConfig  # noqa: E402

CHART = ROOT / "deploy" / "helm" / "spearhead"
CONFIGS: dict[str, type] = {"scheduler": SchedulerConfig, "verify": VerifyConfig, "draft": DraftConfig}

# Keys that the chart sets from ports, volumes, secrets and other values; a second place for them would lie.
_SERVER = ("listen", "health_listen", "tls_certificate", "tls_key", "tls_client_ca", "token_file", "drain_s")
_TELEMETRY = ("otlp_endpoint", "sample_ratio", "metrics_listen", "log_level", "log_format")
_TARGET = ("address", "addresses", "tls_ca", "tls_name", "tls_certificate", "tls_key", "token_file")
OWNED = {
    "server": _SERVER,
    "telemetry": _TELEMETRY,
    "verify": _TARGET,
    "draft": _TARGET,
    "model": ("path", "device", "tokenizer"),
    "policy": ("table",),
    "parallel": ("tensor_parallel_size", "launch", "rendezvous_port"),
}

_SCALARS = {int: "integer", float: "number", str: "string", bool: "boolean", Path: "string"}
_HEAD = """# Values

Written by `make chart` from the comments in [values.yaml](values.yaml). The keys below `config` are those of
the TOML files in [deploy/config](../../config), without what the chart sets itself.

| value | default | what |
| --- | --- | --- |
"""


def settings_schema(config: type, section: str = "") -> dict[str, Any]:
    """JSON schema of a configuration dataclass, closed, without the keys that the chart owns.

    Args:
        config: The dataclass.
        section: Its name in the TOML file; empty = the whole file.
    """
    hints = typing.get_type_hints(config)
    properties = {
        field.name: _type_schema(hints[field.name], field.name)
        for field in dataclasses.fields(config)
        if field.name not in OWNED.get(section, ())
    }
    kept = {name: schema for name, schema in properties.items() if schema.get("properties") != {}}
    return {"type": "object", "additionalProperties": False, "properties": kept}


def _type_schema(hint: Any, name: str) -> dict[str, Any]:
    if isinstance(hint, types.UnionType):
        return _type_schema(next(arm for arm in typing.get_args(hint) if arm is not type(None)), name)
    if dataclasses.is_dataclass(hint):
        return settings_schema(typing.cast(type, hint), name)
    if typing.get_origin(hint) is typing.Literal:
        return {"enum": list(typing.get_args(hint))}
    if typing.get_origin(hint) is tuple:
        return {"type": "array", "items": _type_schema(typing.get_args(hint)[0], name)}
    return {"type": _SCALARS[hint]}


def schema_text(current: str) -> str:
    """``values.schema.json`` with its generated definitions renewed."""
    schema = json.loads(current)
    for component, config in CONFIGS.items():
        schema["definitions"][f"{component}Config"] = settings_schema(config)
    return json.dumps(schema, indent=2) + "\n"


def documented_values(text: str) -> Iterator[tuple[str, Any, str]]:
    """Path, default and description of each value whose comment begins with ``# --``.

    Raises:
        SystemExit: A value has no description.
    """
    values = yaml.safe_load(text)
    path: list[tuple[int, str]] = []
    described_below: int | None = None
    comment = ""
    for line in text.splitlines():
        if match := re.match(r" *# -- (.*)", line):
            comment = match[1]
            continue
        match = re.match(r"( *)([A-Za-z][A-Za-z0-9]*):(.*)", line)
        if not match:
            continue
        indent = len(match[1])
        if described_below is not None and indent > described_below:
            continue
        described_below = None
        path = [*(step for step in path if step[0] < indent), (indent, match[2])]
        keys = [key for _, key in path]
        if comment:
            yield ".".join(keys), _look_up(values, keys), comment
            described_below, comment = indent, ""
        elif match[3].strip():
            raise SystemExit(f"values.yaml: {'.'.join(keys)} has no description; put '# -- …' above it")


def _look_up(values: Any, keys: list[str]) -> Any:
    for key in keys:
        values = values[key]
    return values


def table_text(values: str) -> str:
    """``VALUES.md``."""
    rows = (
        f"| `{path}` | `{json.dumps(default)}` | {description} |\n"
        for path, default, description in documented_values(values)
    )
    return _HEAD + "".join(rows)


def main() -> int:
    """Renews the files, or says which are stale."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; fail when something is stale")
    check = parser.parse_args().check
    schema, table = CHART / "values.schema.json", CHART / "VALUES.md"
    wanted = {
        schema: schema_text(schema.read_text(encoding="utf-8")),
        table: table_text((CHART / "values.yaml").read_text(encoding="utf-8")),
    }
    stale = [
        path for path, text in wanted.items() if not path.exists() or path.read_text(encoding="utf-8") != text
    ]
    for path in stale:
        if check:
            print(f"{path.relative_to(ROOT)} is stale; run tools/generate_chart.py", file=sys.stderr)
        else:
            path.write_text(wanted[path], encoding="utf-8")
    return int(check and bool(stale))


if __name__ == "__main__":
    raise SystemExit(main())
