"""Responses that are made whether or not anybody waits for them: at once, by a task of this worker, for whoever comes.

Knows: how one is begun, told as it is made, watched and ended. Does not know: how it is kept (`gateway.responses`), how
its events are written and followed (`gateway.response_streams`), what is said in it.
"""

import asyncio
from contextlib import aclosing, closing, suppress
from typing import cast

import msgspec
import structlog
from litestar.types import Send

from gateway.call import Body, Call, Principal
from gateway.connection import Connection, Detached
from gateway.db.session import UNREACHABLE
from gateway.dialects.responses_answer import ResponsesVoice
from gateway.errors import GatewayError, Overloaded
from gateway.headers import EVENTS, JSON, always, pairs
from gateway.ledger.shipper import set_within
from gateway.response_events import Writing
from gateway.response_streams import Streams
from gateway.responses import Responses
from gateway.routes.openai import Edge, broken, send_whole

log = structlog.get_logger("nearhit.responses")

_LOOK_SECONDS = 1.0  # how soon a cancellation is noticed that another worker was told
_SHORTEST_PAUSE, _LONGEST_PAUSE = 1.0, 32.0  # seconds between two tries to keep what was made
_LATER = (("retry-after", "2"),)
_encode = msgspec.json.Encoder().encode


class Background:
    """One per worker."""

    def __init__(self, edge: Edge, responses: Responses, streams: Streams) -> None:
        self._edge = edge
        self._responses = responses
        self.streams = streams
        self._making: dict[str, asyncio.Task[None]] = {}

    async def answer(self, call: Call, send: Send, connection: Connection) -> None:
        """Begin it, and tell so; or everything, where the client wants to hear it. Raises Overloaded."""
        voice = cast("ResponsesVoice", call.voice)
        told, announced = voice.queued(call.id, call.model, call.at), b""
        if call.stream:
            self.streams.require_room()
            told, announced = voice.announced(told)
        kept = self._responses.put(call.principal, told, voice.items, background=True, announced=announced)
        if not await kept:
            raise Overloaded("The response cannot be kept now, and 'background' needs that.", headers=_LATER)
        name = str(told["id"])
        if call.stream:
            self.streams.begin(call.principal, name, announced)
        self._begin(told, call, voice)
        if call.stream:
            await self._tell(name, call, send, connection)
        else:
            await send_whole(send, _encode(told), [*always(call.id), JSON])

    def stop(self, name: str) -> None:
        """At once, if it is made here."""
        if (task := self._making.get(name)) is not None:
            task.cancel()
        self.streams.news(name)

    def _begin(self, told: Body, call: Call, voice: ResponsesVoice) -> None:
        name = str(told["id"])
        task = self._edge.tasks.spawn(self._make(told, call, voice), f"response {name}")
        self._making[name] = task
        task.add_done_callback(lambda _: self._left(name))
        self._edge.tasks.spawn(self._watch(name, task), f"watch response {name}")

    def _left(self, name: str) -> None:
        del self._making[name]
        self.streams.leave(name)

    async def _tell(self, name: str, call: Call, send: Send, connection: Connection) -> None:
        """A client that leaves ends this, and nothing else."""
        head = [*always(call.id), *pairs(EVENTS)]
        await send({"type": "http.response.start", "status": 200, "headers": head})
        connection.watch()
        async with aclosing(self.streams.follow(call.principal, name, -1)) as events:
            async for some in events:
                await send({"type": "http.response.body", "body": some, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _make(self, told: Body, call: Call, voice: ResponsesVoice) -> None:
        """The answer, for whoever comes for it. Never raises but for a cancellation."""
        name, last = str(told["id"]), b""
        if told["status"] == "queued":
            with suppress(*UNREACHABLE):  # who polls reads `queued` for longer
                await self._responses.begun(told)
        try:
            await self._read(name, call)
            await added(self._responses, call.principal, voice)
            if call.stream:
                last = voice.end()
            told = voice.final()
        except GatewayError as error:
            told, last = voice.broken(error), voice.failed(error)
        except Exception as error:
            log.exception("a response in the background broke", request_id=call.id)
            told, last = voice.broken(broken(error)), voice.failed(broken(error))
        await self._keep(told, await self.streams.last(name, last) if call.stream else None)

    async def _read(self, name: str, call: Call) -> None:
        answer = await self._edge.pipeline.complete(call, Detached())
        with closing(answer.reading):
            if not call.stream:
                await answer.reading.whole()
                return
            while events := await answer.reading.events():
                await self.streams.add(name, events)

    async def _keep(self, told: Body, rest: Writing | None) -> None:
        """As often as it takes: while this process lives nobody else says of it that it is over."""
        pause = _SHORTEST_PAUSE
        while True:
            try:
                await self._responses.finish(told, rest)
                return
            except UNREACHABLE as error:
                log.warning("a response made in the background is not kept yet", error=repr(error)[:200])
                await asyncio.sleep(pause)
                pause = min(2.0 * pause, _LONGEST_PAUSE)

    async def _watch(self, name: str, task: asyncio.Task[None]) -> None:
        """Stop making it once it was cancelled or deleted, here or at another worker."""
        ended = asyncio.Event()
        task.add_done_callback(lambda _: ended.set())
        while not await set_within(ended, _LOOK_SECONDS):
            try:
                if not await self._responses.wanted(name):
                    task.cancel()
            except UNREACHABLE:
                continue


async def added(responses: Responses, principal: Principal, voice: ResponsesVoice) -> bool:
    """What was asked and answered stands in its conversation from now on; whether that was possible."""
    name = voice.conversation
    if name is None:
        return True
    items = [*voice.items, *cast("list[Body]", voice.final()["output"])]
    try:
        await responses.conversations.add(principal, name, items)
    except (GatewayError, *UNREACHABLE) as error:  # it is gone, it is full, or nobody answers
        log.warning("an answer could not be added to its conversation", error=repr(error)[:200])
        voice.alone()
        return False
    return True
