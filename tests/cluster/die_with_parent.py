"""Tie a child process to the process that started it, so that nothing outlives a killed test run.

As a program (``python -m tests.cluster.die_with_parent PARENT_PID COMMAND...``) it ties itself and then becomes
the command; the tie survives ``exec``.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def die_with_parent(parent_pid: int) -> None:
    """Ask the kernel to kill this process (SIGKILL) as soon as `parent_pid`, its parent, is gone.

    Raises:
        OSError: the kernel refused.
        ProcessLookupError: the parent had gone before the tie was made.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    # A parent that died before the call sends no signal any more.
    if os.getppid() != parent_pid:
        raise ProcessLookupError(f"parent {parent_pid} is gone")


if __name__ == "__main__":
    die_with_parent(int(sys.argv[1]))
    os.execvp(sys.argv[2], sys.argv[2:])  # the command comes from the supervisor, not from outside
