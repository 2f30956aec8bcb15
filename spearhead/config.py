"""Configuration enters once: one TOML file a service, dotted overrides, one frozen dataclass.

Sections of the file are nested dataclasses. Unknown keys, wrong types and values that a dataclass
refuses in ``__post_init__`` (with ``ValueError``) all become :class:`ConfigError` with the dotted key.
"""

import dataclasses
import tomllib
import types
import typing
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from spearhead.errors import ConfigError

Config = TypeVar("Config")


def load(cls: type[Config], path: Path | None = None, overrides: Sequence[str] = ()) -> Config:
    """Reads ``path``, applies overrides, returns a checked ``cls``.

    Args:
        cls: A frozen dataclass whose fields are scalars, tuples of scalars or dataclasses.
        path: TOML file; ``None`` = defaults only.
        overrides: ``section.key=value`` each; the value is TOML, or a bare string.

    Raises:
        ConfigError: Unreadable file, unknown key, wrong type, value out of range.
    """
    values = _read(path) if path else {}
    for override in overrides:
        _apply_override(values, override)
    return _build(cls, values, prefix="")


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"configuration file {path} does not exist") from None
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"configuration file {path} cannot be read: {error}") from error


def _apply_override(values: dict[str, Any], override: str) -> None:
    key, separator, text = override.partition("=")
    if not separator or not key.strip():
        raise ConfigError(f"override {override!r} is not of the form section.key=value")
    *sections, name = key.strip().split(".")
    for section in sections:
        values = values.setdefault(section, {})
        if not isinstance(values, dict):
            raise ConfigError(f"override {override!r}: {section} is a value, not a section")
    try:
        values[name] = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        values[name] = text


def _build(cls: type[Config], values: Mapping[str, Any], prefix: str) -> Config:
    hints = typing.get_type_hints(cls)
    known = {field.name for field in dataclasses.fields(cls)}  # type: ignore[arg-type]
    for key in values:
        if key not in known:
            raise ConfigError(f"unknown key {prefix}{key}; known keys here: {', '.join(sorted(known))}")
    converted = {key: _convert(hints[key], value, f"{prefix}{key}") for key, value in values.items()}
    try:
        return cls(**converted)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{prefix.rstrip('.') or 'configuration'}: {error}") from error


def _convert(hint: Any, value: Any, key: str) -> Any:
    if dataclasses.is_dataclass(hint):
        if not isinstance(value, dict):
            raise ConfigError(f"{key} is a section, not a value")
        return _build(typing.cast(type, hint), value, prefix=f"{key}.")
    if isinstance(hint, types.UnionType):
        inner = [arm for arm in typing.get_args(hint) if arm is not type(None)]
        return _convert(inner[0], value, key)
    if typing.get_origin(hint) is typing.Literal:
        if value not in typing.get_args(hint):
            raise ConfigError(f"{key} is {value!r}; it must be one of {', '.join(typing.get_args(hint))}")
        return value
    if typing.get_origin(hint) is tuple:
        if not isinstance(value, list):
            raise ConfigError(f"{key} is {value!r}; it must be a list")
        return tuple(_convert(typing.get_args(hint)[0], item, key) for item in value)
    if hint is Path and isinstance(value, str):
        return Path(value)
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if not isinstance(value, hint) or (isinstance(value, bool) and hint is not bool):
        raise ConfigError(f"{key} is {value!r}; it must be {hint.__name__}")
    return value
