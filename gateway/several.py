"""Answers made of several: a cascade asks the next model where the last one was not sure, an ensemble takes a vote.

Knows: which answers have to be whole before one is passed on, that every attempt is settled on its own. Does not know:
how one answer is begun (`gateway.dispatch`), how sure is sure enough and what a majority is (`policies.routing`).
"""

import asyncio
from collections.abc import AsyncGenerator, Collection, Coroutine
from contextlib import aclosing
from typing import Any, cast

import msgspec
from msgspec import Struct, structs

from gateway import errors
from gateway.attempts import Live
from gateway.call import Body, Call, Chunk
from gateway.catalog import Route, Target
from gateway.dispatch import Dispatcher, took_off
from gateway.estimate import text_size
from gateway.flights import Ended, Landing
from gateway.model_settings import ModelSettings
from gateway.providers import Partial
from gateway.rehearsal import of_several
from gateway.routing import OF_SEVERAL
from gateway.stream import fold
from gateway.tasks import Tasks
from policies.money import Usage
from policies.routing.agreement import majority, mean_logprob, said

_MOST_SINGLES = 512
_STRAGGLERS = 10.0  # seconds at least for votes that change nothing any more
_MOST_CHUNKS = 50_000  # of an answer that is waited for whole
_LOGPROBS = ("logprobs", "top_logprobs")
# Why a place gave none, which is no reason to throw away one that is in hand.
_NO_ANSWER = (errors.UpstreamFailed, errors.Overloaded, errors.NotPriced, errors.OutOfTime)
_TELLS_NONE = "tells no log probabilities"
_encode = msgspec.json.Encoder(order="sorted").encode


class Whole(Struct, frozen=True):
    """An answer that has been read to its end, or as far as it went. `consumed`: what one that did not end has used."""

    live: Live
    chunks: list[Chunk]
    ended: Ended
    consumed: Usage | None = None

    @property
    def body(self) -> Body:
        return self.chunks[0].data if self.chunks[0].final else fold(chunk.data for chunk in self.chunks)

    @property
    def usage(self) -> Usage | None:
        return next((chunk.usage for chunk in reversed(self.chunks) if chunk.usage is not None), None)


class Several:
    """One per worker; obeys the same contract as a dispatcher."""

    def __init__(self, dispatcher: Dispatcher, tasks: Tasks) -> None:
        self._dispatcher = dispatcher
        self._tasks = tasks
        self.settle = dispatcher.settle
        self.told = dispatcher.told
        self.routed = dispatcher.routed
        self._singles: dict[tuple[str, Target], tuple[Route, Route]] = {}

    def begin(self, call: Call, route: Route, landing: Landing) -> Coroutine[Any, Any, Live]:
        """The answer as it begins. Awaited, raises GatewayError."""
        if not _asks_several(call, route):
            return self._dispatcher.begin(call, route, landing)
        chosen = self._cascade if route.chosen.strategy == "cascade" else self._ensemble
        return chosen(call, route, landing)

    def quote(self, call: Call, route: Route) -> dict[str, object]:
        """What would be asked, and what that costs at worst; nothing is held. Raises GatewayError."""
        told = self._dispatcher.quote(call, route)
        return of_several(route.chosen, told) if _asks_several(call, route) else told

    # -- cascade -----------------------------------------------------------------------------------------------

    async def _cascade(self, call: Call, route: Route, landing: Landing) -> Live:
        """Every rung but the last is waited for whole; the last one streams as it comes.

        Where that one fails, the newest answer there is is better than none: it is marked, and never kept.
        """
        rungs: list[dict[str, object]] = []
        unsure: Whole | None = None
        landing.told.append(lambda: {"cascade": {"min_logprob": route.chosen.min_logprob, "rungs": rungs}})
        told = _tells_logprobs(call)
        for target in route.targets[:-1]:
            rung: dict[str, object] = {"target": str(target)}
            rungs.append(rung)
            try:
                whole = await self._rung(told, self._only(route, target), landing, rung)
            except errors.InvalidRequest as problem:
                if not (problem.code or "").startswith("unsupported"):
                    raise  # the client's own fault
                ours = told is not call and problem.param in _LOGPROBS
                what = "it" if problem.param == "model" else problem.param
                rung["verdict"] = _TELLS_NONE if ours else f"refuses {what}"
                continue
            if whole is None:
                continue
            sure = mean_logprob(whole.body)
            rung["mean_logprob"] = None if sure is None else round(sure, 4)
            if sure is not None and sure >= route.chosen.min_logprob:
                rung["verdict"] = "sure"
                return took_off(landing, _replayed(whole, strip=told is not call))
            rung["verdict"] = "unsure" if sure is not None else _TELLS_NONE
            self._let_go(whole)
            unsure = whole
        last: dict[str, object] = {"target": str(route.targets[-1]), "verdict": "last"}
        rungs.append(last)
        try:
            return await self._dispatcher.begin(call, self._only(route, route.targets[-1]), landing, "rung")
        except _NO_ANSWER as problem:
            if unsure is None:
                raise
            last["verdict"], landing.unsure = problem.code or "failed", True
            return took_off(landing, _replayed(unsure, strip=told is not call))

    async def _rung(self, call: Call, route: Route, landing: Landing, rung: dict[str, object]) -> Whole | None:
        """A whole answer; None where it failed or broke off, which is a reason to go on as well."""
        try:
            whole = await self._whole(call, route, landing, "rung")
        except _NO_ANSWER as problem:
            rung["verdict"] = problem.code or "failed"
            return None
        if whole.ended != "complete":
            rung["verdict"] = "broke off"
            self._let_go(whole)
            return None
        return whole

    # -- ensemble ----------------------------------------------------------------------------------------------

    async def _ensemble(self, call: Call, route: Route, landing: Landing) -> Live:
        """All answers whole, then the first of the largest group of equal ones."""
        targets = _voters(route.chosen, route.targets)
        asked = [
            self._tasks.spawn(self._whole(call, self._only(route, target), landing, "vote"), f"vote {call.id}")
            for target in targets
        ]
        try:
            await _all_in(asked)
        except asyncio.CancelledError:
            await _given_up(asked)
            for whole in map(_answer, asked):
                if whole is not None:
                    self._let_go(whole)
            raise
        found = [_answer(task) for task in asked]
        votes = [_vote(whole) for whole in found]
        counted = majority(votes)
        ballot = [
            {"target": str(target), "vote": None if vote is None else votes.index(vote)}
            for target, vote in zip(targets, votes, strict=True)
        ]
        landing.told.append(
            lambda: {"ensemble": {"votes": ballot, "of": len(targets), "won_by": counted and counted[1]}}
        )
        for number, whole in enumerate(found):
            if whole is not None and (counted is None or number != counted[0]):
                self._let_go(whole)
        if counted is None:
            raise next(filter(None, map(_problem, asked)), None) or errors.UpstreamFailed(
                "None of the models gave a whole answer."
            )
        winner = found[counted[0]]
        assert winner is not None
        return took_off(landing, _replayed(winner, strip=False))

    def _only(self, route: Route, target: Target) -> Route:
        """The same object as long as the route is the same: much is remembered by it."""
        found = self._singles.get((route.name, target))
        if found is None or found[0] is not route:
            if len(self._singles) >= _MOST_SINGLES:
                self._singles.clear()
            found = self._singles[route.name, target] = (route, _single(route, target))
        return found[1]

    # -- one whole answer ---------------------------------------------------------------------------------------

    async def _whole(self, call: Call, route: Route, landing: Landing, why: str) -> Whole:
        """Read to its end. Being cancelled on the way, it settles what it has."""
        live = await self._dispatcher.begin(call, route, landing, why)
        chunks, consumed = [live.first], None
        try:
            async with aclosing(live.rest) as rest:
                async for chunk in rest:
                    chunks.append(chunk)
                    if chunk.usage is not None:
                        self.told(live, chunk)
                    if len(chunks) > _MOST_CHUNKS:
                        break
                else:
                    return Whole(live, chunks, "complete")
        except Partial as broken:
            consumed = broken.usage
        except errors.GatewayError:
            pass
        except asyncio.CancelledError:
            try:
                consumed = await live.provider.consumed(live.plan.id)
            finally:
                self._let_go(Whole(live, chunks, "cancelled", consumed))
            raise
        return Whole(live, chunks, "cut", consumed)

    def _let_go(self, whole: Whole) -> None:
        """This answer is not passed on; it is paid for all the same."""
        output = sum(text_size(chunk.data) for chunk in whole.chunks)
        bound = whole.live.bound
        received = Usage(prompt=bound.input, completion=min(bound.output, output))
        told = whole.usage if whole.ended == "complete" else whole.consumed
        self._dispatcher.settle(whole.live, told, whole.ended, received, str(whole.chunks[0].data.get("id") or ""))


def _asks_several(call: Call, route: Route) -> bool:
    return call.operation in ("chat", "completion") and route.chosen.strategy in OF_SEVERAL


def _single(route: Route, target: Target) -> Route:
    """A route that leads to this one place and nowhere else, with the marks of the whole."""
    entries = [entry for entry in route.chosen.route if entry.to == str(target)]
    changed = {"route": entries, "strategy": "ordered", "canary": None, "hedge": None, "sticky": "none"}
    name = f"{route.name} > {target}"
    told = str(target)
    return Route(name, (target,), route.chosen.model_copy(update=changed), route.free, told, (told,))


async def _all_in(asked: list["asyncio.Task[Whole]"]) -> None:
    """Until all have answered. Once more than half say the same, one that hangs changes nothing: the others get as long
    again as that took, and ten seconds at least, since what one has cost that is given up can only be guessed.
    """
    clock = asyncio.get_running_loop().time
    began, late = clock(), set(asked)
    while late:
        _, late = await asyncio.wait(late, return_when=asyncio.FIRST_COMPLETED)
        counted = majority([_vote(_answer(task)) if task.done() else None for task in asked])
        if counted is not None and counted[1] * 2 > len(asked):
            break
    if late:
        _, late = await asyncio.wait(late, timeout=max(_STRAGGLERS, clock() - began))
    await _given_up(late)


async def _given_up(tasks: Collection["asyncio.Task[Whole]"]) -> None:
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks)


def _answer(task: "asyncio.Task[Whole]") -> Whole | None:
    """None where there is none."""
    return None if task.cancelled() or task.exception() is not None else task.result()


def _problem(task: "asyncio.Task[Whole]") -> BaseException | None:
    return None if task.cancelled() else task.exception()


def _voters(chosen: ModelSettings, targets: tuple[Target, ...]) -> list[Target]:
    """As many as are to vote; a short list is asked again from its beginning."""
    return [targets[number % len(targets)] for number in range(chosen.of)]


def _vote(whole: Whole | None) -> bytes | None:
    """What an answer says, comparable: its words without their looks, its calls with their arguments in order."""
    if whole is None or whole.ended != "complete":
        return None
    choices = whole.body.get("choices")
    first = cast("list[Body]", choices)[0] if isinstance(choices, list) and choices else {}
    message = first.get("message")
    spoken = cast("Body", message) if isinstance(message, dict) else {}
    text = spoken.get("content") or first.get("text") or ""
    calls = [
        [cast("Body", call.get("function") or {}).get("name"), _arguments(call)]
        for call in cast("list[Body]", spoken.get("tool_calls") or [])
    ]
    return _encode([said(text) if isinstance(text, str) else text, calls])


def _arguments(call: Body) -> object:
    raw = cast("Body", call.get("function") or {}).get("arguments")
    try:
        return msgspec.json.decode(raw) if isinstance(raw, str) else raw
    except (msgspec.DecodeError, RecursionError):
        return raw


def _tells_logprobs(call: Call) -> Call:
    """The same with log probabilities asked for; in chat, where no word of the client's own would be lost."""
    if call.operation != "chat" or call.body.get("logprobs"):
        return call
    only_there = call.need is not None or (call.native is not None and call.native.apart)
    native = call.native if only_there else None
    return structs.replace(call, body={**call.body, "logprobs": True}, native=native)


def _replayed(whole: Whole, *, strip: bool) -> Live:
    """A begun answer whose rest is in hand already."""
    chunks = [_stripped(chunk) for chunk in whole.chunks] if strip else whole.chunks
    live = whole.live
    live.first, live.rest = chunks[0], _rest(chunks[1:])
    return live


async def _rest(chunks: list[Chunk]) -> AsyncGenerator[Chunk, None]:
    for chunk in chunks:
        yield chunk


def _stripped(chunk: Chunk) -> Chunk:
    """Without the log probabilities, which the client did not ask for."""
    choices = chunk.data.get("choices")
    if not isinstance(choices, list) or not any(cast("list[Body]", choices)):
        return chunk
    kept = [{**choice, "logprobs": None} for choice in cast("list[Body]", choices)]
    return chunk._replace(data={**chunk.data, "choices": kept})
