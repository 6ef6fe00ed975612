"""Answers in the making, and everyone who waits for one: identical calls in flight share a single upstream answer.

Knows: the chunks that have arrived, who still reads, when nobody does. Does not know: providers, money, HTTP.
A flight is written by one pump and read by any number of readers, each from its beginning.
"""

import asyncio
from collections.abc import Callable
from contextlib import ExitStack
from typing import Literal

from msgspec import Struct

from gateway.call import Chunk, Computed, CostStatus
from gateway.errors import GatewayError
from gateway.providers import Billing
from policies.money import Price, Usage

_LAG = 256  # chunks the quickest reader may be behind before the upstream is made to wait
Key = tuple[bytes, bytes]
Ended = Literal["complete", "cut", "cancelled", "failed"]


class Step(Struct, kw_only=True):
    """What became of one attempt. Instants are monotonic seconds, 0.0: not reached. `why`: hedge, rung, vote, …

    `keys`: of a pool, by number, as they were tried; the last one has answered, or was the last to be refused.
    `billing`: what closing it early would cost. `settled`: it is paid for, or may have to be; else it provably cost
    nothing. `counted`: what it used, where its provider says so; `exact`: and its price is known too.
    """

    id: str
    provider: str
    model: str
    billing: Billing = "stops-on-close"
    held_at: float = 0.0
    sent_at: float = 0.0
    first_chunk_at: float = 0.0
    ended_at: float = 0.0
    result: str = "begun"
    cost_nano: int = 0
    settled: bool = False
    counted: Usage | None = None
    exact: bool = False
    replica: str = ""
    why: str = ""
    keys: list[str] = []


class Landing(Struct, kw_only=True):
    """What is known of an answer besides its chunks; fills up while it is made, complete once the flight has ended.

    `unwanted`: nobody will read it, nor is it to be kept. `capped`: the output cap added because the client named none;
    `short`: the scope of the budget that made it smaller than usual.
    `consumed`: what a broken answer is known to have used; `so_far`: at least that, and little more.
    `computed`: how a bundled engine spent its time.
    `tried`: attempts that were planned; `answered`: the one whose answer this is. `told`: says how the candidates were
    weighed, and what several answers were worth. `routed_nano`: what choosing among places saved.
    `unsure`: the answer of a cascade that nobody was sure of, for want of a better one.
    `paused`: seconds in which a place was given time before it was asked again.
    """

    steps: list[Step] = []
    paused: float = 0.0
    tried: int = 0
    answered: Step | None = None
    told: list[Callable[[], dict[str, object]]] = []
    unwanted: bool = False
    capped: int | None = None
    short: str = ""
    unsure: bool = False
    provider: str = ""
    model: str = ""
    price: Price | None = None
    usage: Usage | None = None
    consumed: Usage | None = None
    so_far: Usage | None = None
    computed: Computed | None = None
    finish: str | None = None
    cost_nano: int = 0
    routed_nano: int = 0
    cost_status: CostStatus = "exact"
    ended: Ended = "failed"

    @property
    def runs_on(self) -> bool:
        """Whether it is read to its end for nobody: some of what is asked for it is paid for whole all the same."""
        return not self.unwanted and any(
            step.result == "begun" and step.billing == "bills-anyway" for step in self.steps
        )


class Flight:
    """One answer. `streamed`: it arrives as events, else as one whole body; `kept`: it is a kept one, as JSON.

    `spelled`: a fresh answer as it is kept, as JSON without what names its call.

    `keeping`: writes it down, once it has ended; None where nothing is kept, or that is done.
    `abandoned` is called when the last reader has left an unfinished flight; `land` closes it to newcomers.
    """

    def __init__(self, key: Key | None, *, streamed: bool) -> None:
        self.key = key
        self.streamed = streamed
        self.chunks: list[Chunk] = []
        self.kept: bytes | None = None
        self.spelled: bytes | None = None
        self.landing = Landing()
        self.error: GatewayError | None = None
        self.done = False
        self.keeping: asyncio.Task[int | None] | None = None
        self.readers = 0
        self.abandoned: Callable[[], None] | None = None
        self._furthest = 0
        self._waiting: list[asyncio.Future[None]] = []
        self._followers: list[Callable[[Chunk], bool]] = []
        self._room: asyncio.Future[None] | None = None
        self._at_end: list[Callable[[], object]] = []
        self.land: Callable[[], None] = _nothing

    # -- the pump's side ---------------------------------------------------------------------------------------

    def push(self, chunk: Chunk) -> None:
        self.chunks.append(chunk)
        if self._followers:
            self._followers = [take for take in self._followers if take(chunk)]
            if self._followers:
                self._furthest = len(self.chunks)
        if self._waiting:
            self._wake()

    @property
    def full(self) -> bool:
        """Whether even the quickest reader is far behind."""
        return len(self.chunks) - self._furthest > _LAG and self.readers > 0

    async def room(self) -> None:
        """Wait while it is full, so that a slow client slows its upstream down."""
        while self.full:
            self._room = asyncio.get_running_loop().create_future()
            await self._room

    def end(self, error: GatewayError | None = None) -> None:
        """The last thing a pump does. `error`: why there is no (whole) answer."""
        self.error = error
        self.done = True
        self.land()
        self._wake()
        acts, self._at_end = self._at_end, []
        # These refer back to the flight: without them its memory is given back at once, not at some collection.
        self.abandoned = None
        self.land = _nothing
        left = iter(acts)
        try:
            for act in left:
                act()
        except BaseException:  # told of when all have run: others hold a row, a lease, a wait
            with ExitStack() as stack:
                for act in reversed([*left]):
                    stack.callback(act)
            raise

    # -- the readers' side -------------------------------------------------------------------------------------

    def join(self) -> None:
        self.readers += 1

    def leave(self) -> None:
        """The counterpart of `join`. When the last reader leaves an unfinished flight, its owner is told."""
        self.readers -= 1
        self._make_room()
        if self.readers == 0 and not self.done and self.abandoned is not None:
            self.abandoned()

    def at_end(self, act: Callable[[], object]) -> None:
        """Call `act` once the flight has ended, at once if it already has."""
        if self.done:
            act()
        else:
            self._at_end.append(act)

    async def begun(self) -> None:
        """Return when the first chunk is in hand; raises the flight's error if there will be none."""
        while not self.chunks:
            if self.done:
                raise self.error or AssertionError("a flight ended without a chunk and without an error")
            await self._arrived()

    async def after(self, position: int) -> list[Chunk]:
        """The chunks behind the first `position`, which this reader is done with; at least one, none at the end.

        Raises the flight's error where the answer breaks off.
        """
        self._read(position)
        while position >= len(self.chunks):
            if self.done:
                if self.error is not None:
                    raise self.error
                return []
            await self._arrived()
        return self.chunks[position:]

    def follow(self, take: Callable[[Chunk], bool], position: int) -> None:
        """Have every further chunk handed to `take` at once, until it answers False. It must not raise.

        `position`: as in `after`; its writer may wait for just that.
        """
        self._followers.append(take)
        self._read(position)

    def unfollow(self, take: Callable[[Chunk], bool]) -> None:
        if take in self._followers:
            self._followers.remove(take)

    def _read(self, position: int) -> None:
        if position > self._furthest:
            self._furthest = position
            self._make_room()

    async def _arrived(self) -> None:
        mine = asyncio.get_running_loop().create_future()
        self._waiting.append(mine)
        await mine

    def _wake(self) -> None:
        waiting, self._waiting = self._waiting, []
        for future in waiting:
            if not future.done():  # its reader was cancelled
                future.set_result(None)

    def _make_room(self) -> None:
        if self._room is not None and not self._room.done():
            self._room.set_result(None)
        self._room = None


class Flights:
    """The answers in the making, by what was asked. `key=None` is never shared."""

    def __init__(self) -> None:
        self._flying: dict[Key, Flight] = {}

    def __len__(self) -> int:
        return len(self._flying)

    def flies(self, key: Key | None) -> bool:
        return key in self._flying

    def join(self, key: Key | None, *, streamed: bool) -> tuple[Flight, bool]:
        """The flight to read and whether the caller leads it (and must see to its pump). The caller has joined it."""
        flight = self._flying.get(key) if key is not None else None
        leads = flight is None
        if flight is None:
            flight = Flight(key, streamed=streamed)
            if key is not None:
                self._flying[key] = flight
                flight.land = lambda: self._land(key, flight)
        flight.join()
        return flight, leads

    def _land(self, key: Key, flight: Flight) -> None:
        if self._flying.get(key) is flight:
            del self._flying[key]


def _nothing() -> None:
    """A flight nobody else can join need not be taken off any list."""
