"""Values that many processes change by events, kept in the store: whoever writes second reads again and adds its own.

Knows names, versions and when to write. Does not know what the values mean: how one is made from bytes, and what an
event does to it, is handed in. Events are applied at once here; the store has them within moments, and a process that
is killed loses only those. While the store is away they wait, bounded.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from itertools import islice
from typing import Generic, Protocol, TypeVar

from cache.background import Background
from cache.store import Store, Stored, StoreDown

V = TypeVar("V")
E = TypeVar("E")
E_contra = TypeVar("E_contra", contravariant=True)

WRITE_WITHIN = 0.25
# What another process has learned is known here so many seconds later at most, where processes share the store.
FRESH_FOR = 1.0
_MOST_PENDING = 4_096
_PAUSE = 2.0
_TRIES = 8
_ROUND = 64


class Form(Protocol[V, E_contra]):
    """What the values are. `decode` answers None for bytes it cannot use; then the value begins anew."""

    def fresh(self) -> V: ...

    def fold(self, value: V, event: E_contra) -> V: ...

    def encode(self, value: V) -> bytes: ...

    def decode(self, blob: bytes) -> V | None: ...


class _Held(Generic[V, E]):
    """`value` is the one of `version` with `pending` folded in. `read`: monotonic seconds."""

    __slots__ = ("lock", "pending", "read", "value", "version")

    def __init__(self, value: V, version: int, read: float) -> None:
        self.value = value
        self.version = version
        self.read = read
        self.pending: list[E] = []
        self.lock = asyncio.Lock()


class Folded(Generic[V, E]):
    """At most `most` values in memory; those not written yet stay until they are."""

    def __init__(self, store: Store, form: Form[V, E], *, most: int, monotonic: Callable[[], float]) -> None:
        self._store = store
        self._form = form
        self._most = most
        self._monotonic = monotonic
        self._held: OrderedDict[bytes, _Held[V, E]] = OrderedDict()
        self._dirty: dict[bytes, None] = {}
        self._background = Background()
        self._writing: asyncio.Task[None] | None = None
        self._closed = False

    def __len__(self) -> int:
        return len(self._held)

    def peek(self, name: bytes) -> V | None:
        """The value if it is in memory."""
        held = self._held.get(name)
        return None if held is None else held.value

    async def get(self, name: bytes) -> V:
        """The value, from the store when it is not here or may be out of date. Raises StoreDown."""
        held = self._held.get(name)
        if held is None:
            await self._read(name)
            return self._held[name].value
        self._held.move_to_end(name)
        if self._is_stale(held) and not held.lock.locked():
            async with held.lock:
                await self._read(name)
        return held.value

    async def preload(self, names: list[bytes]) -> None:
        """Read those that are not here or may be out of date, in one round trip. Raises StoreDown."""
        missing = [name for name in names if name not in self._held or self._is_stale(self._held[name])]
        for name, stored in zip(missing, await self._store.states(missing) if missing else [], strict=True):
            held = self._held.get(name)
            # Not under the lock: what was written meanwhile here must not be undone by what was read before.
            if held is None or (stored is not None and stored.version > held.version and not held.lock.locked()):
                self._take(name, stored)

    async def add(self, name: bytes, event: E, *, soon: bool = False) -> V:
        """The value after `event`. `soon`: written before this returns, where the store can. Raises StoreDown only
        when nothing is known of the value yet."""
        if name not in self._held:
            await self.get(name)
        value = self.put(name, event)
        if soon:
            with suppress(StoreDown):
                await self._write(name)
        return value

    def put(self, name: bytes, event: E) -> V:
        """The same without waiting, for a value that is in memory."""
        held = self._held[name]
        held.value = self._form.fold(held.value, event)
        held.pending.append(event)
        if len(held.pending) > _MOST_PENDING and not held.lock.locked():
            del held.pending[0]
        self._dirty[name] = None
        if self._writing is None and not self._closed:
            self._writing = self._background.spawn(self._write_later(), "cache-learned")
        return held.value

    async def flush(self) -> None:
        """Everything is in the store when this returns. Raises StoreDown."""
        for name in list(self._dirty):
            await self._write(name)

    async def close(self) -> None:
        self._closed = True
        with suppress(StoreDown):
            await self.flush()
        await self._background.close()

    async def _write_later(self) -> None:
        try:
            await asyncio.sleep(WRITE_WITHIN)
            while self._dirty and not self._closed:
                try:
                    for name in list(self._dirty)[:_ROUND]:
                        await self._write(name)
                    await asyncio.sleep(WRITE_WITHIN)
                except StoreDown:
                    await asyncio.sleep(_PAUSE)
        finally:
            self._writing = None

    async def _write(self, name: bytes) -> None:
        """Compare and set until it works; another process's value gets this one's events folded in."""
        held = self._held.get(name)
        if held is None:
            return  # somebody else has written it meanwhile, and it made room for others
        async with held.lock:
            for _ in range(_TRIES):
                if not held.pending:
                    break
                count = len(held.pending)
                if await self._store.put_state(name, self._form.encode(held.value), seen=held.version):
                    del held.pending[:count]
                    held.version += 1
                    held.read = self._monotonic()
                else:
                    await self._read(name)
        if not held.pending:
            self._dirty.pop(name, None)

    def _is_stale(self, held: _Held[V, E]) -> bool:
        return self._store.shared and self._monotonic() - held.read > FRESH_FOR

    async def _read(self, name: bytes) -> None:
        (stored,) = await self._store.states([name])
        self._take(name, stored)

    def _take(self, name: bytes, stored: Stored | None) -> None:
        """What the store has, with what was not written yet."""
        held, version = self._held.get(name), stored.version if stored else 0
        value = None if stored is None else self._form.decode(stored.blob)
        if held is None:
            self._held[name] = _Held(self._form.fresh() if value is None else value, version, self._monotonic())
            self._shrink()
            return
        held.read = self._monotonic()
        if value is None:
            held.version = version  # the store has lost it, or cannot be read: what is known here is put back
        elif version != held.version:
            for event in held.pending:
                value = self._form.fold(value, event)
            held.value, held.version = value, version

    def _shrink(self) -> None:
        """The least recently used that are written go."""
        surplus = len(self._held) - self._most
        idle = (name for name, held in self._held.items() if not held.pending and not held.lock.locked())
        for name in list(islice(idle, max(0, surplus))):
            if name != next(reversed(self._held)):
                del self._held[name]
