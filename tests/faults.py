"""A TCP proxy that fails on command: between a gateway and its database, its Redis or an upstream.

Knows: bytes and connections. Does not know: any protocol. Runs in a thread with an event loop of its own, so that it
serves processes as well as code under test.
"""

import asyncio
import threading
from collections.abc import Generator
from contextlib import contextmanager, suppress
from typing import Literal

State = Literal["up", "refusing", "hanging"]
_READ = 1 << 16


class FaultProxy:
    """`up` passes bytes on; `refusing` ends every connection at once; `hanging` accepts and never answers."""

    def __init__(self, host: str, port: int) -> None:
        self.port = 0
        self._target = (host, port)
        self._state: State = "up"
        self._loop = asyncio.new_event_loop()
        self._open: set[asyncio.StreamWriter] = set()
        self._resumed = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="fault-proxy", daemon=True)
        self._started = threading.Event()

    def start(self) -> None:
        self._thread.start()
        assert self._started.wait(60)

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)

    def become(self, state: State) -> None:
        """From now on; connections that are open are cut when it refuses, and stand still when it hangs."""
        asyncio.run_coroutine_threadsafe(self._become(state), self._loop).result(60)

    async def _become(self, state: State) -> None:
        self._state = state
        if state == "hanging":
            self._resumed.clear()
        else:
            self._resumed.set()
        if state == "refusing":
            for writer in list(self._open):
                writer.transport.abort()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._resumed.set()
        server = self._loop.run_until_complete(asyncio.start_server(self._serve, "127.0.0.1", 0))
        self.port = server.sockets[0].getsockname()[1]
        self._started.set()
        self._loop.run_forever()
        server.close()
        for writer in list(self._open):
            writer.transport.abort()
        tasks = asyncio.all_tasks(self._loop)
        for task in tasks:
            task.cancel()
        self._loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        self._loop.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open.add(writer)
        try:
            if self._state == "refusing":
                return
            await self._resumed.wait()
            there, onward = await asyncio.open_connection(*self._target)
            self._open.add(onward)
            try:
                ways = {
                    self._loop.create_task(self._pass(reader, onward)),
                    self._loop.create_task(self._pass(there, writer)),
                }
                _, left = await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
                for way in left:
                    way.cancel()
            finally:
                self._open.discard(onward)
                onward.transport.abort()
        except (OSError, asyncio.CancelledError):  # the streams' own callback cannot bear a cancelled task
            return
        finally:
            self._open.discard(writer)
            writer.transport.abort()

    async def _pass(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await source.read(_READ):
                await self._resumed.wait()
                sink.write(data)
                await sink.drain()


@contextmanager
def fault_proxy(host: str, port: int) -> Generator[FaultProxy]:
    """A proxy to `host:port` for the duration; `.port` is where it listens."""
    proxy = FaultProxy(host, port)
    proxy.start()
    try:
        yield proxy
    finally:
        proxy.stop()
