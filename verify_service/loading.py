"""From the configuration to a verifier: opens checkpoints, picks variants, loads them."""

from collections.abc import Sequence
from contextlib import ExitStack, closing

from spearhead.errors import ConfigError
from spearhead.model.checkpoint import FP16, W4, W4_EC, load_variants, offered_variants, open_checkpoint
from spearhead.model.loading import LoadedModel, load_model
from spearhead.model.quantization import QuantizationScheme
from verify_service.config import VariantSettings, VerifyConfig


def load(config: VerifyConfig) -> tuple[LoadedModel, str]:
    """Loads the target model; seconds to minutes.

    Returns:
        The model, and the name of the variant that serves first.

    Raises:
        CheckpointError, ConfigError: See the functions that it calls.
    """
    settings, wanted = config.model, config.variants
    scheme = QuantizationScheme.parse(wanted.quantization) if wanted.quantization else None
    with ExitStack() as stack:
        checkpoint = stack.enter_context(closing(open_checkpoint(settings.path, settings.revision or None)))
        full_precision = None
        if wanted.full_precision:
            full_precision = stack.enter_context(closing(open_checkpoint(wanted.full_precision)))
        offered = offered_variants(checkpoint, quantization=scheme, full_precision=full_precision)
        held = offered if wanted.hold == ("auto",) else wanted.hold
        serve = choose_served(wanted, held)
        if scheme is not None and W4 not in held:
            raise ConfigError(
                f"variants.quantization is {wanted.quantization!r}, but variants.hold has no w4; add it, or "
                "leave the scheme out"
            )
        model = load_model(
            checkpoint,
            settings,
            config.kv_cache,
            config=checkpoint.config,
            load_weights=lambda dtype, device: load_variants(
                checkpoint,
                variants=held,
                dtype=dtype,
                device=device,
                quantization=scheme,
                full_precision=full_precision,
                keep_four_bits=wanted.keep_four_bits,
            ),
        )
    return model, serve


def choose_served(wanted: VariantSettings, held: Sequence[str]) -> str:
    """The variant that serves first.

    Raises:
        ConfigError: ``serve`` is not among the variants held.
    """
    if wanted.serve == "auto":
        return next(name for name in (W4_EC, W4, FP16) if name in held)
    if wanted.serve not in held:
        raise ConfigError(f"variants.serve is {wanted.serve!r}; held are {', '.join(held)}")
    return wanted.serve
