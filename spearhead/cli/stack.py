"""Which processes a local stack is made of and how each is started; pure functions."""

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from spearhead.errors import ConfigError

SERVICES = ("verify", "draft", "scheduler")
_DRAFTERS_WITHOUT_MODEL = ("ngram", "layer_skip")
# How long idle OpenMP threads spin before they sleep. Waking one takes about 45 us, some hundred times a
# step; the default, milliseconds, steals the cores of the other services: loading two models on two cores
# took six times as long. This is long enough for the gap between two operations.
_ENVIRONMENT = {"GOMP_SPINCOUNT": "10000"}


@dataclass(frozen=True, slots=True, kw_only=True)
class StackOptions:
    """What ``spearhead up`` starts.

    Attributes:
        model: The target: a folder, a .gguf file, or a hub id. Empty = the configuration files say it.
        tokenizer: Local folder or .gguf file with the target's tokenizer; empty = ``model``.
        draft: A model like ``model``; "ngram" or "layer_skip" = drafts without a model of their own;
            "none" = no draft service.
        quantization: Scheme for rounding the target at load, such as "group32"; empty = as stored.
        listen: Where the scheduler listens.
        threads: Compute threads of each worker; 0 = the services' default.
        latency_table: File that ``spearhead profile`` wrote, to plan with; ``None`` = as configured.
        config_folder: Holds verify.toml, draft.toml and scheduler.toml; ``None`` = defaults.
        overrides: "service.section.key=value" each, applied last.
    """

    model: str = ""
    tokenizer: str = ""
    draft: str = "ngram"
    quantization: str = ""
    listen: str = "127.0.0.1:50051"
    threads: int = 0
    latency_table: Path | None = None
    config_folder: Path | None = None
    overrides: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceCommand:
    """One process.

    Attributes:
        name: "verify", "draft" or "scheduler".
        argv: Its command line.
        health_socket: Unix socket where its health service answers in plaintext, without a token.
        environment: Variables that it gets unless they are set already.
    """

    name: str
    argv: tuple[str, ...]
    health_socket: Path
    environment: Mapping[str, str]


def service_commands(options: StackOptions, sockets: Path) -> tuple[ServiceCommand, ...]:
    """The processes of a stack, in the order in which they start: workers first.

    Args:
        options: What is wanted.
        sockets: Existing folder for the Unix sockets between the services.

    Raises:
        ConfigError: No model, or an override that names no service.
    """
    if not options.model and options.config_folder is None:
        raise ConfigError(
            "no model: give --model PATH|HUB_ID, or --config-dir with a verify.toml that names one"
        )
    settings: dict[str, dict[str, str | int]] = {
        "verify": _worker_settings(options, sockets, "verify"),
        "draft": _worker_settings(options, sockets, "draft") | _draft_settings(options),
        "scheduler": _scheduler_settings(options, sockets),
    }
    if options.quantization:
        settings["verify"]["variants.quantization"] = options.quantization
    names = [name for name in SERVICES if name != "draft" or options.draft != "none"]
    return tuple(
        ServiceCommand(
            name=name,
            argv=_argv(name, settings[name], options),
            health_socket=_health_socket(sockets, name),
            environment=_ENVIRONMENT,
        )
        for name in names
    )


def worker_address(sockets: Path, name: str) -> str:
    """Where the worker "verify" or "draft" listens."""
    return f"unix:{sockets / f'{name}.sock'}"


def _health_socket(sockets: Path, name: str) -> Path:
    return sockets / f"{name}-health.sock"


def _worker_settings(options: StackOptions, sockets: Path, name: str) -> dict[str, str | int]:
    settings: dict[str, str | int] = {
        "server.listen": worker_address(sockets, name),
        "server.health_listen": f"unix:{_health_socket(sockets, name)}",
    }
    if options.model:
        settings["model.path"] = options.model
    if options.threads:
        settings["model.threads"] = options.threads
    return settings


def _draft_settings(options: StackOptions) -> dict[str, str | int]:
    if options.draft in _DRAFTERS_WITHOUT_MODEL:
        return {"drafter.kind": options.draft}
    return {"drafter.kind": "model", "model.path": options.draft}


def _scheduler_settings(options: StackOptions, sockets: Path) -> dict[str, str | int]:
    settings: dict[str, str | int] = {
        "server.listen": options.listen,
        "server.health_listen": f"unix:{_health_socket(sockets, 'scheduler')}",
        "verify.address": worker_address(sockets, "verify"),
    }
    if options.model:
        settings["model.tokenizer"] = options.tokenizer or options.model
    if options.draft != "none":
        settings["draft.address"] = worker_address(sockets, "draft")
    if options.latency_table is not None:
        settings |= {"policy.kind": "table", "policy.table": str(options.latency_table)}
    return settings


def _argv(name: str, settings: dict[str, str | int], options: StackOptions) -> tuple[str, ...]:
    argv = [sys.executable, "-m", f"{name}_service"]
    config = options.config_folder / f"{name}.toml" if options.config_folder else None
    if config is not None and config.is_file():
        argv += ["--config", str(config)]
    for key, value in settings.items():
        argv += ["--set", f"{key}={json.dumps(value)}"]
    for override in options.overrides:
        service, _, setting = override.partition(".")
        if service not in SERVICES or "=" not in setting:
            raise ConfigError(
                f"--set {override!r} is not of the form SERVICE.section.key=value; "
                f"the services are {', '.join(SERVICES)}"
            )
        if service == name:
            argv += ["--set", setting]
    return tuple(argv)
