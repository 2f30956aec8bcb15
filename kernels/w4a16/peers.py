"""Other 4-bit kernels to measure against, where somebody has put them: vLLM's Marlin and Machete.

A folder with ``vllm_c.so`` (or ``vllm_c.so.xz``) and ``scalar_type.py`` out of vLLM's wheel. Benchmarks only;
nothing that serves knows this module.
"""

import importlib.util
import lzma
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from kernels.w4a16.layout import GpuWeight, unpack_gpu
from kernels.w4a16.reference import CODE_MIN

_LIBRARY, _TYPES = "vllm_c.so", "scalar_type.py"
Multiply = Callable[[Tensor], Tensor]


class Peers:
    """Loads the peers' operators.

    Args:
        folder: Where the library lies.

    Raises:
        OSError: A file is missing, or the library does not load.
    """

    def __init__(self, folder: Path) -> None:
        folder = unpacked(folder)
        torch.ops.load_library(str(folder / _LIBRARY))  # type: ignore[no-untyped-call]
        spec = importlib.util.spec_from_file_location("scalar_type", folder / _TYPES)
        if spec is None or spec.loader is None:
            raise OSError(f"{folder} has no scalar_type.py; take it from the wheel the library is from")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        self._type = module.scalar_types.uint4b8.id
        self._locks = torch.zeros(4 * 132, dtype=torch.int32, device="cuda")

    def marlin(self, weight: GpuWeight, dtype: torch.dtype) -> Multiply:
        """Marlin on the same codes; group size 128 or per channel."""
        n, k = weight.shape
        codes = torch.ops._C.gptq_marlin_repack(
            _packed(weight).contiguous(), torch.empty(0, dtype=torch.int32, device="cuda"), k, n, 4, False
        )
        scales = _marlin_scales(weight, dtype)

        def multiply(x: Tensor) -> Tensor:
            y: Tensor = torch.ops._C.marlin_gemm(
                x, None, codes, None, scales, None, None, None, None, None, self._locks, self._type,
                x.shape[0], n, k, True, False, True, False,
            )  # fmt: skip
            return y

        return multiply

    def machete(self, weight: GpuWeight, dtype: torch.dtype) -> Multiply:
        """Machete on the same codes; group size 128 or per channel."""
        words = _packed(weight).t().contiguous().t()
        codes = torch.ops._C.machete_prepack_B(words, dtype, self._type, dtype)
        scales = weight.scales[:, : weight.out_features].to(dtype).contiguous()

        def multiply(x: Tensor) -> Tensor:
            y: Tensor = torch.ops._C.machete_mm(
                x, codes, self._type, None, scales, None, weight.group_size or None, None, None, None
            )
            return y

        return multiply


def unpacked(folder: Path) -> Path:
    """A folder with the library as it is loaded: this one, or a new one, since it may be read-only.

    Raises:
        OSError: A file is missing.
    """
    if (folder / _LIBRARY).exists():
        return folder
    target = Path(tempfile.mkdtemp())
    (target / _LIBRARY).write_bytes(lzma.decompress((folder / f"{_LIBRARY}.xz").read_bytes()))
    (target / _TYPES).write_bytes((folder / _TYPES).read_bytes())
    return target


def _packed(weight: GpuWeight) -> Tensor:
    """int32 ``(K / 8, N)``: eight inputs a word, code i + 8 at bit 4 i."""
    nibbles = (unpack_gpu(weight).T.to(torch.int32) - CODE_MIN).reshape(-1, 8, weight.out_features)
    words = torch.zeros_like(nibbles[:, 0])
    for place in range(8):
        words |= nibbles[:, place] << (4 * place)
    return words


def _marlin_scales(weight: GpuWeight, dtype: torch.dtype) -> Tensor:
    """Scales in the order in which Marlin's threads read them."""
    scales = weight.scales[:, : weight.out_features].to(dtype)
    if weight.group_size:
        order = [column + 8 * row for column in range(8) for row in range(8)]
    else:
        order = [2 * pair + column for pair in range(4) for column in (0, 1, 8, 9, 16, 17, 24, 25)]
    return scales.reshape(-1, len(order))[:, order].reshape(-1, weight.out_features).contiguous()
