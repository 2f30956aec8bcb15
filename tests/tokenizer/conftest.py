"""The small tokenizer that tests train, and the embedded model's."""

import os
from pathlib import Path
from typing import Any

import pytest

from spearhead.tokenizer import Tokenizer
from tests.tokenizer.reference import gguf_fields, train_reference, write_gguf


@pytest.fixture
def fields() -> dict[str, Any]:
    """Metadata of a small GGUF file; change it before writing."""
    return gguf_fields(train_reference("smollm"), "smollm")


@pytest.fixture
def small(tmp_path: Path, fields: dict[str, Any]) -> Tokenizer:
    """The small tokenizer, from its GGUF file."""
    return Tokenizer.load(write_gguf(tmp_path / "small.gguf", fields))


@pytest.fixture(scope="session")
def embedded_path() -> Path:
    """The SmolLM2 file, or a skip that says how to get it."""
    path = Path(os.environ.get("SPEARHEAD_MODEL", "models/SmolLM2-135M-Instruct.Q4_1.gguf"))
    if not path.is_file():
        pytest.skip(f"{path} is missing; run `make model` or set SPEARHEAD_MODEL to a SmolLM2 GGUF file")
    return path


@pytest.fixture(scope="session")
def embedded(embedded_path: Path) -> Tokenizer:
    """SmolLM2's tokenizer."""
    return Tokenizer.load(embedded_path)
