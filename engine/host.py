"""Engine processes for a program of one's own: started, kept alive, ended with the block that asked for them.

Knows: command lines, processes, back-off, whether there is such a model. Does not know: its files, frames. `nearhit
serve` does not use this: it has a supervisor of its own.
"""

import asyncio
import logging
import os
import sys
import tempfile
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from engine import options as flags
from engine.api import Engine, EngineFailed
from engine.client import EngineClient
from engine.locate import ModelNotFound, locate
from engine.options import Options
from engine.peer import serves
from engine.pool import EnginePool

_log = logging.getLogger(__name__)
_BACKOFF = (0.2, 10.0)  # seconds: first and longest
_STEADY = 30.0  # seconds alive after which the back-off begins anew
_PATIENCE_S = 1800.0  # large models take their time to load
_GRACE_S = 10.0  # seconds a process gets to end by itself


def command(model: str, socket: Path, *arguments: str) -> list[str]:
    """The command line of an engine process; `arguments` as of `python -m engine.process --help`."""
    return [sys.executable, "-m", "engine.process", "--model", model, "--socket", str(socket), *arguments]


async def started(line: Sequence[str]) -> asyncio.subprocess.Process:
    """A process of this command line."""
    return await asyncio.create_subprocess_exec(*line)


class Keeper:
    """Runs one command again whenever it ends, later each time. `failed`: it ended before it was ever asked to."""

    def __init__(self, line: Sequence[str]) -> None:
        self._line = [*line, "--parent", str(os.getpid())]
        self._process: asyncio.subprocess.Process | None = None
        self.first_status: int | None = None  # of the first process, once it has ended

    async def run(self) -> None:
        """Until cancelled; ends the process then."""
        loop = asyncio.get_running_loop()
        delay = _BACKOFF[0]
        try:
            while True:
                began = loop.time()
                self._process = await started(self._line)
                status = await self._process.wait()
                self.first_status = status if self.first_status is None else self.first_status
                delay = _BACKOFF[0] if loop.time() - began >= _STEADY else min(delay * 2, _BACKOFF[1])
                _log.warning("an engine process ended with status %d; again in %.1f s", status, delay)
                await asyncio.sleep(delay)
        finally:
            await self._end()

    async def _end(self) -> None:
        process = self._process
        if process is None or process.returncode is not None:
            return
        process.terminate()
        try:
            async with asyncio.timeout(_GRACE_S):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()


@asynccontextmanager
async def open_engine(
    model: str, options: Options | None = None, *, replicas: int = 1, arguments: Sequence[str] = ()
) -> AsyncGenerator[Engine, None]:
    """A ready engine in `replicas` processes of its own, which are kept alive and end with the block.

    `model`: `demo`, `tiny-random:qwen3` or a model folder. `arguments`: further flags of `python -m engine.process`.
    Raises EngineFailed when there is no such model or it cannot be loaded, TimeoutError when that takes half an hour.
    """
    line = [*flags.arguments(options or Options()), *arguments]
    with tempfile.TemporaryDirectory(prefix="engine-") as folder:
        sockets = [Path(folder) / f"{number}.sock" for number in range(replicas)]
        async with serving(model, sockets, line) as engine:
            yield engine


@asynccontextmanager
async def serving(model: str, sockets: Sequence[Path], line: Sequence[str]) -> AsyncGenerator[Engine, None]:
    """The same at sockets of the caller's choice, where other programs may connect too.

    Raises EngineFailed as well when another process serves at one of them: its clients would be cut off.
    """
    try:
        locate(model)
    except ModelNotFound as error:  # a process would say the same, once it has loaded torch
        raise EngineFailed(str(error)) from error
    if taken := next((path for path in sockets if serves(path)), None):
        raise EngineFailed(f"{taken}: another process serves there.")
    keepers = [Keeper(command(model, socket, *line)) for socket in sockets]
    clients = [EngineClient(model, socket) for socket in sockets]
    engine: Engine = clients[0] if len(clients) == 1 else EnginePool(clients)
    loop = asyncio.get_running_loop()
    running = [loop.create_task(keeper.run()) for keeper in keepers]  # no group: it would wrap what the block raises
    try:
        await engine.start()
        await _until_ready(clients, keepers)
        yield engine
    finally:
        for task in running:
            task.cancel()
        try:
            await engine.stop()
        finally:
            await asyncio.gather(*running, return_exceptions=True)


async def _until_ready(clients: Sequence[EngineClient], keepers: Sequence[Keeper]) -> None:
    async with asyncio.timeout(_PATIENCE_S):
        while not all(client.stats().ready for client in clients):
            for keeper, client in zip(keepers, clients, strict=True):
                if keeper.first_status is not None:
                    why = client.stats().loading
                    raise EngineFailed(f"The engine process ended with exit code {keeper.first_status}: {why}")
            await asyncio.sleep(0.02)  # another process: there is no event to wait for
