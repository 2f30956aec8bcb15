"""Whether a quantised checkpoint was made from a full-precision one."""

from dataclasses import asdict

from spearhead.errors import CheckpointError
from spearhead.model.checkpoint.source import Checkpoint

# Generation settings that two copies of one model may disagree about; each keeps its own.
_MAY_DIFFER = ("eos_token_ids", "bos_token_id", "context_length")


def check_origin(quantized: Checkpoint, full: Checkpoint, remedy: str) -> None:
    """Refuses full-precision weights that a quantised checkpoint was not made from.

    Checkpoints that others quantised record no revision; then only the models' shapes can be compared.

    Args:
        quantized: Whose source is wanted.
        full: What is said to be it.
        remedy: What to do instead, a sentence without its full stop.

    Raises:
        CheckpointError: Their shapes differ, or the revision is not the recorded one.
    """
    mine, other = asdict(quantized.config), asdict(full.config)
    differing = [
        f"{name} is {value}, was {other[name]}"
        for name, value in mine.items()
        if value != other[name] and name not in _MAY_DIFFER
    ]
    if differing:
        raise CheckpointError(
            f"{quantized.path} was not made from {full.path}: {'; '.join(differing)}. {remedy}"
        )
    recorded = recorded_revision(quantized)
    if recorded and recorded != full.revision:
        raise CheckpointError(
            f"{full.path} is not what {quantized.path} was made from: revision {full.revision}, recorded "
            f"{recorded}. {remedy}"
        )


def recorded_revision(quantized: Checkpoint) -> str:
    """Of the full-precision checkpoint that a quantised one was made from; empty = not recorded."""
    revision: str = quantized.hugging_face_config.get("spear", {}).get("full_precision_revision", "")
    return revision
