"""The files of the chart agree: values, their schema, their table, the services' own configuration."""

import json
import subprocess
import sys
import tomllib

import yaml

from tests.deploy.helm import CHART, ROOT

SCHEMA = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))
VALUES = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))
# Whatever an umbrella chart likes, and what only the API server can check.
OPEN = {
    "global", "definitions.affinity.nodeAffinity", "definitions.affinity.podAffinity",
    "definitions.affinity.podAntiAffinity",
}  # fmt: skip


def resolved(schema):
    return SCHEMA["definitions"][schema["$ref"].rsplit("/", 1)[1]] if "$ref" in schema else schema


def objects(schema, path=""):
    """Every schema of an object, with its path."""
    if schema.get("type") == "object":
        yield path, schema
    for name, inner in {**schema.get("properties", {}), **schema.get("definitions", {})}.items():
        prefix = "definitions." if name in schema.get("definitions", {}) else ""
        yield from objects(inner, f"{path}.{prefix}{name}".strip("."))
    for name in ("items", "additionalProperties"):
        if isinstance(schema.get(name), dict):
            yield from objects(schema[name], f"{path}[]")


def leaves(values, schema, path=""):
    """Every value in values.yaml with its schema, or ``None`` where there is none."""
    schema = resolved(schema) if schema else schema
    if not isinstance(values, dict) or not values or "properties" not in (schema or {}):
        yield path, values, schema
        return
    for key, value in values.items():
        yield from leaves(value, schema["properties"].get(key), f"{path}.{key}".strip("."))


def test_the_schema_is_closed_at_every_level():
    found = {path for path, schema in objects(SCHEMA) if "additionalProperties" not in schema}
    assert found == OPEN


def test_every_value_has_a_schema():
    assert [path for path, _, schema in leaves(VALUES, SCHEMA) if schema is None] == []


def test_every_key_of_the_schema_has_a_default():
    def missing(values, schema, path):
        for name, inner in resolved(schema).get("properties", {}).items():
            if name not in values:
                yield f"{path}.{name}"
            elif isinstance(values[name], dict) and values[name]:
                yield from missing(values[name], inner, f"{path}.{name}")

    # What Kubernetes owns has no default; limits without a processor are on purpose.
    assert [path for path in missing(VALUES, SCHEMA, "") if ".resources" not in path] == []


def test_generated_files_are_up_to_date():
    done = subprocess.run(
        [sys.executable, "tools/generate_chart.py", "--check"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def test_the_chart_has_the_version_of_the_package():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text(encoding="utf-8"))
    assert (chart["version"], chart["appVersion"]) == (project["version"], project["version"])
