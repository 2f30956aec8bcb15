"""Files and folders that take their places whole, whatever happens: a kill, a full disk, a power cut."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path


def sync_to_disk(path: Path) -> None:
    """Waits until a file's content, or a folder's entries, are on the disk.

    Raises:
        OSError: The disk does not take them.
    """
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def put_in_place(written: Path, place: Path, sync: Callable[[Path], None] = sync_to_disk) -> None:
    """Gives what is complete its name; from then on it is there for good, and until then nothing of it is.

    A rename alone may reach the disk before the content that it names.

    Args:
        written: A file, or a folder with all that is in it, on the same disk as its place.
        place: A file there is replaced; a folder must not be there.
        sync: Waits until one file or folder is on the disk.

    Raises:
        OSError: The disk does not take it; what was in its place still is.
    """
    for path in _contents(written):
        sync(path)
    os.replace(written, place)
    sync(place.parent)


def _contents(path: Path) -> Iterator[Path]:
    """A path and all below it, folders after what is in them."""
    if path.is_dir():
        for entry in path.iterdir():
            yield from _contents(entry)
    yield path
