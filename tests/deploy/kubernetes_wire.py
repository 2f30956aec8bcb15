"""Reads the one object that helm sends as protobuf: the secret that holds a release."""

import base64
from collections.abc import Iterator
from typing import Any

MAGIC = b"k8s\x00"
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


def decode_secret(body: bytes) -> dict[str, Any]:
    """A secret in Kubernetes' protobuf envelope as the object that JSON would hold.

    Field numbers are those of ``runtime.Unknown``, ``meta.v1.ObjectMeta`` and ``core.v1.Secret``.
    """
    envelope = dict(_fields(body.removeprefix(MAGIC)))
    kind = dict(_fields(envelope[1]))
    secret: dict[str, Any] = {
        "apiVersion": kind[1].decode(), "kind": kind[2].decode(), "metadata": {"labels": {}}, "data": {},
    }  # fmt: skip
    for number, value in _fields(envelope[2]):
        if number == 1:
            _read_metadata(value, secret["metadata"])
        elif number == 2:
            key, content = _entry(value)
            secret["data"][key.decode()] = base64.b64encode(content).decode()
        elif number == 3:
            secret["type"] = value.decode()
    return secret


def _read_metadata(body: bytes, metadata: dict[str, Any]) -> None:
    for number, value in _fields(body):
        if number in (1, 3):
            metadata["name" if number == 1 else "namespace"] = value.decode()
        elif number == 11:
            key, content = _entry(value)
            metadata["labels"][key.decode()] = content.decode()


def _entry(body: bytes) -> tuple[bytes, bytes]:
    fields = dict(_fields(body))
    return fields[1], fields.get(2, b"")


def _fields(body: bytes) -> Iterator[tuple[int, Any]]:
    position = 0
    while position < len(body):
        tag, position = _varint(body, position)
        number, wire_type = tag >> 3, tag & 7
        if wire_type == _VARINT:
            value, position = _varint(body, position)
            yield number, value
        elif wire_type == _BYTES:
            length, position = _varint(body, position)
            yield number, body[position : position + length]
            position += length
        else:
            position += {_FIXED32: 4, _FIXED64: 8}[wire_type]


def _varint(body: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = body[position]
        position += 1
        value |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            return value, position
