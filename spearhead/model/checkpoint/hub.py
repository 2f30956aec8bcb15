"""Checkpoints named by their Hugging Face hub id."""

import re
from pathlib import Path

from huggingface_hub import snapshot_download

from spearhead.errors import CheckpointError

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_WANTED = ["*.json", "*.safetensors", "*.jinja", "tokenizer.model"]
_UNWANTED = ["consolidated*", "original/*"]  # the same weights in other layouts


def is_hub_id(text: str) -> bool:
    """Whether the text reads as ``owner/name``."""
    return _HUB_ID.fullmatch(text) is not None


def download(hub_id: str, revision: str | None) -> Path:
    """The local folder of a hub checkpoint, downloaded when it is not cached.

    Args:
        hub_id: ``owner/name``.
        revision: Branch, tag or commit; ``None`` = the main branch.

    Raises:
        CheckpointError: The hub cannot be reached, or has no such checkpoint.
    """
    try:
        folder = snapshot_download(
            hub_id, revision=revision, allow_patterns=_WANTED, ignore_patterns=_UNWANTED
        )
    except Exception as error:  # the hub client raises errors of many libraries
        raise CheckpointError(
            f"{hub_id} is no folder here, and could not be fetched from the Hugging Face hub: {error}. "
            "Check the name and the network, or give the path of a local folder"
        ) from error
    return Path(folder)
