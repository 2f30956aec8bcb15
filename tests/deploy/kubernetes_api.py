"""Stands in for an API server: enough of discovery and of objects for helm to install, upgrade and roll back.

Not modelled: watches (``--wait``), controllers, admission, field managers of others than helm.
"""

import contextlib
import json
import threading
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import yaml

from tests.deploy.helm import Manifest
from tests.deploy.kubernetes_objects import RESOURCES, Key, Objects, Refused
from tests.deploy.kubernetes_wire import MAGIC, decode_secret

_VERBS = ["create", "delete", "get", "list", "patch", "update"]


@contextlib.contextmanager
def serving(objects: Objects) -> Iterator[str]:
    """Serves objects on a free loopback port; gives the URL."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(objects))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def discovery(path: str, version: str) -> Any:
    """What the server says about itself; ``None`` = ``path`` is about objects."""
    if path == "/version":
        major, minor = version.split(".")
        return {"major": major, "minor": minor, "gitVersion": f"v{version}.0"}
    if path == "/api":
        return {"kind": "APIVersions", "versions": ["v1"]}
    if path == "/apis":
        groups = [_group(name) for name in RESOURCES if "/" in name]
        return {"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}
    api_version = path.removeprefix("/apis/").removeprefix("/api/")
    if api_version in RESOURCES:
        resources = [
            {"name": name, "singularName": kind.lower(), "kind": kind, "namespaced": True, "verbs": _VERBS}
            for name, kind in RESOURCES[api_version].items()
        ]
        return {"kind": "APIResourceList", "groupVersion": api_version, "resources": resources}
    return None


def _group(api_version: str) -> dict[str, Any]:
    name, version = api_version.split("/")
    entry = {"groupVersion": api_version, "version": version}
    return {"name": name, "versions": [entry], "preferredVersion": entry}


def locate(path: str) -> Key:
    """The key that a path names; without a name it is a list.

    Raises:
        Refused: There is no such resource.
    """
    parts = path.strip("/").split("/")
    length = 2 if parts[0] == "api" else 3
    api_version, rest = "/".join(parts[1:length]), parts[length:]
    namespace = ""
    if rest[:1] == ["namespaces"] and len(rest) > 2:
        namespace, rest = rest[1], rest[2:]
    if not rest or rest[0] not in RESOURCES.get(api_version, {}):
        raise Refused(404, "NotFound", f"the server could not find the requested resource {path}")
    return Key(
        api_version=api_version, resource=rest[0], namespace=namespace, name=rest[1] if len(rest) > 1 else ""
    )


def answer(
    objects: Objects, method: str, path: str, query: Mapping[str, str], body: bytes, content_type: str
) -> Any:
    """The answer to one request.

    Raises:
        Refused: The request is not one that is granted.
    """
    if (about := discovery(path, objects.version)) is not None:
        return about
    key, dry_run = locate(path), "dryRun" in query
    if method == "GET" and not key.name:
        return _list(objects, key, query)
    if method == "GET":
        return objects.get(key)
    if method == "DELETE":
        objects.delete(key)
        return {"kind": "Status", "apiVersion": "v1", "status": "Success"}
    content = _decode(body)
    if method == "POST":
        named = Key(
            api_version=key.api_version, resource=key.resource, namespace=key.namespace,
            name=content["metadata"]["name"],
        )  # fmt: skip
        return objects.create(named, content, dry_run=dry_run)
    if method == "PUT" or "apply-patch" in content_type:
        return objects.replace(key, content, dry_run=dry_run)
    return objects.patch(key, content, dry_run=dry_run)


def _list(objects: Objects, key: Key, query: Mapping[str, str]) -> Manifest:
    labels = dict(term.split("=", 1) for term in query.get("labelSelector", "").split(",") if "=" in term)
    items = objects.of(key.api_version, key.resource, key.namespace, labels)
    kind = RESOURCES[key.api_version][key.resource]
    return {"kind": f"{kind}List", "apiVersion": key.api_version, "metadata": {}, "items": items}


def _decode(body: bytes) -> Manifest:
    if body.startswith(MAGIC):
        return decode_secret(body)
    content: Manifest = yaml.load(body, yaml.CSafeLoader)
    return content


def _handler(objects: Objects) -> type[BaseHTTPRequestHandler]:
    lock = threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        wbufsize = 1 << 16  # head and body in one packet, or each answer waits for an acknowledgement

        def log_message(self, *arguments: Any) -> None:
            """Keeps the test's output clean."""

        def _serve(self) -> None:
            url = urlsplit(self.path)
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            kind = self.headers.get("Content-Type") or ""
            try:
                with lock:
                    result = answer(objects, self.command, url.path, dict(parse_qsl(url.query)), body, kind)
                self._send(201 if self.command == "POST" else 200, result)
            except Refused as error:
                status = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": error.code}
                self._send(error.code, status | {"reason": error.reason, "message": str(error)})

        do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _serve  # noqa: N815  # http.server looks for them

        def _send(self, code: int, content: Any) -> None:
            text = json.dumps(content).encode()
            self.send_response(code)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

    return Handler
