"""The services' TOML files: keys, types and ranges, as each service itself would read them."""

from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

from spearhead import config as configuration
from spearhead.cli.checks.finding import Finding
from spearhead.errors import ConfigError

_CONFIGURATIONS = {
    "verify": ("verify_service.config", "VerifyConfig"),
    "draft": ("draft_service.config", "DraftConfig"),
    "scheduler": ("scheduler_service.config", "SchedulerConfig"),
}


def check_configuration(folder: Path) -> Iterator[Finding]:
    """Each of verify.toml, draft.toml and scheduler.toml that is there.

    Args:
        folder: Where they are.
    """
    files = {name: folder / f"{name}.toml" for name in _CONFIGURATIONS}
    if not any(path.is_file() for path in files.values()):
        yield Finding(
            subject=f"folder {folder}",
            ok=False,
            text="it holds none of verify.toml, draft.toml and scheduler.toml",
            remedy="start from the files in deploy/config",
        )
    for name, path in files.items():
        if path.is_file():
            yield _check_file(name, path)


def _check_file(name: str, path: Path) -> Finding:
    module, cls = _CONFIGURATIONS[name]
    try:
        configuration.load(getattr(import_module(module), cls), path)
    except ConfigError as error:
        remedy = f"correct {path}; deploy/config/{name}.toml explains every key"
        return Finding(subject=str(path), ok=False, text=error.message, remedy=remedy)
    return Finding(subject=str(path), ok=True, text="valid")
