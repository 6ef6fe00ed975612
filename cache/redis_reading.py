"""What is read of Redis: entries with the mark of the present, records, vectors, orders.

Does not write but for ranks, which are hints. Does not know listeners, budgets of entries or who asks.
"""

from collections.abc import AsyncGenerator, Awaitable, Sequence
from typing import cast

from redis.asyncio import Redis

from cache.codec import Codec
from cache.redis_batch import Meta, meta_of, read_entry, read_metas, read_vector
from cache.redis_era import Era
from cache.redis_link import WRITE_BUDGET, Link
from cache.store import VectorRow
from cache.touches import Used
from cache.types import Entry
from policies import eviction

_LOOKED_AT = 256
PAGE = 200
_Raws = list[bytes | None]


class Reader:
    """Every method may raise StoreDown."""

    def __init__(self, link: Link, era: Era, codec: Codec) -> None:
        self._link = link
        self._codec = codec
        self._era = era
        self._slow = link.slow
        self._looked_up_to = 0

    async def look(self) -> None:
        """What the stream does not tell: a flush of the whole server, a purge whose word was lost."""
        keys = await self._era.begin()
        generation, cut = await self._link.ask(
            lambda: cast("Awaitable[_Raws]", self._slow.mget([keys.generation, keys.cut]))
        )
        await self._era.is_present(generation, cut)

    async def entries(
        self, client: "Redis", exacts: Sequence[bytes], budget: float = WRITE_BUDGET
    ) -> list[Entry | None]:
        if not exacts:
            return []
        keys = await self._era.begin(budget)
        names = [keys.generation, keys.cut, *(keys.entry(exact) for exact in exacts)]
        generation, cut, *raws = await self._link.ask(lambda: cast("Awaitable[_Raws]", client.mget(names)), budget)
        if not await self._era.is_present(generation, cut, budget):
            return [None] * len(exacts)
        found = (read_entry(self._codec, exact, raw) for exact, raw in zip(exacts, raws, strict=True))
        return [one[0] if one is not None and self._era.lives(*one) else None for one in found]

    async def members(self) -> AsyncGenerator[list[bytes], None]:
        """Digests of what is held, in pages; what is removed meanwhile does not hide what stays."""
        await self.look()
        cursor = 0
        while True:
            at = cursor
            page: list[tuple[bytes, float]]
            cursor, page = await self._link.ask(
                lambda at=at: cast(
                    "Awaitable[tuple[int, list[tuple[bytes, float]]]]",
                    self._slow.zscan(self._era.keys.used, at, count=PAGE),
                )
            )
            yield [exact for exact, _ in page]
            if cursor == 0:
                return

    async def longest_lived(self) -> AsyncGenerator[list[bytes], None]:
        """Digests of what is held, in pages, that which expires last first."""
        await self.look()
        page, start = [b""], 0
        while page:
            at = start
            page = await self._link.ask(
                lambda at=at: as_list(self._slow.zrevrange(self._era.keys.expires, at, at + PAGE - 1))
            )
            start += PAGE
            yield page

    async def metas(self, exacts: Sequence[bytes]) -> dict[bytes, Meta]:
        if not exacts:
            return {}
        names = cast("list[str]", list(exacts))
        raws = await self._link.ask(lambda: cast("Awaitable[_Raws]", self._slow.hmget(self._era.keys.meta, names)))
        return read_metas(exacts, raws)

    async def known(self, exacts: Sequence[bytes]) -> dict[bytes, Meta]:
        """The same, from the entries themselves where Redis has lost a record."""
        metas = await self.metas(exacts)
        lost = [exact for exact in exacts if exact not in metas]
        for entry in await self.entries(self._slow, lost):
            if entry is not None:
                metas[entry.exact] = meta_of(entry)
        return metas

    async def all_keys(self, exacts: Sequence[bytes]) -> list[bytes]:
        """With those that have the same answers."""
        roots = {meta.root or meta.entry_id for meta in (await self.known(exacts)).values()}

        async def work() -> list[set[bytes]]:
            pipe = self._slow.pipeline(transaction=False)
            for root in roots:
                pipe.smembers(self._era.keys.answer(root))
            return cast("list[set[bytes]]", await pipe.execute())

        found = await self._link.ask(work) if roots else []
        return list(set(exacts).union(*found))

    async def is_listed(self, root: int, exact: bytes) -> bool:
        return (
            await self._link.ask(lambda: as_count(self._slow.sismember(self._era.keys.answer(root), as_text(exact))))
            == 1
        )

    async def vectors(self, scope: bytes, encoder: str) -> AsyncGenerator[list[VectorRow], None]:
        """In pages, so that neither the server nor this loop stands still for a large scope."""
        await self.look()
        cursor, partition = 0, self._era.keys.partition(scope, encoder)
        while True:
            at = cursor
            page: dict[bytes, bytes]
            cursor, page = await self._link.ask(
                lambda at=at: cast(
                    "Awaitable[tuple[int, dict[bytes, bytes]]]", self._slow.hscan(partition, at, count=PAGE)
                )
            )
            yield [row for exact, raw in page.items() if (row := read_vector(exact, raw)) is not None]
            if cursor == 0:
                return

    async def lost(self) -> list[bytes]:
        """Of the next few that are held, those whose entry is gone: Redis tells nobody what it lets go."""
        keys = self._era.keys
        self._looked_up_to, page = await self._link.ask(
            lambda: cast(
                "Awaitable[tuple[int, list[tuple[bytes, float]]]]",
                self._slow.zscan(keys.used, self._looked_up_to, count=_LOOKED_AT),
            )
        )
        some = [exact for exact, _ in page]

        async def ask() -> list[int]:
            pipe = self._slow.pipeline(transaction=False)
            for exact in some:
                pipe.exists(keys.entry(exact))
            return cast("list[int]", await pipe.execute())

        there = await self._link.ask(ask) if some else []
        return [exact for exact, one in zip(some, there, strict=True) if not one]

    async def forget(self, exacts: Sequence[bytes]) -> None:
        """Take them out of the orders, where nothing else is known of them any more."""
        metas = await self.metas(exacts)
        if lost := [exact for exact in exacts if exact not in metas]:
            for order in (self._era.keys.used, self._era.keys.expires):
                await self._link.ask(lambda order=order: as_count(self._slow.zrem(order, *lost)))

    async def worth_least(self, count: int, but: bytes | None = None) -> list[bytes]:
        found = await self._link.ask(lambda: as_list(self._slow.zrange(self._era.keys.used, 0, count)))
        return [exact for exact in found if exact != but][:count]

    async def ranks(self, exacts: Sequence[bytes]) -> dict[bytes, float]:
        """Of those that have one."""
        if not exacts:
            return {}

        async def ask() -> list[float | None]:
            pipe = self._slow.pipeline(transaction=False)
            for exact in exacts:
                pipe.zscore(self._era.keys.used, exact)
            return cast("list[float | None]", await pipe.execute())

        found = zip(exacts, await self._link.ask(ask), strict=True)
        return {exact: rank for exact, rank in found if rank is not None}

    async def raise_ranks(self, touched: dict[bytes, Used]) -> None:
        """Raise the rank of what was used and still is there. Two workers at once may lose a use: it is only a hint."""
        metas = await self.metas(list(touched))
        raised = {
            exact: eviction.again(rank, metas[exact].worth, touched[exact].at, touched[exact].times)
            for exact, rank in (await self.ranks(list(metas))).items()
        }
        if raised:
            await self._link.ask(lambda: as_count(self._slow.zadd(self._era.keys.used, raised, xx=True)))


def as_bytes(reply: object) -> Awaitable[bytes | None]:
    """redis-py types its replies for sync and async, text and bytes at once; this client is async and bytes."""
    return cast("Awaitable[bytes | None]", reply)


def as_count(reply: object) -> Awaitable[int]:
    return cast("Awaitable[int]", reply)


def as_text(raw: bytes) -> str:
    """redis-py's set commands are typed for text, yet take bytes as they are."""
    return cast("str", raw)


def as_list(reply: object) -> Awaitable[list[bytes]]:
    return cast("Awaitable[list[bytes]]", reply)
