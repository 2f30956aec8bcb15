"""Strict schemas of Kubernetes objects, and our own of the custom resources that the chart renders."""

import functools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from referencing import Registry, Resource

from tests.deploy.helm import ROOT, TOOLS, Manifest

VERSIONS = ("1.30", "1.33", "1.37")
_CUSTOM = Path(__file__).with_name("schemas")


def problems(manifest: Manifest, version: str) -> list[str]:
    """What a schema says against an object; an object without a schema is a problem too."""
    validator = _validator(manifest["apiVersion"], manifest["kind"], version)
    if validator is None:
        return [f"no schema for {manifest['apiVersion']} {manifest['kind']} in {version}"]
    name = f"{manifest['kind']} {manifest['metadata']['name']}"
    return [f"{name}: {error.json_path}: {error.message}" for error in validator.iter_errors(manifest)]


@functools.cache
def _validator(api_version: str, kind: str, version: str) -> Draft202012Validator | None:
    custom = _CUSTOM / f"{kind}.json"
    if custom.exists():
        schema = json.loads(custom.read_text(encoding="utf-8"))
        own = schema["properties"]["apiVersion"]["const"] == api_version
        return Draft202012Validator(schema) if own else None
    group, _, name = api_version.rpartition("/")
    identity = {"group": group, "kind": kind, "version": name}
    for key, definition in _definitions(version)["$defs"].items():
        if identity in definition.get("x-kubernetes-group-version-kind", ()):
            return Draft202012Validator({"$ref": f"{_URI}#/$defs/{key}"}, registry=_registry(version))
    return None


_URI = "urn:kubernetes"


@functools.cache
def _definitions(version: str) -> dict[str, Any]:
    path = TOOLS / f"kubernetes-{version}.json"
    if not path.exists():
        pytest.skip(f"{path.relative_to(ROOT)} is not there; `make helm` fetches it")
    definitions: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return definitions


@functools.cache
def _registry(version: str) -> Registry[Any]:
    content = {"$schema": "https://json-schema.org/draft/2020-12/schema", **_definitions(version)}
    content.pop("$id", None)
    for definition in _nested(content):
        reference = definition.get("$ref")
        if isinstance(reference, str):
            definition["$ref"] = _URI + reference[reference.index("#") :]
    return Registry().with_resource(_URI, Resource.from_contents(content))


def _nested(node: Any) -> Iterator[dict[str, Any]]:
    if isinstance(node, dict):
        yield node
        for value in node.values():
            yield from _nested(value)
    elif isinstance(node, list):
        for value in node:
            yield from _nested(value)
