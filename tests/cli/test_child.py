import asyncio
import sys
from pathlib import Path

import psutil
import pytest

from spearhead.cli.child import Child

PARENT = Path(__file__).with_name("parent_process.py")
ROOT = PARENT.parents[2]
PRINT = "import sys; print('out'); print('err', file=sys.stderr); sys.exit(4)"
WAIT = "import time; print('up', flush=True); time.sleep(60)"


async def start(code: str) -> tuple[Child, list[str]]:
    lines: list[str] = []
    child = await Child.start("name", [sys.executable, "-c", code], lambda name, line: lines.append(line))
    return child, lines


async def test_every_line_is_reported_and_kept_and_the_exit_code_is_known():
    child, lines = await start(PRINT)
    assert await child.wait() == 4
    assert child.exit_code == 4
    assert sorted(lines) == ["err", "out"]
    assert list(child.tail) == lines


async def test_only_the_last_lines_are_kept():
    child, lines = await start("print('\\n'.join(map(str, range(100))))")
    await child.wait()
    assert len(lines) == 100
    assert list(child.tail) == [str(number) for number in range(80, 100)]


async def test_a_long_line_and_bytes_that_are_no_text_pass():
    child, lines = await start("import os; os.write(1, b'x' * 200_000 + b'\\xff\\nend')")
    await child.wait()
    assert len(lines[0]) == 200_001
    assert lines[1] == "end"


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a child of its parent's death")
async def test_a_parent_that_is_killed_takes_its_children_with_it():
    parent = await asyncio.create_subprocess_exec(
        sys.executable, str(PARENT), sys.executable, "-c", WAIT,
        cwd=ROOT, env={"PYTHONPATH": str(ROOT)}, stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert parent.stdout is not None
    child = psutil.Process(int(await parent.stdout.readline()))
    parent.kill()
    await parent.wait()
    await asyncio.to_thread(psutil.wait_procs, [child], 10)
    assert not child.is_running() or child.status() == psutil.STATUS_ZOMBIE
