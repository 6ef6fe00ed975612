"""Which entries in Redis are of the present: a generation for all of them, and cuts through some.

The generation is a random word in the name of every key. A flush writes another word, and from then on nobody finds
what was kept under the old one, however much that is. A word that is lost (FLUSHALL, memory pressure) is replaced by a
new one, never by an old one: a cache may be lost, but what was taken back must not come again.
A cut is a number that grows; entries carry its value at their writing, and a purge notes, for what it selects, the
value below which entries are gone. Both numbers are read in the same round trip as any entry.
Does not know listeners or what an entry means.
"""

import logging
import secrets
from collections.abc import Awaitable, Callable
from typing import NamedTuple, cast

import msgspec
from redis.asyncio import Redis
from redis.exceptions import WatchError

from cache.redis_batch import Keys, read_metas
from cache.redis_link import WRITE_BUDGET, Link
from cache.store import Selection, StoreDown
from cache.types import Entry, Group

log = logging.getLogger("nearhit.cache")

# Cuts and refused ids are needed until what they mean has been removed or has expired; older ones go.
_MOST_CUTS = 2_000
_ATTEMPTS = 20
_PAGE = 200
_ID = b"#"
_GROUP = b"="
_FLUSHED = "-"
_Raw = bytes | None
_encode = msgspec.msgpack.Encoder().encode
_decode_group = msgspec.msgpack.Decoder(tuple[str | None, str | None, str | None])


class Mark(NamedTuple):
    """Where the present is: what every look-up brings along."""

    generation: bytes
    cut: int


class Cuts:
    """What was purged or refused, by the mark's number."""

    def __init__(self, raw: dict[bytes, bytes]) -> None:
        self.are_lost = not raw  # where there is a number there is a note
        self._groups: list[tuple[Selection, int]] = []
        self._ids: dict[int, int] = {}
        for field, number in raw.items():
            try:
                if field.startswith(_ID):
                    self._ids[int(field[1:])] = int(number)
                else:
                    team, project, model = _decode_group.decode(field[1:])
                    self._groups.append((Selection(team=team, project=project, model=model), int(number)))
            except (msgspec.DecodeError, ValueError):
                continue

    def take(self, entry: Entry, stamp: int) -> bool:
        """Whether an entry written at `stamp` has gone since."""
        if entry.id in self._ids or entry.root in self._ids:
            return True
        if not self._groups:
            return False
        group = Group(entry.team, entry.project, entry.model)
        return any(stamp < number and selection.takes_group(group) for selection, number in self._groups)


class Era:
    """What this process knows of the present, and how it is changed. `lost` is called when all kept so far is past."""

    def __init__(self, link: Link, prefix: str, lost: Callable[[], None]) -> None:
        self._link = link
        self._prefix = prefix
        self._lost = lost
        self._mark: Mark | None = None
        self._cuts = Cuts({})
        self.keys = Keys(prefix, b"")

    @property
    def mark(self) -> Mark:
        """Raises StoreDown before it was ever read."""
        if self._mark is None:
            raise StoreDown("redis: not read yet")
        return self._mark

    async def begin(self, budget: float = WRITE_BUDGET) -> Keys:
        """The names of today, read where they are not known."""
        if self._mark is None:
            await self.read(budget)
        return self.keys

    async def read(self, budget: float = WRITE_BUDGET) -> None:
        """What is true now."""
        before = self._mark
        client = self._link.fast if budget <= self._link.lookup else self._link.slow
        self._adopt(*await self._link.ask(lambda: self._read(client), budget))
        fell = before is not None and before.generation == self.mark.generation and self.mark.cut < before.cut
        if fell or (self.mark.cut > 0 and self._cuts.are_lost):
            # The number or the notes were lost to memory pressure: what they cut off must not come again.
            await self.flush()

    async def is_present(self, generation: _Raw, cut: _Raw, budget: float = WRITE_BUDGET) -> bool:
        """Whether what came along with these two may be looked at. Reads what has changed."""
        known = self._mark
        if known is not None and known == (generation, int(cut or 0)):
            return True
        await self.read(budget)
        return known is not None and known.generation == generation == self.mark.generation

    def lives(self, entry: Entry, stamp: int) -> bool:
        return not self._cuts.take(entry, stamp)

    async def cut(self, selection: Selection) -> None:
        """Entries of these groups written so far are gone, for everybody."""
        await self._note(_GROUP + _encode((selection.team, selection.project, selection.model)))

    async def refuse(self, *entry_ids: int) -> None:
        """These entries and the keys of their answers are gone, wherever they may still lie."""
        await self._note(*(_ID + str(entry_id).encode() for entry_id in entry_ids))

    async def flush(self) -> int:
        """Everything kept so far is gone, for everybody; how many entries that were."""
        keys = await self.begin()
        fresh = _word()

        async def work() -> list[int]:
            pipe = self._link.slow.pipeline(transaction=True)
            pipe.zcard(keys.used)
            pipe.sadd(keys.generations, fresh)
            pipe.set(keys.generation, fresh)
            pipe.hset(keys.cuts, _FLUSHED, "0")  # the number stays, so there must be a note
            return cast("list[int]", await pipe.execute())

        held = (await self._link.ask(work))[0]
        await self.read()
        return held

    async def clean(self) -> None:
        """Remove what past generations left, page by page."""
        keys = await self.begin()
        words = await self._link.ask(lambda: cast("Awaitable[set[bytes]]", self._link.slow.smembers(keys.generations)))
        for word in words - {self.mark.generation}:
            await self.clear(word)
            await self._link.ask(lambda word=word: self._link.slow.srem(keys.generations, word))

    async def clear(self, generation: bytes) -> None:
        """Remove all of one past generation."""
        keys = Keys(self._prefix, generation)
        slow = self._link.slow
        while exacts := await self._link.ask(
            lambda: cast("Awaitable[list[bytes]]", slow.zrange(keys.used, 0, _PAGE - 1))
        ):
            names = cast("list[str]", exacts)
            raws = await self._link.ask(lambda names=names: cast("Awaitable[list[_Raw]]", slow.hmget(keys.meta, names)))
            metas = read_metas(exacts, raws).values()
            gone = [keys.entry(exact) for exact in exacts]
            gone += [keys.pointer(meta.entry_id) for meta in metas]
            gone += [keys.answer(meta.root or meta.entry_id) for meta in metas]
            gone += {keys.partition(meta.scope, meta.encoder) for meta in metas}
            await self._link.ask(lambda gone=gone: slow.unlink(*gone))
            await self._link.ask(lambda exacts=exacts: slow.zrem(keys.used, *exacts))
        rest = (keys.meta, keys.used, keys.expires, keys.groups)
        await self._link.ask(lambda: slow.unlink(*rest))

    def _adopt(self, generation: bytes, cut: int, cuts: dict[bytes, bytes]) -> None:
        before, self._mark = self._mark, Mark(generation, cut)
        self._cuts = Cuts(cuts)
        if before is None or before.generation != generation:
            self.keys = Keys(self._prefix, generation)
        if before is not None and before.generation != generation:
            self._lost()

    async def _read(self, client: "Redis") -> tuple[bytes, int, dict[bytes, bytes]]:
        keys = self.keys
        for _ in range(2):
            # In this order and not as one: a full Redis queues nothing, and cuts newer than their number do no harm.
            pipe = client.pipeline(transaction=False)
            pipe.get(keys.generation)
            pipe.get(keys.cut)
            pipe.hgetall(keys.cuts)
            generation, cut, cuts = cast("tuple[_Raw, _Raw, dict[bytes, bytes]]", await pipe.execute())
            if generation is not None:
                return generation, int(cut or 0), cuts
            fresh = _word()
            pipe = client.pipeline(transaction=True)
            pipe.sadd(keys.generations, fresh)
            pipe.set(keys.generation, fresh, nx=True)
            await pipe.execute()
        raise StoreDown("redis: its generation does not stay")

    async def _note(self, *fields: bytes) -> None:
        await self.begin()
        await self._link.ask(lambda: self._write_note(fields))
        await self.read()

    async def _write_note(self, fields: tuple[bytes, ...]) -> None:
        """The number and the notes go together, or readers would remember the one without the others."""
        keys = self.keys
        async with self._link.slow.pipeline(transaction=True) as pipe:
            for _ in range(_ATTEMPTS):
                try:
                    await pipe.watch(keys.cut)
                    number = int(await cast("Awaitable[_Raw]", pipe.get(keys.cut)) or 0) + 1
                    notes = await cast("Awaitable[dict[bytes, bytes]]", pipe.hgetall(keys.cuts))
                    pipe.multi()
                    old = sorted(notes, key=lambda field: int(notes[field]))[: max(0, len(notes) - _MOST_CUTS)]
                    if old:
                        pipe.hdel(keys.cuts, *cast("list[str]", old))
                    for field in fields:
                        pipe.hset(keys.cuts, cast("str", field), str(number))
                    pipe.set(keys.cut, number)
                    await pipe.execute()
                except WatchError:
                    continue
                return
        raise StoreDown("redis: too many purges at once")


def _word() -> bytes:
    return secrets.token_hex(8).encode()
