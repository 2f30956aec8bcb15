"""From a path or a hub id to an open checkpoint."""

from pathlib import Path

from spearhead.errors import CheckpointError
from spearhead.model.checkpoint.folder import FolderCheckpoint
from spearhead.model.checkpoint.gguf_file import GgufCheckpoint
from spearhead.model.checkpoint.hub import download, is_hub_id
from spearhead.model.checkpoint.quantized import QuantizedCheckpoint
from spearhead.model.checkpoint.source import Checkpoint
from spearhead.model.checkpoint.tensor_files import read_json


def open_checkpoint(
    path_or_hub_id: str, revision: str | None = None, *, gguf_codes: bool = False
) -> Checkpoint:
    """Opens a checkpoint; its format is found by looking.

    Args:
        path_or_hub_id: A folder with ``config.json`` and safetensors (full precision, or compressed-tensors,
            GPTQ or AWQ in 4 or 8 bits), a ``.gguf`` file, or a hub id such as ``owner/name``.
        revision: Of a hub id: branch, tag or commit.
        gguf_codes: Read the blocks of a ``.gguf`` file as quantised weights (``w4``). By default what they
            dequantise to is the model's full precision (``fp16``).

    Raises:
        CheckpointError: What it is, what is wrong with it, and what to do.
    """
    path = Path(path_or_hub_id)
    if path.is_file():
        if path.suffix != ".gguf":
            raise CheckpointError(f"{path} is a file but no .gguf; give the folder that holds config.json")
        return GgufCheckpoint(path, keep_codes=gguf_codes)
    if gguf_codes:
        raise CheckpointError(f"{path} is no .gguf file, whose blocks could be read as codes; leave that out")
    if not path.exists():
        if not is_hub_id(path_or_hub_id):
            raise CheckpointError(f"{path} does not exist; give a model folder, a .gguf file or a hub id")
        path = download(path_or_hub_id, revision)
    if not (path / "config.json").exists():
        raise CheckpointError(f"{path} has no config.json; give the folder of a whole checkpoint")
    config = read_json(path / "config.json")
    if config.get("quantization_config") is not None:
        return QuantizedCheckpoint(path, config)
    if config.get("compression_config") is not None:
        raise CheckpointError(
            f"{path}: config.json has compression_config, as early versions of compressed-tensors wrote; "
            "rename it to quantization_config"
        )
    return FolderCheckpoint(path, config)
