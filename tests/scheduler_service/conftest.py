import contextlib
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from spearhead.tokenizer import Tokenizer
from tests.scheduler_service.stack import Stack, run_stack
from tests.scheduler_service.toy_model import ToyModel, letter_ids, save_toy_tokenizer


@pytest.fixture(scope="session")
def tokenizer_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_toy_tokenizer(tmp_path_factory.mktemp("tokenizer"))


@pytest.fixture(scope="session")
def tokenizer(tokenizer_folder: Path) -> Tokenizer:
    return Tokenizer.load(tokenizer_folder)


@pytest.fixture
def socket_folder() -> Iterator[Path]:
    """A short path: a Unix socket's may have 107 characters."""
    with tempfile.TemporaryDirectory(prefix="sp") as folder:
        yield Path(folder)


StackFactory = Callable[..., contextlib.AbstractAsyncContextManager[Stack]]


@pytest.fixture
def make_stack(socket_folder: Path, tokenizer_folder: Path, tokenizer: Tokenizer) -> StackFactory:
    """Runs a scheduler with fake workers; keywords as for ``run_stack``."""

    def make(**options: Any) -> contextlib.AbstractAsyncContextManager[Stack]:
        options.setdefault("model", ToyModel(letter_ids(tokenizer)))
        return run_stack(socket_folder, tokenizer_folder, **options)

    return make


@pytest.fixture
async def stack(make_stack: StackFactory) -> AsyncIterator[Stack]:
    async with make_stack() as running:
        yield running
