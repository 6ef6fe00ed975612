"""The detached owner of one upstream answer: it outlives its readers, reads to the end and settles exactly once.

A client's disconnect never reaches the upstream call from inside. When the last reader has left, the provider's
billing decides: an upstream that bills anyway is read to its end (the answer may still be kept), one that stops
billing when the connection closes is closed. Does not know: HTTP, the cache's rules.
"""

import asyncio
from collections.abc import Callable

from gateway import errors
from gateway.attempts import Live
from gateway.call import PASSED, Call, Chunk
from gateway.catalog import Route
from gateway.estimate import text_size
from gateway.flights import Flight, Landing
from gateway.providers import Partial
from gateway.several import Several
from gateway.tasks import Tasks
from policies.money import Usage, bound_nano

_MOST_DRAINS = 64
_LONGEST_DRAIN = 60.0
_LARGEST_ANSWER = 200_000  # chunks: far above any model's window, so only a runaway upstream meets it


class Pumps:
    """Starts pumps and bounds how many of them may run on for nobody."""

    def __init__(self, dispatcher: Several, tasks: Tasks, *, monotonic: Callable[[], float]) -> None:
        self._dispatcher = dispatcher
        self._tasks = tasks
        self._monotonic = monotonic
        self._draining: dict[Flight, asyncio.TimerHandle] = {}

    def start(self, flight: Flight, call: Call, route: Route) -> None:
        """Fly: the flight gets its chunks and its end from a task of its own."""
        task = self._tasks.spawn(self._fly(flight, call, route), f"pump {call.id}")
        flight.abandoned = lambda: self._abandon(flight, task)

    def quote(self, call: Call, route: Route) -> dict[str, object]:
        return self._dispatcher.quote(call, route)

    def _abandon(self, flight: Flight, task: asyncio.Task[None]) -> None:
        """Nobody reads any more; not for the first time, where somebody had come to read what runs on."""
        before = self._draining.get(flight)
        if flight.landing.runs_on and (before is not None or self._drains < _MOST_DRAINS):
            late = asyncio.get_running_loop().call_later(_LONGEST_DRAIN, self._too_long, flight, task)
            self._draining[flight] = late
            if before is None:
                flight.at_end(lambda: self._draining.pop(flight).cancel())
            else:
                before.cancel()
        else:
            flight.land()
            task.cancel()

    @property
    def _drains(self) -> int:
        return sum(not flight.readers for flight in self._draining)

    @staticmethod
    def _too_long(flight: Flight, task: asyncio.Task[None]) -> None:
        """It has run on for nobody long enough. Who came meanwhile reads on, and begins that time anew by leaving."""
        if not flight.readers:
            flight.land()
            task.cancel()

    async def _fly(self, flight: Flight, call: Call, route: Route) -> None:
        error: errors.GatewayError | None = None
        live: Live | None = None
        ended = False
        try:
            live = await self._dispatcher.begin(call, route, flight.landing)
            if flight.landing.short:
                flight.land()  # a short answer is no answer for somebody whose budget is larger
            error = await self._carry(flight, live)
            ended = True
        except errors.GatewayError as problem:
            error = problem
        except asyncio.CancelledError:
            # By _abandon or by shutdown. Closing the books never awaits, so they are closed all the same.
            flight.landing.ended = "cancelled"
            if live is not None:
                flight.landing.consumed = await live.provider.consumed(live.plan.id)
        finally:
            self._close_books(flight, call, live)
            flight.landing.routed_nano = self._dispatcher.routed(call, route, flight.landing)
            if error is not None and any(step.settled for step in flight.landing.steps):
                error.spent = True
            flight.end(error if ended or error is not None else _given_up())

    async def _carry(self, flight: Flight, live: Live) -> errors.GatewayError | None:
        """Hand on every chunk. Returns what to tell the readers where the answer broke off."""
        landing = flight.landing
        landing.ended = "cut"
        try:
            self._note(flight, live, live.first)
            async for chunk in live.rest:
                self._note(flight, live, chunk)
                if len(flight.chunks) > _LARGEST_ANSWER:
                    return errors.UpstreamFailed("The answer grew beyond every bound and was cut off.")
                if flight.full:
                    await flight.room()
        except Partial as broken:
            flight.landing.consumed = broken.usage
            return errors.UpstreamFailed(f"The answer broke off: {broken}", code="upstream_disconnected")
        except errors.GatewayError as problem:
            return problem
        finally:
            await live.rest.aclose()
        landing.ended = "complete"
        return None

    def _note(self, flight: Flight, live: Live, chunk: Chunk) -> None:
        if chunk.usage is not None:
            flight.landing.usage = chunk.usage
            if chunk is not live.first:  # of which it was read as it came
                self._dispatcher.told(live, chunk)
            flight.landing.price = live.price
        if chunk.so_far is not None:
            flight.landing.so_far = chunk.so_far
        if chunk.finish is not None:
            flight.landing.finish = chunk.finish
        if chunk.computed is not None:
            flight.landing.computed = chunk.computed
        flight.push(chunk)

    def _close_books(self, flight: Flight, call: Call, live: Live | None) -> None:
        landing = flight.landing
        if live is None:
            self._unanswered(landing)
        else:
            # A count told before the end of a broken answer may still grow: only a whole answer's is final, or what
            # an engine of ours says it has computed.
            told = landing.usage if landing.ended == "complete" else landing.consumed
            if call.operation == "speech" and bound_nano(0, 1, live.price) > bound_nano(0, 0, live.price):
                told = None  # charged by the sound it made as well, which nobody tells
            landing.usage = told or self._received(flight, call, live)
            self._dispatcher.settle(live, told, landing.ended, landing.usage, _provider_id(flight))
        # Exact tokens at an assumed price (an engine nobody has measured) are still an estimate in dollars.
        exact = False not in [step.exact for step in landing.steps if step.cost_nano]
        landing.cost_status = "exact" if exact else "estimated"
        landing.cost_nano = sum([step.cost_nano for step in landing.steps])

    @staticmethod
    def _unanswered(landing: Landing) -> None:
        """No attempt gave a first chunk; some may have cost something all the same, and the last of those is named."""
        paid = [step for step in landing.steps if step.cost_nano]
        if paid:
            landing.provider, landing.model, landing.usage = paid[-1].provider, paid[-1].model, paid[-1].counted

    @staticmethod
    def _received(flight: Flight, call: Call, live: Live) -> Usage:
        """Never fewer tokens than were delivered: as counted along the way, else a token has at least a byte.

        The ledger adds what was on its way.

        Of what is not text nobody can tell, so all that it may have been.
        """
        if call.operation in PASSED:
            return Usage(prompt=live.bound.input, completion=live.bound.output)
        if flight.landing.so_far is not None:
            return flight.landing.so_far
        output = sum(text_size(chunk.data) for chunk in flight.chunks)
        return Usage(prompt=live.bound.input, completion=min(live.bound.output, output))


def _provider_id(flight: Flight) -> str:
    found = flight.chunks[0].data.get("id") if flight.chunks else None
    return found if isinstance(found, str) else ""


def _given_up() -> errors.GatewayError:
    return errors.UpstreamFailed("The call was given up before it was answered.", code="cancelled")
