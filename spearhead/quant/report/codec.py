"""Frozen dataclasses to JSON values and back, strictly: what is not declared, or not finite, is refused."""

import dataclasses
import math
import types
import typing
from collections.abc import Callable, Mapping
from enum import StrEnum

from spearhead.errors import CalibrationError

Json = None | bool | int | float | str | list["Json"] | dict[str, "Json"]
"""A JSON value."""

T = typing.TypeVar("T")

_Leaf = Callable[[object, str], object]


def encode(value: object, path: str = "") -> dict[str, Json]:
    """A dataclass as a JSON object.

    Args:
        value: An instance of a dataclass whose fields are ``str``, ``bool``, ``int``, ``float``, string
            enums, dataclasses, tuples of one type, or one of these and ``None``.
        path: Where it stands, for errors.

    Raises:
        CalibrationError: A field holds another type than it declares, or a number that is not finite.
    """
    hints = _hints(type(value))
    return {
        name: _encode(getattr(value, name), hint, f"{path}.{name}" if path else name)
        for name, hint in hints.items()
    }


def decode(cls: type[T], data: object, path: str = "") -> T:
    """The inverse of :func:`encode`.

    Args:
        cls: The dataclass.
        data: What ``json.loads`` gave.
        path: Where it stands, for errors.

    Raises:
        CalibrationError: A field is missing, unknown, of another type, or not finite; or the dataclass
            itself refuses its fields.
    """
    return typing.cast(T, _decode(data, cls, path))


def _hints(cls: type) -> dict[str, object]:
    resolved = typing.get_type_hints(cls)
    return {field.name: resolved[field.name] for field in dataclasses.fields(cls)}


def _encode(value: object, hint: object, path: str) -> Json:
    optional, hint = _strip_none(hint)
    if value is None and optional:
        return None
    item = _tuple_item(hint)
    if item is not None:
        if not isinstance(value, tuple):
            raise _wrong(path, value, "a tuple")
        return [_encode(entry, item, f"{path}[{index}]") for index, entry in enumerate(value)]
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        if type(value) is not hint:
            raise _wrong(path, value, hint.__name__)
        return encode(value, path)
    return typing.cast(Json, _leaf(hint)(value, path))


def _decode(data: object, hint: object, path: str) -> object:
    optional, hint = _strip_none(hint)
    if data is None and optional:
        return None
    item = _tuple_item(hint)
    if item is not None:
        if not isinstance(data, list):
            raise _wrong(path, data, "a list")
        return tuple(_decode(entry, item, f"{path}[{index}]") for index, entry in enumerate(data))
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        return _decode_object(hint, data, path)
    return _leaf(hint)(data, path)


def _decode_object(cls: type, data: object, path: str) -> object:
    if not isinstance(data, Mapping):
        raise _wrong(path, data, "an object")
    hints = _hints(cls)
    for problem, names in (("unknown", data.keys() - hints.keys()), ("missing", hints.keys() - data.keys())):
        if names:
            raise CalibrationError(
                f"report field {path or 'root'}: {problem} {', '.join(sorted(map(str, names)))}; "
                "read it with the release that wrote it"
            )
    prefix = f"{path}." if path else ""
    return cls(**{name: _decode(data[name], hint, prefix + name) for name, hint in hints.items()})


def _strip_none(hint: object) -> tuple[bool, object]:
    """Whether ``None`` is allowed, and the type beside it."""
    if isinstance(hint, types.UnionType):
        first, second = typing.get_args(hint)  # the records declare no wider unions
        assert second is types.NoneType
        return True, first
    return False, hint


def _tuple_item(hint: object) -> object | None:
    return typing.get_args(hint)[0] if typing.get_origin(hint) is tuple else None


def _leaf(hint: object) -> _Leaf:
    if isinstance(hint, type) and issubclass(hint, StrEnum):
        return lambda value, path: _enum(hint, value, path)
    return {str: _text, bool: _truth, int: _integer, float: _number}[typing.cast(type, hint)]


def _enum(cls: type[StrEnum], value: object, path: str) -> StrEnum:
    if not isinstance(value, str) or value not in {member.value for member in cls}:
        raise _wrong(path, value, f"one of {', '.join(cls)}")
    return cls(value)


def _text(value: object, path: str) -> str:
    if not isinstance(value, str):
        raise _wrong(path, value, "text")
    return value


def _truth(value: object, path: str) -> bool:
    if not isinstance(value, bool):
        raise _wrong(path, value, "true or false")
    return value


def _integer(value: object, path: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise _wrong(path, value, "a whole number")
    return value


def _number(value: object, path: str) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise _wrong(path, value, "a number")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise _wrong(path, value, "a finite number")
    return number


def _wrong(path: str, value: object, expected: str) -> CalibrationError:
    shown = repr(value)
    shown = shown if len(shown) <= 80 else shown[:77] + "..."
    return CalibrationError(
        f"report field {path or 'root'} is {shown} ({type(value).__name__}), not {expected}; "
        "look at what measured it"
    )
