"""Runs Triton kernels where the tests run: compiled on a GPU, else in Triton's interpreter.

Triton decides when a kernel is defined, so the variable is set before any test module is imported.
"""

import os

import pytest
import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"


@pytest.fixture(scope="session")
def device() -> torch.device:
    """Where kernels run: the GPU if there is one, else the processor through the interpreter."""
    return (
        torch.device("cuda", torch.cuda.current_device())
        if torch.cuda.is_available()
        else torch.device("cpu")
    )
