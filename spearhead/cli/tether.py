"""Runs a service that ends when its parent does, however the parent ends.

Usage: python tether.py PARENT_PID COMMAND…. The process asks the kernel for SIGTERM at its
parent's death and then becomes the command, so a parent that is killed leaves no services behind. Linux
alone offers this; elsewhere the command simply runs.
"""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Ties this process to its parent and becomes the command."""
    parent, command = int(sys.argv[1]), sys.argv[2:]
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
        if os.getppid() != parent:  # it died before the line above
            raise SystemExit(1)
    os.execv(command[0], command)


if __name__ == "__main__":
    main()
