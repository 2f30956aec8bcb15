"""Looks into rendered objects."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tests.deploy.cases import CASES
from tests.deploy.helm import Manifest, render

COMPONENTS = {"scheduler", "verify", "draft"}


def every_case() -> Iterator[tuple[str, Sequence[Manifest]]]:
    """Name and objects of each combination of values."""
    for name, values in CASES.items():
        yield name, render(values)


def of_kind(objects: Sequence[Manifest], *kinds: str) -> list[Manifest]:
    """The objects of some kinds."""
    return [item for item in objects if item["kind"] in kinds]


def named(objects: Sequence[Manifest], kind: str, name: str) -> Manifest:
    """The one object of a kind and name."""
    (found,) = [item for item in of_kind(objects, kind) if item["metadata"]["name"] == name]
    return found


def selects(selector: Mapping[str, str], labels: Mapping[str, str]) -> bool:
    """Whether labels carry everything that a selector asks for."""
    return bool(selector) and selector.items() <= labels.items()


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """A deployment, and what the tests look at in it.

    Attributes:
        component: ``scheduler``, ``verify`` or ``draft``.
        manifest: The object.
        pod: Its pod template: metadata and spec.
        container: The container of the service.
    """

    component: str
    manifest: Manifest
    pod: dict[str, Any]
    container: dict[str, Any]

    @property
    def labels(self) -> dict[str, str]:
        """Labels of the pods."""
        return dict(self.pod["metadata"]["labels"])

    @property
    def selector(self) -> dict[str, str]:
        """What the deployment selects its pods by."""
        return dict(self.manifest["spec"]["selector"]["matchLabels"])

    @property
    def ports(self) -> dict[str, int]:
        """Port numbers by name."""
        return {port["name"]: port["containerPort"] for port in self.container["ports"]}

    @property
    def overrides(self) -> list[str]:
        """The ``--set`` arguments, without the option."""
        prefix = "--set="
        return [text.removeprefix(prefix) for text in self.container["args"] if text.startswith(prefix)]


def workloads(objects: Sequence[Manifest]) -> list[Workload]:
    """Every deployment."""
    return [_workload(item) for item in of_kind(objects, "Deployment")]


def _workload(manifest: Manifest) -> Workload:
    pod = manifest["spec"]["template"]
    (container,) = pod["spec"]["containers"]
    return Workload(component=container["name"], manifest=manifest, pod=pod, container=container)


def pod_specs(objects: Sequence[Manifest]) -> list[dict[str, Any]]:
    """Every pod specification: of deployments and of the test hook."""
    return [
        *(item["spec"] for item in of_kind(objects, "Pod")),
        *(workload.pod["spec"] for workload in workloads(objects)),
    ]


def containers(spec: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Init containers and containers."""
    return [*spec.get("initContainers", ()), *spec["containers"]]
