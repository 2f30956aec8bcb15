"""A process with one tethered child, for tests: prints the child's process id and waits."""

import asyncio
import sys

from spearhead.cli.child import Child


async def main() -> None:
    said = asyncio.Event()
    child = await Child.start("child", sys.argv[1:], lambda name, line: said.set())
    await said.wait()
    print(child.pid, flush=True)
    await child.wait()


if __name__ == "__main__":
    asyncio.run(main())
