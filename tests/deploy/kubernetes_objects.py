"""The objects of an API stand-in: what is stored, and what a write must keep."""

import copy
import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.deploy.helm import Manifest
from tests.deploy.kubernetes_schema import problems

RESOURCES: dict[str, dict[str, str]] = {
    "v1": {
        "pods": "Pod", "services": "Service", "secrets": "Secret", "configmaps": "ConfigMap",
        "serviceaccounts": "ServiceAccount", "persistentvolumeclaims": "PersistentVolumeClaim",
    },
    "apps/v1": {"deployments": "Deployment"},
    "policy/v1": {"poddisruptionbudgets": "PodDisruptionBudget"},
    "autoscaling/v2": {"horizontalpodautoscalers": "HorizontalPodAutoscaler"},
    "networking.k8s.io/v1": {"networkpolicies": "NetworkPolicy"},
    "monitoring.coreos.com/v1": {"servicemonitors": "ServiceMonitor", "podmonitors": "PodMonitor"},
    "keda.sh/v1alpha1": {"scaledobjects": "ScaledObject"},
}  # fmt: skip
"""From API version to its resources, plural name to kind."""

# What a strategic merge patch knows the entries of a list by; the first key that an entry has counts.
_MERGE_KEYS = ("name", "mountPath", "containerPort", "port", "topologyKey")


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """Where an object is stored."""

    api_version: str
    resource: str
    namespace: str
    name: str


class Refused(Exception):
    """A request that an API server answers with an error.

    Attributes:
        code: HTTP status.
        reason: As in ``Status.reason``.
    """

    def __init__(self, code: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.code, self.reason = code, reason


@dataclass
class Objects:
    """Stored objects of one cluster; every write is checked against the strict schema of its version.

    Attributes:
        version: Kubernetes version, such as ``1.33``.
        stored: The objects.
        writes: Method and key of every write that was kept.
    """

    version: str
    stored: dict[Key, Manifest] = field(default_factory=dict)
    writes: list[tuple[str, Key]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._revisions = itertools.count(1)

    def get(self, key: Key) -> Manifest:
        """One object."""
        if key not in self.stored:
            raise Refused(404, "NotFound", f'{key.resource} "{key.name}" not found')
        return self.stored[key]

    def of(
        self, api_version: str, resource: str, namespace: str, labels: Mapping[str, str]
    ) -> list[Manifest]:
        """The objects of a resource that carry labels."""
        return [
            item
            for key, item in self.stored.items()
            if (key.api_version, key.resource) == (api_version, resource)
            and namespace in ("", key.namespace)
            and labels.items() <= item["metadata"].get("labels", {}).items()
        ]

    def create(self, key: Key, body: Manifest, *, dry_run: bool = False) -> Manifest:
        """A new object."""
        if key in self.stored:
            raise Refused(409, "AlreadyExists", f'{key.resource} "{key.name}" already exists')
        return self._keep("POST", key, body, dry_run)

    def replace(self, key: Key, body: Manifest, *, dry_run: bool = False) -> Manifest:
        """An object as a whole: a replacement, or what its only manager applies."""
        return self._keep("PUT", key, body, dry_run)

    def patch(self, key: Key, body: Manifest, *, dry_run: bool = False) -> Manifest:
        """A strategic merge patch."""
        return self._keep("PATCH", key, strategic_merge(self.get(key), body), dry_run)

    def delete(self, key: Key) -> None:
        """Removes an object."""
        self.get(key)
        del self.stored[key]
        self.writes.append(("DELETE", key))

    def _keep(self, method: str, key: Key, body: Manifest, dry_run: bool) -> Manifest:
        item = copy.deepcopy(body)
        item |= {"apiVersion": key.api_version, "kind": RESOURCES[key.api_version][key.resource]}
        item["metadata"] = {
            name: value
            for name, value in item.get("metadata", {}).items()
            if name in ("labels", "annotations", "ownerReferences")
        } | {"name": key.name, "namespace": key.namespace}
        item.pop("status", None)
        self._check(key, item)
        revision = next(self._revisions)
        item["metadata"] |= {"resourceVersion": str(revision), "uid": f"{key.resource}-{key.name}"}
        if not dry_run:
            self.stored[key] = item
            self.writes.append((method, key))
        return item

    def _check(self, key: Key, item: Manifest) -> None:
        if found := problems(item, self.version):
            raise Refused(422, "Invalid", f"{item['kind']} is invalid: {'; '.join(found)}")
        old = self.stored.get(key)
        if key.resource == "deployments" and old and old["spec"]["selector"] != item["spec"]["selector"]:
            raise Refused(422, "Invalid", "spec.selector: Invalid value: field is immutable")


def strategic_merge(old: Any, patch: Any) -> Any:
    """A strategic merge patch, as far as the objects of the chart need it."""
    if isinstance(patch, list) and isinstance(old, list):
        return _merge_lists(old, patch)
    if not isinstance(patch, dict) or not isinstance(old, dict):
        return patch
    if patch.get("$patch") == "replace":
        return {name: value for name, value in patch.items() if name != "$patch"}
    result = {name: value for name, value in old.items() if patch.get(name, value) is not None}
    for name, value in patch.items():
        if not name.startswith("$") and value is not None:
            result[name] = strategic_merge(result.get(name), value)
    return result


def _merge_lists(old: list[Any], patch: list[Any]) -> list[Any]:
    keys = [_merge_key(entry) for entry in patch]
    if None in keys:
        return patch
    result = {_merge_key(entry): entry for entry in old}
    for key, entry in zip(keys, patch, strict=True):
        if entry.get("$patch") == "delete":
            result.pop(key, None)
        else:
            result[key] = strategic_merge(result.get(key), entry)
    return list(result.values())


def _merge_key(entry: Any) -> tuple[str, Any] | None:
    if not isinstance(entry, dict):
        return None
    return next(((name, entry[name]) for name in _MERGE_KEYS if name in entry), None)
