"""Runs a coroutine that ends in order on Ctrl-C and SIGTERM: what it started is stopped first."""

import asyncio
import signal
from collections.abc import Coroutine
from typing import Any, TypeVar

Result = TypeVar("Result")


def run_interruptibly(main: Coroutine[Any, Any, Result]) -> Result:
    """The coroutine's result.

    Raises:
        KeyboardInterrupt: SIGINT or SIGTERM came; the coroutine was cancelled and has ended.
    """

    async def cancel_on_signal() -> Result:
        task = asyncio.ensure_future(main)
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, task.cancel)
        try:
            return await task
        except asyncio.CancelledError:
            raise KeyboardInterrupt from None

    return asyncio.run(cancel_on_signal())
