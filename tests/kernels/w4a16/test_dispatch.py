"""The package where Triton is not installed."""

import subprocess
import sys
from pathlib import Path

PROGRAM = """
import sys
sys.modules["triton"] = None  # importing it fails
import torch
import kernels.compensator, kernels.w4a16 as w4a16
codes, scales = torch.zeros(64, 128, dtype=torch.int8), torch.ones(64, 1)
weight = w4a16.pack_gpu(codes, scales)
assert torch.equal(w4a16.unpack_gpu(weight), codes)
x = torch.ones(1, 128, dtype=torch.bfloat16)
assert w4a16.multiply(x, w4a16.pack_codes(codes, scales, x.dtype)).shape == (1, 64)
try:
    w4a16.GpuProducts(w4a16.Plans("GPU", 132), w4a16.Workspace(torch.device("cpu"), partials=0, counters=0))
except ImportError as error:
    print(error)
"""


def test_only_gpu_products_need_triton():
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        cwd=Path(__file__).parents[3],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    assert "triton" in run.stdout
