"""A full-precision checkpoint in, a quantised artefact out: layer by layer, resumable, all or nothing."""

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from spearhead.model.checkpoint import open_checkpoint
from spearhead.model.quantization import QuantizationScheme
from spearhead.quant.artefact import check_companions
from spearhead.quant.quantizing.checks import check_places, check_sequences, checked_choices
from spearhead.quant.quantizing.progress import OnProgress
from spearhead.quant.quantizing.report import QuantizationReport
from spearhead.quant.quantizing.run import QuantizationRun
from spearhead.quant.quantizing.settings import RunSettings
from spearhead.quant.recipe import QuantizationRecipe

_DEFAULTS = RunSettings()


def quantize_checkpoint(
    source: str,
    output: Path,
    recipe: QuantizationRecipe | QuantizationScheme,
    sequences: Sequence[Sequence[int]] | None = None,
    *,
    settings: RunSettings = _DEFAULTS,
    progress: OnProgress | None = None,
) -> QuantizationReport:
    """Writes the quantised artefact of a full-precision checkpoint.

    The artefact is a compressed-tensors ``pack-quantized`` folder that transformers and vLLM also read.
    Embedding, norms, biases and head are kept; ``tensor`` granularity is stored as one equal scale a row.
    A run that was killed goes on where it was when it is called again with the same arguments.

    Args:
        source: Folder, ``.gguf`` file or hub id.
        output: Folder to make; must not exist.
        recipe: What becomes of each module; a scheme alone means rounding to nearest everywhere.
        sequences: Calibration token ids. Methods that need none still report the error as these see it.
        settings: How the run works.
        progress: Called after each tensor.

    Raises:
        ConfigError: ``output`` exists or lies in the work folder, the recipe names no such module, the disk
            is full, or the work folder belongs to another run.
        CheckpointError: The source cannot be read, is quantised already, or does not fit the recipe.
        CalibrationError: The calibration tokens are missing where they are needed, or overflow.
    """
    check_places(output, settings.work_folder(output))
    if isinstance(recipe, QuantizationScheme):
        recipe = QuantizationRecipe.uniform(recipe)
    with closing(open_checkpoint(source)) as checkpoint:
        choices = checked_choices(checkpoint, recipe)
        check_companions(checkpoint)
        check_sequences(checkpoint.config, choices, sequences)
        run = QuantizationRun(
            checkpoint,
            source=source,
            output=output,
            recipe=recipe,
            choices=choices,
            sequences=sequences,
            settings=settings,
            progress=progress,
        )
        return run.execute()
