"""The device that computes, by its name, and its memory."""

import os
import platform
from pathlib import Path

import torch

from spearhead.errors import ConfigError
from spearhead.quant.cgroup import memory_limits

TOKENS_AT_ONCE = {"cpu": 2048, "cuda": 16384}
"""Tokens of one batch of statistics and scores, by the type of a device that is supported."""


def compute_device(name: str) -> torch.device:
    """The device of a name; ``auto`` = a CUDA device if there is one.

    Raises:
        ConfigError: It is not here, or not supported.
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:  # a torch without CUDA asserts
        raise ConfigError(f"device {name} cannot be used: {str(error).splitlines()[0]}") from error
    if device.type not in TOKENS_AT_ONCE:
        raise ConfigError(f"device {name} is not supported; use {' or '.join(TOKENS_AT_ONCE)}")
    return device


def device_name(device: torch.device) -> str:
    """What the device is, such as the model of the GPU or processor: another one rounds otherwise."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.is_file() else []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.processor() or platform.machine())


def free_memory_bytes(device: torch.device) -> int:
    """Memory that could be taken now: the least of what the system has and what limits leave.

    On a GPU, what torch keeps of tensors that are gone is free as well: it gives it back when it needs more.
    """
    if device.type == "cuda":
        kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return torch.cuda.mem_get_info(device)[0] + kept
    return min([_available_bytes(), *(limit.free_bytes for limit in memory_limits())])


def give_back_memory(device: torch.device) -> None:
    """Lets go of what torch keeps of tensors that are gone: in pieces it may be of no use to larger ones."""
    if device.type == "cuda":
        with torch.cuda.device(device):
            torch.cuda.empty_cache()


def machine_bytes(device: torch.device) -> int:
    """All memory of a device, free or not: always the same on one machine within the same limits."""
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory)
    installed = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return min([installed, *(limit.limit_bytes for limit in memory_limits())])


def _available_bytes() -> int:
    info = Path("/proc/meminfo")
    if info.is_file():
        for line in info.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
