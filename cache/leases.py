"""One answer for all processes: who makes it holds a lease in the store, the others wait until it is kept.

    turn = leases.turn(exact)    of one request
    await turn.look()            the exact look-up, which also takes the lease where there is neither answer nor holder
    await turn.wait(...)         where another process makes it: until it is kept, or there is no use in waiting
    lease = turn.fly()           where this process makes it: the lease stays until the flight gives it back
    turn.leave()                 the request is over, or has its answer

A lease belongs to the process: all requests here with the same digest share it. It is renewed while any of them, or a
flight, counts on it. Who waits asks again at growing intervals, one of this process for all, and at once when the store
tells of a new entry. Whoever finds the lease free takes it with that very question, so one of all waiting processes
goes on and the rest wait for that one. Trouble with the store ends every wait.
Does not know flights, money, or what an answer says.
"""

import asyncio
import itertools
import secrets
from collections.abc import Callable
from contextlib import suppress

from cache.background import Background
from cache.store import Change, Claimed, Leasing, StoreDown
from cache.types import Entry
from cache.waiting import Lease, Waited, Watch

_WORKER = 8
_FIRST_PAUSE, _LONGEST_PAUSE, _GROWTH = 0.05, 0.25, 1.5
_MOST_WATCHED = 256
_MOST_ENDING = 1_024
# An answer that is whole sooner is kept before anybody would have read this.
_TOLD_AFTER = 0.1


class Turn:
    """One request's part. `lease`: of this process, once `look` or `wait` has found that it is this one's turn."""

    __slots__ = ("_brought", "_elsewhere", "_leases", "_waited", "begun", "exact", "lease")

    def __init__(self, leases: "Leases", exact: bytes) -> None:
        self._leases = leases
        self._elsewhere = self._waited = False
        self._brought: Entry | None = None
        self.exact = exact
        self.lease: Lease | None = None
        self.begun: float | None = None

    @property
    def elsewhere(self) -> bool:
        """Whether another process makes the answer, and that has not been waited for yet.

        Also where a look-up failed and others here know it.
        """
        if self.lease is not None or self._waited:
            return False
        return self._elsewhere or self._leases.watches(self.exact)

    async def look(self) -> Entry | None:
        """The entry under the digest. Raises StoreDown."""
        entry, self._brought = self._brought, None
        if entry is not None:
            return entry
        found = await self._leases.claim(self.exact)
        self._elsewhere, self.begun = False, found.begun
        if found.holder and self._leases.is_ours(found.holder):
            if self.lease is None:
                self.lease = self._leases.join(self.exact, found.holder)
        elif found.holder:
            self._elsewhere = True
        return found.entry

    async def wait(self, within: float, beyond: float | None) -> Waited:
        """For the answer that another process makes, at most `within` seconds, and `beyond` after its first token."""
        self._waited = True
        result, self._brought, self.lease = await self._leases.wait(self, within, beyond)
        return result

    def fly(self) -> Lease | None:
        """The lease, for a flight that begins here; None where there is none, or another flight has it already."""
        lease = self.lease
        if lease is None or lease.flying:
            return None
        lease.flying = True
        lease.users += 1
        return lease

    def leave(self) -> None:
        """Once or more often."""
        lease, self.lease = self.lease, None
        if lease is not None:
            self._leases.leave(lease)


class Leases:
    """One per process. `leasing`: None where the store has none; then every request makes its own answer."""

    def __init__(self, leasing: Leasing | None, *, monotonic: Callable[[], float]) -> None:
        self._leasing = leasing
        self._monotonic = monotonic
        self._worker = secrets.token_bytes(_WORKER)
        self._numbers = itertools.count(1)
        self._background = Background()
        self._held: dict[bytes, Lease] = {}
        self._watched: dict[bytes, Watch] = {}
        self._asked: dict[bytes, list[asyncio.Future[Claimed | StoreDown | None]]] = {}
        self._ending: list[tuple[bytes, bytes, bool]] = []
        self._renewing = self._releasing = False

    def __len__(self) -> int:
        return len(self._held) + len(self._watched)

    @property
    def shared(self) -> bool:
        """Whether there are other processes to agree with."""
        return self._leasing is not None

    def turn(self, exact: bytes) -> Turn | None:
        return Turn(self, exact) if self.shared else None

    def heard(self, change: Change) -> None:
        """The store tells of a change: whoever waits for that entry looks at once."""
        exact = change.row.exact
        if change.kind == "add":
            if (lease := self._held.get(exact)) is not None:
                lease.kept = True
            if (watch := self._watched.get(exact)) is not None:
                watch.nudged.set()
        elif change.kind == "reset":
            for watch in self._watched.values():
                watch.nudged.set()

    async def close(self) -> None:
        """Give back what is still held."""
        if self._leasing is None:
            return
        for watch in list(self._watched.values()):
            watch.end("store-down")
        await self._background.close()
        self._ending += [(lease.exact, lease.token, False) for lease in self._held.values() if not lease.kept]
        self._held.clear()
        await self._release()

    # -- what turns and leases ask -----------------------------------------------------------------------------

    def is_ours(self, token: bytes) -> bool:
        return token.startswith(self._worker)

    def watches(self, exact: bytes) -> bool:
        return exact in self._watched

    async def claim(self, exact: bytes) -> Claimed:
        """Raises StoreDown. In a herd one asks for all, but each by itself for what is there: it may be taken back."""
        while (asked := self._asked.get(exact)) is not None:
            mine: asyncio.Future[Claimed | StoreDown | None] = asyncio.get_running_loop().create_future()
            asked.append(mine)
            found = await mine
            if isinstance(found, StoreDown):
                raise StoreDown(str(found))
            if found is not None:
                return found if found.entry is None else await self._claim(exact)
        asked = self._asked[exact] = []
        told: Claimed | StoreDown | None = None  # where the one who asks is gone, another one asks
        try:
            told = found = await self._claim(exact)
        except StoreDown as error:
            told = error
            raise
        finally:
            del self._asked[exact]
            for future in asked:
                if not future.done():
                    future.set_result(told)
        return found

    async def _claim(self, exact: bytes) -> Claimed:
        """A lease that was given to somebody who did not hear of it is given back."""
        assert self._leasing is not None
        token = self._worker + next(self._numbers).to_bytes(8, "big")
        try:
            return await self._leasing.claim(exact, token)
        except (asyncio.CancelledError, StoreDown):
            lease = self._held.get(exact)
            if not self._leasing.is_down and (lease is None or lease.token != token):
                self._give_back(exact, token, in_vain=False)
            raise

    def join(self, exact: bytes, token: bytes) -> Lease:
        """The lease of this process. One that was lost meanwhile and taken anew goes on under its new token."""
        lease = self._held.get(exact)
        if lease is None:
            lease = self._held[exact] = Lease(self, exact, token)
            # Whoever asked for all may have left before the others here heard what was found.
            self._ending = [ending for ending in self._ending if ending[1] != token]
            if not self._renewing:
                self._renewing = True
                self._background.spawn(self._renew(), "renew leases")
        elif lease.token != token:
            lease.token, lease.kept = token, False
        lease.users += 1
        return lease

    def leave(self, lease: Lease) -> None:
        lease.users -= 1
        if lease.users > 0:
            return
        if self._held.get(lease.exact) is lease:
            del self._held[lease.exact]
        if not lease.kept:  # else it has gone with the writing of the entry
            self._give_back(lease.exact, lease.token, in_vain=lease.in_vain)

    def tell_later(self, lease: Lease) -> None:
        begun = self._monotonic()

        def tell() -> None:
            if lease.flying and not lease.kept and self._held.get(lease.exact) is lease:
                self._background.spawn(self._tell(lease, begun), "a lease's answer has begun")

        asyncio.get_running_loop().call_later(_TOLD_AFTER, tell)

    async def wait(self, turn: Turn, within: float, beyond: float | None) -> tuple[Waited, Entry | None, Lease | None]:
        """How it ended, with the entry that is kept now, or the lease that this process has now."""
        watch = self._watch(turn)
        if watch is None:
            return "crowded", None, None
        future = watch.join(beyond)
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(within):
                    result = await future
                    if result == "took-over" and (lease := watch.lease) is not None:
                        lease.users += 1
                        return result, None, lease
                    return result, watch.entry, None
            return "late", None, None
        finally:
            watch.waiting.pop(future)
            if not watch.waiting:
                self._unwatch(turn.exact, watch)

    # -- behind the scenes -------------------------------------------------------------------------------------

    def _watch(self, turn: Turn) -> Watch | None:
        watch = self._watched.get(turn.exact)
        if watch is None:
            if len(self._watched) >= _MOST_WATCHED:
                return None
            watch = self._watched[turn.exact] = Watch()
            watch.task = self._background.spawn(self._ask(turn.exact, watch), "wait for another process's answer")
        if turn.begun is not None:
            watch.begun(turn.begun)
        return watch

    def _unwatch(self, exact: bytes, watch: Watch) -> None:
        if self._watched.get(exact) is watch:
            del self._watched[exact]
        if watch.task is not None:
            watch.task.cancel()
        if watch.lease is not None:
            self.leave(watch.lease)

    async def _ask(self, exact: bytes, watch: Watch) -> None:
        """Whatever goes wrong here, nobody waits for a task that has ended."""
        try:
            await self._ask_on(exact, watch)
        except Exception:
            self._end(exact, watch, "store-down")
            raise

    async def _ask_on(self, exact: bytes, watch: Watch) -> None:
        """Ask for one answer, again and again, until all who wait for it are told how that ended."""
        pause, failed = _FIRST_PAUSE, False
        while watch.waiting:
            with suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await watch.nudged.wait()
            watch.nudged.clear()
            try:
                found = await self.claim(exact)
            except StoreDown:
                if failed or (self._leasing is not None and self._leasing.is_down):
                    return self._end(exact, watch, "store-down")
                pause, failed = 0.0, True  # one may be this process's being busy
                continue
            pause, failed = min(max(pause, _FIRST_PAUSE) * _GROWTH, _LONGEST_PAUSE), False
            if found.entry is not None:
                watch.entry = found.entry
                return self._end(exact, watch, "kept")
            if not found.holder:
                return self._end(exact, watch, "not-kept")
            if self.is_ours(found.holder):
                watch.lease = self.join(exact, found.holder)
                self._end(exact, watch, "took-over")
                if not watch.waiting:  # cancelled, which a client of Redis may keep to itself
                    self.leave(watch.lease)
                return None
            watch.begun(found.begun)
        return None

    def _end(self, exact: bytes, watch: Watch, result: Waited) -> None:
        """Whoever comes from now on has a look-up of their own that says how things are."""
        if self._watched.get(exact) is watch:
            del self._watched[exact]
        watch.task = None
        watch.end(result)

    async def _renew(self) -> None:
        """While any is held."""
        assert self._leasing is not None
        try:
            while self._held:
                await asyncio.sleep(self._leasing.life / 3)
                held = [(lease.exact, lease.token) for lease in self._held.values() if not lease.kept]
                if held:
                    with suppress(StoreDown):  # it is tried again; a lease that ends meanwhile is one call more
                        await self._leasing.renew(held)
        finally:
            self._renewing = False

    async def _tell(self, lease: Lease, begun: float) -> None:
        assert self._leasing is not None
        with suppress(StoreDown):  # then streams elsewhere wait as long as others
            await self._leasing.begin(lease.exact, lease.token, self._monotonic() - begun)

    def _give_back(self, exact: bytes, token: bytes, *, in_vain: bool) -> None:
        if len(self._ending) < _MOST_ENDING:  # what is not given back ends by itself
            self._ending.append((exact, token, in_vain))
        if not self._releasing:
            self._releasing = True
            self._background.spawn(self._release(), "give leases back")

    async def _release(self) -> None:
        """All that are to be given back, together."""
        assert self._leasing is not None
        try:
            while self._ending:
                ending, self._ending = self._ending, []
                with suppress(StoreDown):
                    await self._leasing.release(ending)
        finally:
            self._releasing = False
