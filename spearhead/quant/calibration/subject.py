"""What is calibrated: a 4-bit artefact and the full-precision model behind it, open and checked."""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from spearhead.errors import CheckpointError, ConfigError
from spearhead.model.checkpoint import Checkpoint, open_checkpoint
from spearhead.model.checkpoint.layout import linear_modules
from spearhead.model.checkpoint.origin import check_origin
from spearhead.model.loading import load_tokenizer
from spearhead.quant.allocation import ModuleShape
from spearhead.quant.calibration.folds import Folds
from spearhead.tokenizer import Tokenizer

_ROW_PARALLEL = ("self_attn.o_proj", "mlp.down_proj")


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """An artefact and its source.

    Attributes:
        artefact: Quantised, open.
        full: Full precision, open.
        tokenizer: Of the full-precision model.
        folds: How the artefact's layers are scaled versions of the source's.
        modules: Candidates for compensators, in the model's order.
        skipped: Every other linear module to why it is none.
    """

    artefact: Checkpoint
    full: Checkpoint
    tokenizer: Tokenizer
    folds: Folds
    modules: tuple[ModuleShape, ...]
    skipped: Mapping[str, str]

    @property
    def folder(self) -> Path:
        """Where ``spear`` lies: the artefact, or the folder of its file."""
        path = self.artefact.path
        return path.parent if path.is_file() else path

    @property
    def identity(self) -> dict[str, object]:
        """Digests that every result depends on, as JSON values."""
        return {
            "full_precision": self.full.revision,
            "w4_sha256": dict(self.artefact.weight_digests),
            "quantization": self.artefact.quantization,
            "modules": [module.name for module in self.modules],
        }


def check_exists(path: Path) -> None:
    """Refuses an artefact that is not on this machine: a hub id names no place to write to.

    Raises:
        ConfigError: No such folder or file.
    """
    if not path.exists():
        raise ConfigError(f"{path} does not exist; give the folder of a quantised artefact, or a .gguf file")


@contextmanager
def open_subject(path: Path, full_precision: str | None, *, include_w8: bool = False) -> Iterator[Subject]:
    """Opens both checkpoints and refuses what cannot be calibrated, before any work is done.

    Args:
        path: The artefact: a folder, or a ``.gguf`` file whose blocks are the 4-bit weights.
        full_precision: Folder, ``.gguf`` file or hub id; ``None`` = what the artefact names.
        include_w8: Modules in 8 bits are candidates too.

    Raises:
        CheckpointError: Either cannot be used, or they are not the same model.
        ConfigError: The full-precision model is not known.
    """
    with ExitStack() as stack:
        artefact = stack.enter_context(closing(open_checkpoint(str(path), gguf_codes=path.is_file())))
        if not artefact.quantization:
            raise CheckpointError(f"{path} is not quantised; make a 4-bit artefact with `spearhead quantize`")
        full = stack.enter_context(closing(open_checkpoint(_location(artefact, full_precision))))
        if full.quantization:
            raise CheckpointError(
                f"{full.path} is quantised ({full.quantization}); name the full-precision model"
            )
        check_origin(artefact, full, "Name the right model with --full-precision, or quantise again")
        modules, skipped = _candidates(artefact, include_w8)
        yield Subject(
            artefact=artefact,
            full=full,
            tokenizer=load_tokenizer(full.path, full.config),
            folds=Folds.of(artefact, full),
            modules=modules,
            skipped=skipped,
        )


def _location(artefact: Checkpoint, full_precision: str | None) -> str:
    if full_precision is not None:
        return full_precision
    named = artefact.full_precision_source
    if named is None:
        raise ConfigError(
            f"{artefact.path} does not say what it was made from, or that is not here; name the "
            "full-precision model with --full-precision"
        )
    return named.location


def _candidates(artefact: Checkpoint, include_w8: bool) -> tuple[tuple[ModuleShape, ...], dict[str, str]]:
    chosen: list[ModuleShape] = []
    skipped: dict[str, str] = {}
    for name, (outputs, inputs) in linear_modules(artefact.config).items():
        weight = artefact.quantized_weight(name)
        if weight is None:
            skipped[name] = "kept in 16 bits"
        elif weight.bits == 8 and not include_w8:
            skipped[name] = "in 8 bits, which lose next to nothing"
        else:
            row_parallel = name.endswith(_ROW_PARALLEL)
            chosen.append(ModuleShape(name=name, outputs=outputs, inputs=inputs, row_parallel=row_parallel))
    if not chosen:
        raise CheckpointError(f"{artefact.path} has no module in 4 bits; nothing needs a compensator")
    return tuple(chosen), skipped
