"""A gateway worker's side of a torch engine that runs in its own process.

Knows: the socket, the model's tokenizer and chat template, text, stop strings. Does not know: torch, HTTP, money.

The connection is kept by a task: it connects, waits for `Hello`, and connects again with back-off when the process goes
away. A reader that is slow costs nothing: what arrives for it is merged until it looks. Health is the heartbeat: a
process that owes answers and has turned no step for `max(stall_s, 20 x its median step)` is killed; whoever started it
starts it again.
"""

import asyncio
import logging
import secrets
import socket
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from itertools import count
from pathlib import Path
from typing import Literal

import msgspec

from engine.api import (
    Delta,
    EngineError,
    EngineFailed,
    EngineStats,
    EngineUsage,
    Figures,
    GenerateRequest,
    InvalidRequest,
    ModelInfo,
    Spelled,
)
from engine.frames import Handed, Submit
from engine.grammar import unusable
from engine.link import Collector, Link
from engine.peer import Peer
from engine.preparing import ModelText, Prepared, load_text, prepare, spelled, takes_long, tokens_of
from engine.recent import RecentUsage
from engine.text import Answer

_log = logging.getLogger(__name__)
_SEEDS = 2**64 - 1
_MANY = 1_000  # tokens; more are spelled beside the event loop
_BACKOFF = (0.05, 0.5)  # seconds: first and longest, below those a process waits to tell why it cannot serve
_LOOK = 0.5  # seconds between looks at the heartbeat
_STALLED_STEPS = 20  # median steps without a turn
_UNKNOWN = 12.0  # times `stall_s`, while no step was measured
_LOADING = 1800.0  # seconds a process may take that said it is loading or waking


class EngineClient:
    """`Engine` over a Unix socket. `model` is the name the process was started with: both read the same files."""

    def __init__(
        self,
        model: str,
        socket: Path,
        *,
        stall_s: float = 5.0,
        monotonic: Callable[[], float] = time.monotonic,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._model = model
        self._path = socket
        self._stall_s = stall_s
        self._monotonic = monotonic
        self._now = now
        self._text: ModelText | None = None
        self._problem = "tokenizer is being read"
        self._failed = ""  # why the last process could not serve: told until one can
        self._link: Link | None = None
        self._open: dict[str, Collector] = {}  # by request id, while its stream is open
        self._recent = RecentUsage()
        self._handles = count(1)
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
        await asyncio.sleep(0)  # a transport closes its socket in the next turn of the loop

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
            why, failed = self._failed or self._problem, bool(self._failed)
            return EngineStats(ready=False, loading=why, restarts=max(self._restarts, 0), failed=failed)
        age = self._monotonic() - self._link.heard
        return msgspec.structs.replace(self._link.stats, heartbeat_age_s=age, restarts=max(self._restarts, 0))

    def figures(self) -> dict[str, Figures]:
        found = None if self._link is None else self._link.figures
        return {} if found is None else {"0": found}

    def rest(self, level: Literal[0, 1, 2]) -> None:
        """Let the model sleep (1: drop keys and values, 2: the weights too) or wake it (0). Running requests go on."""
        self._ready()[0].rest(level)

    def abort(self, request_id: str) -> None:
        collector = self._open.get(request_id)
        # One that is over may be of a process before this one, which has other requests under the same numbers.
        if collector is not None and self._link is not None and not collector.over:
            self._link.cancel(collector, "abort")

    def usage_of(self, request_id: str) -> EngineUsage | None:
        return self._recent.get(request_id)

    async def tokens(self, request: GenerateRequest, *, specials: bool | None = None) -> list[int]:
        """The prompt as the model sees it. Raises InvalidRequest, EngineFailed."""
        link, text = self._ready()
        assert link.info is not None
        if takes_long(request):
            return await asyncio.to_thread(tokens_of, request, text, link.info, specials=specials)
        return tokens_of(request, text, link.info, specials=specials)

    async def spelled(self, ids: list[int]) -> Spelled:
        """Raises InvalidRequest, EngineFailed."""
        link, text = self._ready()
        assert link.info is not None
        if len(ids) > _MANY:
            return await asyncio.to_thread(spelled, ids, text, link.info)
        return spelled(ids, text, link.info)

    async def prepared(self, request: GenerateRequest) -> Prepared:
        """As it would be submitted, for who has work to do before. Raises InvalidRequest, EngineFailed."""
        link, text = self._ready()
        assert link.info is not None
        if takes_long(request):
            return await asyncio.to_thread(prepare, request, text, link.info)
        return prepare(request, text, link.info)

    async def export(self, tokens: list[int], salt: str) -> Handed:
        """Have what is cached of this prompt held out to other processes until `release` of its handle."""
        return await self._ready()[0].export(tokens, salt)

    async def take(self, tokens: list[int], salt: str, held: Handed) -> int:
        """Cache what another process holds out. How many blocks of the prompt are here then."""
        return (await self._ready()[0].take(tokens, salt, held.path)).blocks

    def release(self, held: Handed) -> None:
        if self._link is not None:
            self._link.release(held.handle)

    async def count_tokens(self, request: GenerateRequest) -> int:
        return len(await self.tokens(request))

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[Delta, None]:
        link, text = self._ready()
        assert link.info is not None
        if request.id in self._open:
            raise InvalidRequest(f"Request id {request.id!r} is in use.")
        collector = link.open(lambda usage: self._recent.put(request.id, usage))
        self._open[request.id] = collector
        try:
            ready = await self.prepared(request)
            link.submit(collector, _submit(request, collector.handle, ready))
            answer = Answer(text.tokenizer, ready.sampling, ready.reading)
            async with aclosing(_deltas(link, collector, answer)) as deltas:
                async for delta in deltas:
                    if delta.usage is not None:
                        self._recent.put(request.id, delta.usage)  # the engine's own counts what came after a stop
                    yield delta
        finally:
            del self._open[request.id]
            link.leave(collector)

    def _ready(self) -> tuple[Link, ModelText]:
        if self._link is None or self._link.info is None or self._text is None:
            why = self._failed or self._problem
            raise EngineFailed(f"Engine {self._model!r} is not ready: {why.removesuffix('.')}.")
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
            except Exception as error:  # noqa: BLE001  (a model's files may hold anything, and others live in this loop)
                self._problem = str(error) or type(error).__name__
                if not isinstance(error, OSError | EngineError):
                    _log.exception("engine %s: what its files or its process say is not understood", self._model)
            await asyncio.sleep(delay)
            delay = min(delay * 2, _BACKOFF[1])

    async def _connected(self) -> bool:
        """One connection from beginning to end. Whether the engine ever became ready."""
        loop = asyncio.get_running_loop()
        with socket.socket(socket.AF_UNIX) as connected:
            connected.setblocking(False)
            try:
                await loop.sock_connect(connected, str(self._path))
            except (FileNotFoundError, ConnectionRefusedError):
                return False  # its process does not listen yet
            peer = Peer(connected)
            try:
                _, link = await loop.create_unix_connection(
                    lambda: Link(self._monotonic, self._handles), sock=connected.dup()
                )
                return await self._serve(link, peer)
            finally:
                peer.close()

    async def _serve(self, link: Link, peer: Peer) -> bool:
        self._link, self._problem = link, "model is loading"
        while link.info is None and not link.closed:
            await link.changed()
        ready = link.info is not None
        self._failed = link.failed or self._failed
        if ready:
            self._failed = ""
            self._restarts += 1
            _log.info("engine %s is ready", self._model)
            await self._watch(link, peer)
            _log.warning("engine %s went away", self._model)
        self._link, self._problem = None, "engine process went away"
        return ready

    async def _watch(self, link: Link, peer: Peer) -> None:
        """Until the connection ends; ends it, and the process, when steps stop turning.

        A process is only killed when it was found silent twice: after a pause of our own, what it sent is read between.
        """
        silent = False
        while not link.closed:
            try:
                async with asyncio.timeout(_LOOK):
                    await link.changed()
            except TimeoutError:
                age = self._monotonic() - link.heard
                suspected = link.busy and age > self._patience(link.stats)
                if suspected and silent:
                    killed = "was killed" if peer.kill() else "cannot be killed from here"
                    _log.error("engine %s turned no step for %.1f s; it %s", self._model, age, killed)
                    link.close(f"the engine turned no step for {age:.1f} s")
                silent = suspected

    def _patience(self, stats: EngineStats) -> float:
        """Seconds without a sign of life before a process counts as hung."""
        if stats.loading:
            return _LOADING
        if not stats.step_p50_ms:
            return self._stall_s * _UNKNOWN
        return max(self._stall_s, _STALLED_STEPS * stats.step_p50_ms / 1000)


def _submit(request: GenerateRequest, handle: int, ready: Prepared) -> Submit:
    seed = ready.sampling.seed
    return Submit(
        handle=handle,
        tokens=ready.tokens,
        sampling=msgspec.structs.replace(ready.sampling, seed=None),  # of any size there, which no frame can carry
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
        if output.why:  # the request's own fault: who says that the engine failed sends others away from it
            raise unusable(output.why)
        delta = answer.push(output)
        if answer.stopped and output.finish is None and not told:
            told = True
            link.cancel(collector, "stop")
        yield delta
        if output.finish is not None:
            return
