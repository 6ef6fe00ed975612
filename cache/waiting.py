"""What a process holds and what it waits for, of answers that several processes might make: one object each.

Knows who here counts on a lease, and who here waits for one answer, with what each of them allows. Does not know the
store, nor who asks it and when (`cache.leases`).
"""

import asyncio
from typing import Literal, Protocol

from cache.types import Entry

# Why a wait has ended: the answer is kept; this process is to make it; nobody makes one that would be kept; the time is
# over, or that which may pass after the first token; the store is away; too many are waited for here already.
Waited = Literal["kept", "took-over", "not-kept", "late", "begun", "store-down", "crowded"]


class _Keeper(Protocol):
    def tell_later(self, lease: "Lease") -> None: ...

    def leave(self, lease: "Lease") -> None: ...


class Lease:
    """Held by this process. `users`: requests and flights that count on it; the last one to leave gives it back."""

    __slots__ = ("_leases", "exact", "flying", "in_vain", "kept", "token", "told", "users")

    def __init__(self, leases: "_Keeper", exact: bytes, token: bytes) -> None:
        self._leases = leases
        self.exact = exact
        self.token = token
        self.users = 0
        self.flying = self.told = self.kept = self.in_vain = False

    def begun(self) -> None:
        """The first token of the answer is here; others are told in a moment, unless it has ended by then."""
        if not self.told:
            self.told = True
            self._leases.tell_later(self)

    def landed(self, *, in_vain: bool = False) -> None:
        """The flight's counterpart of `Turn.fly`. `in_vain`: its answer was whole and is not kept."""
        self.flying = self.told = False
        self.in_vain = in_vain
        self._leases.leave(self)


class Watch:
    """Everyone here who waits for one answer that is made elsewhere."""

    def __init__(self) -> None:
        self.waiting: dict[asyncio.Future[Waited], float | None] = {}
        self.nudged = asyncio.Event()
        self.begun_at: float | None = None
        self.entry: Entry | None = None
        self.lease: Lease | None = None
        self.task: asyncio.Task[None] | None = None

    def join(self, beyond: float | None) -> asyncio.Future[Waited]:
        future: asyncio.Future[Waited] = asyncio.get_running_loop().create_future()
        self.waiting[future] = beyond
        self._hurry(future, beyond)
        return future

    def begun(self, ago: float | None) -> None:
        """The holder's first token came so many seconds before; None: not yet, or another one holds it now."""
        if ago is None:
            self.begun_at = None
        elif self.begun_at is None:
            self.begun_at = asyncio.get_running_loop().time() - ago
            for future, beyond in self.waiting.items():
                self._hurry(future, beyond)

    def end(self, result: Waited) -> None:
        for future in self.waiting:
            _tell(future, result)

    def _hurry(self, future: asyncio.Future[Waited], beyond: float | None) -> None:
        if beyond is not None and self.begun_at is not None:
            asyncio.get_running_loop().call_at(self.begun_at + beyond, self._hurried, future, self.begun_at)

    def _hurried(self, future: asyncio.Future[Waited], begun_at: float) -> None:
        if self.begun_at == begun_at:  # else that answer has come to nothing, and another one is made
            _tell(future, "begun")


def _tell(future: asyncio.Future[Waited], result: Waited) -> None:
    if not future.done():
        future.set_result(result)
