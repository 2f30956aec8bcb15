"""Compensators that were fitted elsewhere, for a machine that made the same 4-bit weights itself.

Weights of a 4-bit artefact take gigabytes, compensators a hundredth of that; rounding is the same to the bit
on every machine, so that only the compensators need to travel.
"""

import shutil
from contextlib import closing
from pathlib import Path

from spearhead.errors import CheckpointError, ConfigError
from spearhead.model.checkpoint import open_checkpoint
from spearhead.model.checkpoint.compensator_files import exchanged_pair
from spearhead.model.checkpoint.compensators import FILE, FOLDER, CompensatorSet, load_compensators
from spearhead.model.checkpoint.layout import linear_modules


def attach_compensators(artefact: Path, source: Path) -> CompensatorSet:
    """Copies compensators into an artefact, if they were fitted to exactly its weights.

    Args:
        artefact: Folder of 4-bit weights without compensators.
        source: Folder that holds ``ec.safetensors`` and ``ec.json``.

    Returns:
        What was attached.

    Raises:
        ConfigError: The artefact has compensators already, is in full precision, or cannot be written to.
        CheckpointError: No compensators there, damaged ones, or ones of other weights; nothing is written.
    """
    file, target = source / FILE, artefact / FOLDER / FILE
    if not file.exists():
        raise CheckpointError(f"{source} holds no {FILE}; give the folder `spear` of a calibrated artefact")
    if target.exists() or target.with_suffix(".json").exists():
        raise ConfigError(f"{artefact} has compensators already ({FOLDER}/{FILE}); remove them first")
    with closing(open_checkpoint(str(artefact))) as checkpoint:
        if not checkpoint.quantization:
            raise ConfigError(f"{artefact} is in full precision; compensators belong to 4-bit weights")
        found = load_compensators(
            file,
            modules=linear_modules(checkpoint.config),
            w4_digests=checkpoint.weight_digests,
            quantization=checkpoint.quantization,
        )
    try:
        with exchanged_pair(target) as (written, described):
            shutil.copyfile(file, written)
            shutil.copyfile(file.with_suffix(".json"), described)
    except OSError as error:
        raise ConfigError(f"{target} cannot be written: {error}; make room and try again") from error
    return found
