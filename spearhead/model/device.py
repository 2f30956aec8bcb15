"""Which device computes, in which types, and whether it can."""

import importlib.util

import torch

from spearhead.errors import ConfigError
from spearhead.model.settings import ModelSettings

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}

_LEAST_CAPABILITY = (9, 0)  # the kernels' assembly needs it
_LARGEST_VOCABULARY = 1 << 18  # of the sampling kernels


def compute_dtypes(settings: ModelSettings, device: torch.device) -> tuple[torch.dtype, ...]:
    """The compute types to try, the preferred one first.

    ``auto`` takes bfloat16 on a GPU. On a processor it takes bfloat16 where that is multiplied in hardware,
    and float32 where not, or where bfloat16 turns out to depend on the batch.
    """
    if settings.dtype != "auto":
        return (DTYPES[settings.dtype],)
    if device.type == "cuda":
        return (torch.bfloat16,)
    fast = (torch.bfloat16,) if torch.cpu._is_avx512_bf16_supported() else ()
    return (*fast, torch.float32)


def compute_device(settings: ModelSettings) -> torch.device:
    """Resolves ``device`` and sets the number of threads.

    Raises:
        ConfigError: The device does not exist here, or nothing here computes on it.
    """
    try:
        device = torch.device(settings.device)
    except RuntimeError as error:
        raise ConfigError(f"model.device is {settings.device!r}, which is no device: {error}") from error
    if settings.threads:
        torch.set_num_threads(settings.threads)
    if device.type == "cpu":
        return device
    if device.type != "cuda":
        raise ConfigError(
            f"model.device is {settings.device!r}; this version serves on cpu, cuda or cuda:<index>"
        )
    return _cuda_device(device, settings.device)


def _cuda_device(device: torch.device, named: str) -> torch.device:
    if not torch.cuda.is_available():
        built = f"built for CUDA {torch.version.cuda}" if torch.version.cuda else "built without CUDA"
        raise ConfigError(
            f"model.device is {named!r}, but torch {torch.__version__} ({built}) finds no CUDA device; give "
            "this process a GPU and its driver, or set model.device = 'cpu'"
        )
    count = torch.cuda.device_count()
    index = torch.cuda.current_device() if device.index is None else device.index
    if index >= count:
        raise ConfigError(f"model.device is {named!r}, but there are {count} CUDA devices, counted from 0")
    if importlib.util.find_spec("triton") is None:
        raise ConfigError(
            f"model.device is {named!r}, but Triton, which compiles the GPU kernels, is not installed; "
            "install triton, or set model.device = 'cpu'"
        )
    check_capability(torch.cuda.get_device_name(index), torch.cuda.get_device_capability(index))
    return torch.device("cuda", index)


def check_capability(name: str, capability: tuple[int, int]) -> None:
    """Refuses a GPU that the kernels cannot run on.

    Args:
        name: The driver's name for it.
        capability: Its compute capability.

    Raises:
        ConfigError: It is too old.
    """
    if capability < _LEAST_CAPABILITY:
        have, need = (".".join(map(str, pair)) for pair in (capability, _LEAST_CAPABILITY))
        raise ConfigError(
            f"{name} has compute capability {have}; the GPU kernels need {need} (Hopper) or later: "
            "set model.device = 'cpu'"
        )


def check_vocabulary(size: int, device: torch.device) -> None:
    """Refuses a vocabulary that cannot be sampled on a GPU.

    Raises:
        ConfigError: It is too large.
    """
    if device.type == "cuda" and size > _LARGEST_VOCABULARY:
        raise ConfigError(
            f"the vocabulary has {size} tokens; sampling on a GPU supports {_LARGEST_VOCABULARY}: "
            "set model.device = 'cpu'"
        )
