"""Work folders that belong to one process at a time."""

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from spearhead.errors import ConfigError


@contextmanager
def claimed_folder(path: Path, sign: str) -> Iterator[None]:
    """Takes a work folder for this process alone, until it is left or the process ends however it may.

    Args:
        path: Made if it is not there.
        sign: Name of the file that is locked; a folder with files but without it is somebody else's.

    Raises:
        ConfigError: Another process uses it, it holds other files, or it cannot be written.
    """
    if path.exists() and not path.is_dir():
        raise ConfigError(f"{path} is a file; choose a folder for --work")
    if path.exists() and any(path.iterdir()) and not (path / sign).exists():
        raise ConfigError(f"{path} holds other files; choose an empty folder for --work")
    try:
        path.mkdir(parents=True, exist_ok=True)
        lock = (path / sign).open("w")
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error}; choose another folder with --work") from error
    with lock:
        claim(lock.fileno(), path)
        yield


def claim(handle: int, path: Path) -> None:
    """Locks an open file of a folder, or the open folder, until the handle is closed.

    Raises:
        ConfigError: Another process holds it.
    """
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise ConfigError(f"{path} is used by another run; wait for it, or choose another folder") from None
