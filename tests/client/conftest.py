from collections.abc import AsyncIterator

import pytest

from spearhead.rpc import EndpointConfig
from tests.scheduler_fake import Running, Serving


@pytest.fixture
async def running() -> AsyncIterator[Running]:
    async with Serving(EndpointConfig(listen="127.0.0.1:0")) as served:
        yield served
