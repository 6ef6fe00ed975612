"""A gateway worker's side of a torch engine that runs in its own process.

Knows: the socket, the model's tokenizer and chat template, text, stop strings. Does not know: torch, HTTP, money.

The connection is kept by a task: it connects, waits for `Hello`, and connects again with back-off when the process goes
away. A reader that is slow costs nothing: what arrives for it is merged until it looks.
"""

import asyncio
import logging
import secrets
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from pathlib import Path

import msgspec

from engine.api import (
    Delta,
    EngineError,
    EngineFailed,
    EngineStats,
    EngineUsage,
    GenerateRequest,
    InvalidRequest,
    ModelInfo,
)
from engine.frames import Submit
from engine.link import Collector, Link
from engine.preparing import ModelText, Prepared, count, load_text, prepare, takes_long
from engine.recent import RecentUsage
from engine.text import Answer

_log = logging.getLogger(__name__)
_SEEDS = 2**64 - 1
_BACKOFF = (0.05, 2.0)  # seconds: first and longest


class EngineClient:
    """`Engine` over a Unix socket. `model` is the name the process was started with: both read the same files."""

    def __init__(
        self,
        model: str,
        socket: Path,
        *,
        monotonic: Callable[[], float] = time.monotonic,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._model = model
        self._socket = socket
        self._monotonic = monotonic
        self._now = now
        self._text: ModelText | None = None
        self._problem = "tokenizer is being read"
        self._link: Link | None = None
        self._open: dict[str, Collector] = {}  # by request id, while its stream is open
        self._recent = RecentUsage()
        self._restarts = -1
        self._group: asyncio.TaskGroup | None = None
        self._keeper: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Begin to connect. The task group stays open until `stop`."""
        if self._group is None:
            self._group = await asyncio.TaskGroup().__aenter__()
            self._keeper = self._group.create_task(self._keep_connected(), name=f"engine {self._model}")

    async def stop(self) -> None:
        if self._group is not None and self._keeper is not None:
            self._keeper.cancel()
            group, self._group = self._group, None
            await group.__aexit__(None, None, None)
        if self._link is not None:
            self._link.close("the engine client was stopped")

    def info(self) -> ModelInfo | None:
        if self._link is None or self._link.info is None or self._text is None:
            return None
        return msgspec.structs.replace(
            self._link.info,
            id=self._model,
            has_chat_template=self._text.template is not None,
            note=self._text.note,
        )

    def stats(self) -> EngineStats:
        if self._link is None or self._link.info is None or self._text is None:
            return EngineStats(ready=False, loading=self._problem, restarts=max(self._restarts, 0))
        age = self._monotonic() - self._link.heard
        return msgspec.structs.replace(self._link.stats, heartbeat_age_s=age, restarts=max(self._restarts, 0))

    def abort(self, request_id: str) -> None:
        collector = self._open.get(request_id)
        if collector is not None and self._link is not None:
            self._link.cancel(collector, "abort")

    def usage_of(self, request_id: str) -> EngineUsage | None:
        return self._recent.get(request_id)

    async def count_tokens(self, request: GenerateRequest) -> int:
        link, text = self._ready()
        assert link.info is not None
        if takes_long(request):
            return await asyncio.to_thread(count, request, text, link.info)
        return count(request, text, link.info)

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[Delta, None]:
        link, text = self._ready()
        assert link.info is not None
        if request.id in self._open:
            raise InvalidRequest(f"Request id {request.id!r} is in use.")
        collector = link.open(lambda usage: self._recent.put(request.id, usage))
        self._open[request.id] = collector
        try:
            if takes_long(request):
                ready = await asyncio.to_thread(prepare, request, text, link.info)
            else:
                ready = prepare(request, text, link.info)
            link.submit(collector, _submit(request, collector.handle, ready))
            answer = Answer(text.tokenizer, ready.sampling, ready.reading)
            async with aclosing(_deltas(link, collector, answer)) as deltas:
                async for delta in deltas:
                    yield delta
        finally:
            del self._open[request.id]
            link.leave(collector)

    def _ready(self) -> tuple[Link, ModelText]:
        if self._link is None or self._link.info is None or self._text is None:
            raise EngineFailed(f"Engine {self._model!r} is not ready: {self._problem}.")
        return self._link, self._text

    async def _keep_connected(self) -> None:
        delay = _BACKOFF[0]
        while True:
            try:
                if self._text is None:
                    self._text = await asyncio.to_thread(load_text, self._model, self._now)
                self._problem = "engine process is starting"
                if await self._connected():
                    delay = _BACKOFF[0]
                    self._text = None  # the next process may read newer files
            except (OSError, EngineError) as error:
                self._problem = str(error) or type(error).__name__
            await asyncio.sleep(delay)
            delay = min(delay * 2, _BACKOFF[1])

    async def _connected(self) -> bool:
        """One connection from beginning to end. Whether the engine ever became ready."""
        loop = asyncio.get_running_loop()
        _, link = await loop.create_unix_connection(lambda: Link(self._monotonic), str(self._socket))
        self._link, self._problem = link, "model is loading"
        while link.info is None and not link.closed:
            await link.changed()
        ready = link.info is not None
        if ready:
            self._restarts += 1
            _log.info("engine %s is ready", self._model)
            while not link.closed:
                await link.changed()
            _log.warning("engine %s went away", self._model)
        self._link, self._problem = None, "engine process went away"
        return ready


def _submit(request: GenerateRequest, handle: int, ready: Prepared) -> Submit:
    seed = ready.sampling.seed
    return Submit(
        handle=handle,
        tokens=ready.tokens,
        sampling=ready.sampling,
        seed=secrets.randbits(63) if seed is None else seed & _SEEDS,
        eos=ready.eos,
        salt=request.salt,
        priority=request.priority,
        deadline_ms=request.deadline_ms,
        grammar=ready.grammar,
        closing=ready.closing,
        prediction=ready.prediction,
    )


async def _deltas(link: Link, collector: Collector, answer: Answer) -> AsyncGenerator[Delta, None]:
    """Raises Overloaded, InvalidRequest, EngineFailed as the engine says."""
    told = False
    while True:
        output = await collector.take()
        delta = answer.push(output)
        if answer.stopped and output.finish is None and not told:
            told = True
            link.cancel(collector, "stop")
        yield delta
        if output.finish is not None:
            return
