"""Taking in the connections that wait at a TCP socket: all that have come, in every turn of the event loop.

libuv, under uvloop, takes one connection a turn. A busy worker's turns are long, so newcomers waited in the kernel's
queue until it ran over; what is dropped there comes again after 1, 3, 7 seconds, and no gate can refuse what it has
not seen.
Knows: one listening socket and how a connection's protocol is made. Does not know HTTP.
"""

import asyncio
import errno
import logging
import socket
from collections.abc import Callable

log = logging.getLogger("nearhit.http")

AT_ONCE = 128  # connections a turn: what is under way must get its turn too
PAUSE = 1.0  # seconds without taking any in, where descriptors or memory have run out
_RUN_OUT = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})


class Listener:
    """Serves a bound `sock`, which is closed with it. From within the running loop.

    `backlog`: how many connections may wait in the kernel (Linux: at most net.core.somaxconn).
    """

    def __init__(self, sock: socket.socket, protocol: Callable[[], asyncio.Protocol], backlog: int) -> None:
        self._sock = sock
        self._protocol = protocol
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[object]] = set()
        self._again: asyncio.TimerHandle | None = None
        sock.setblocking(False)
        sock.listen(backlog)
        self._listen()

    def close(self) -> None:
        """Take no more in. Those that still wait in the queue go to the next process that has the socket open."""
        if self._again is not None:
            self._again.cancel()
        self._loop.remove_reader(self._sock)
        self._sock.close()

    async def wait_closed(self) -> None:
        """Those that were taken in are handed over."""
        if self._tasks:
            await asyncio.wait(self._tasks)

    def _listen(self) -> None:
        self._again = None
        self._loop.add_reader(self._sock, self._take_in)

    def _take_in(self) -> None:
        for _ in range(AT_ONCE):
            try:
                taken, _ = self._sock.accept()
            except (BlockingIOError, InterruptedError):
                return
            except ConnectionAbortedError:
                continue  # gone while it waited
            except OSError as error:
                if error.errno not in _RUN_OUT:
                    raise
                log.warning("no new connections for %g s: %s", PAUSE, error.strerror)
                self._loop.remove_reader(self._sock)
                self._again = self._loop.call_later(PAUSE, self._listen)
                return
            taken.setblocking(False)
            task = self._loop.create_task(self._serve(taken))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _serve(self, taken: socket.socket) -> None:
        try:
            await self._loop.connect_accepted_socket(self._protocol, taken)
        except OSError:
            taken.close()  # hung up on us already
