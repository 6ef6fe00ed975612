"""The process at the other end of a Unix socket: who it is, and how to end it when it no longer answers.

Knows: credentials of sockets, process descriptors (Linux). Does not know: frames, engines.
A descriptor names the very process that was connected to, so that a number given to another one since is never hit.
"""

import contextlib
import os
import signal
import socket
import struct
import sys
from pathlib import Path

_CREDENTIALS = struct.Struct("3i")  # pid, uid, gid


class Peer:
    """`kill` works where the kernel tells who is there; elsewhere it does nothing and says so."""

    def __init__(self, connected: socket.socket) -> None:
        self._descriptor = _open(connected)

    def kill(self) -> bool:
        """SIGKILL, which ends also a stopped process. False where that cannot be done from here."""
        if sys.platform != "linux" or self._descriptor is None:
            return False
        with contextlib.suppress(ProcessLookupError):  # it ended meanwhile
            signal.pidfd_send_signal(self._descriptor, signal.SIGKILL)
        return True

    def close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def serves(path: Path) -> bool:
    """Whether a process listens at this Unix socket now."""
    with socket.socket(socket.AF_UNIX) as probe:
        probe.setblocking(False)
        try:
            probe.connect(str(path))
        except BlockingIOError:  # so many are waiting to be let in that there is no place for one more
            return True
        except OSError:
            return False
    return True


def _open(connected: socket.socket) -> int | None:
    """None on another system, across containers (no such process here), and when it is us: a test in one process."""
    if sys.platform != "linux":
        return None
    pid, _, _ = _CREDENTIALS.unpack(connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    if pid in (0, os.getpid()):
        return None
    with contextlib.suppress(OSError):
        return os.pidfd_open(pid)
    return None
