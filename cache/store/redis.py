"""Entries in Redis, shared by all gateway workers; plain keys, no modules, no scripts, never money.

Look-ups have a budget of 50 ms and one round trip, without hidden retries; a circuit breaker makes an outage cost
nothing after the first failures. Writes also go to a change stream, so other workers learn of entries and evictions.
Does not know tenants: keys are digests, and every value carries its own digest and a checksum.
"""

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar, cast

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError
from redis.exceptions import TimeoutError as RedisTimeoutError

from cache import codec, feed
from cache.background import Background
from cache.breaker import Breaker
from cache.redis_batch import Batch, Keys, Meta, read_groups, read_metas, read_vector
from cache.store import Change, Selection, StoreDown, VectorRow
from cache.types import Entry, Group

T = TypeVar("T")

LOOKUP_BUDGET = 0.05
# Writes and whole partitions are off the path of a reply.
_WRITE_BUDGET = 2.0
# Longer than the stream's blocking read, so that silence is not mistaken for a dead server.
_SLOW_TIMEOUT = 3.0
_CONNECTIONS = 64
_PAGE = 200
_FLUSH_AFTER = 64
_SWEEP_EVERY = 16
_RESET_ABOVE = 1_000


class RedisStore:
    """Implements `cache.store.Store`. `now`: wall clock for expiry, `monotonic`: for the breaker."""

    def __init__(
        self,
        url: str,
        *,
        now: Callable[[], float],
        monotonic: Callable[[], float],
        max_entries: int = 100_000,
        prefix: str = "nearhit:cache:",
    ) -> None:
        self._now = now
        self._max_entries = max_entries
        self._keys = Keys(prefix)
        self._fast = _client(url, LOOKUP_BUDGET)
        self._slow = _client(url, _SLOW_TIMEOUT)
        self._places = asyncio.Semaphore(_CONNECTIONS)
        self._breaker = Breaker(monotonic=monotonic)
        self._background = Background()
        self._worker = secrets.token_hex(8)
        self._listen: Callable[[Change], None] = _ignore
        self._touched: dict[bytes, float] = {}
        self._writes = 0

    async def start(self, listen: Callable[[Change], None]) -> None:
        """Never fails: a Redis that is away now may come back."""
        self._listen = listen
        follower = feed.Follower(self._slow, self._keys.feed, worker=self._worker, listen=listen)
        self._background.spawn(follower.run(pause=0.5), "cache-feed")

    async def get(self, exact: bytes) -> Entry | None:
        raw = await self._try(lambda: _bytes(self._fast.get(self._keys.entry(exact))), LOOKUP_BUDGET)
        return None if raw is None else codec.decode(raw, exact)

    async def get_many(self, exacts: Sequence[bytes]) -> list[Entry | None]:
        return await self._entries(self._fast, exacts, LOOKUP_BUDGET)

    async def put(self, entry: Entry) -> None:
        old = await self._metas([entry.exact])
        batch = self._batch()
        for exact, meta in old.items():
            batch.remove(exact, meta)
        batch.add(entry, self._now())
        held = await self._execute(batch)
        self._writes += 1
        if len(self._touched) >= _FLUSH_AFTER:
            touched, self._touched = self._touched, {}
            await self._try(lambda: self._slow.zadd(self._keys.used, touched, xx=True), _WRITE_BUDGET)
        if self._writes % _SWEEP_EVERY == 0:
            await self._sweep()
        if held > self._max_entries:
            surplus = held - self._max_entries
            oldest = await self._try(lambda: _list(self._slow.zrange(self._keys.used, 0, surplus - 1)), _WRITE_BUDGET)
            await self._remove(oldest)

    def put_soon(self, entry: Entry) -> bool:  # noqa: ARG002 - the protocol's signature
        """Other processes must get it too, so it has to be sent first."""
        return False

    async def drop(self, entry_id: int) -> Entry | None:
        pointer = self._keys.pointer(entry_id)
        exact = await self._try(lambda: _bytes(self._slow.get(pointer)), _WRITE_BUDGET)
        if exact is None or (await self._metas([exact])).get(exact, _NOTHING).entry_id != entry_id:
            return None
        (entry,) = await self._entries(self._slow, [exact], _WRITE_BUDGET)
        await self._remove([exact])
        return entry

    async def vectors(self, scope: bytes, encoder: str) -> list[VectorRow]:
        """In pages, so that neither the server nor this loop stands still for a large scope."""
        rows: list[VectorRow] = []
        cursor, partition = 0, self._keys.partition(scope, encoder)
        while True:
            at = cursor
            page: dict[bytes, bytes]
            cursor, page = await self._try(
                lambda at=at: cast(
                    "Awaitable[tuple[int, dict[bytes, bytes]]]", self._slow.hscan(partition, at, count=_PAGE)
                ),
                _WRITE_BUDGET,
            )
            rows += [row for exact, raw in page.items() if (row := read_vector(exact, raw)) is not None]
            if cursor == 0:
                return rows

    async def purge(self, selection: Selection) -> int:
        """Page by page over what there is; entries written meanwhile may stay."""
        purged = 0
        exacts = await self._members()
        tell = len(exacts) <= _RESET_ABOVE
        for start in range(0, len(exacts), _PAGE):
            page = exacts[start : start + _PAGE]
            entries = await self._entries(self._slow, page, _WRITE_BUDGET)
            chosen = [exact for exact, entry in zip(page, entries, strict=True) if entry and selection.takes(entry)]
            purged += await self._remove(chosen, tell=tell)
        if purged and not tell:
            # One word instead of thousands: the stream's length is bounded.
            batch = self._batch()
            batch.tell(Change("reset"))
            await self._execute(batch)
        return purged

    async def recent(self, limit: int) -> list[Entry]:
        """Of the entries used last, the newest first."""
        exacts = await self._members(limit)
        entries = [entry for entry in await self._entries(self._slow, exacts, _WRITE_BUDGET) if entry is not None]
        return sorted(entries, key=lambda entry: entry.created, reverse=True)

    async def counts(self) -> dict[Group, int]:
        await self._sweep()
        raw = await self._try(
            lambda: cast("Awaitable[dict[bytes, bytes]]", self._slow.hgetall(self._keys.groups)), _WRITE_BUDGET
        )
        return read_groups(raw)

    def touch(self, exact: bytes) -> None:
        self._touched[exact] = self._now()
        if len(self._touched) > 16 * _FLUSH_AFTER:
            # Nothing has been written for long; the oldest notes are worth least.
            del self._touched[next(iter(self._touched))]

    def status(self) -> str | None:
        return "unreachable" if self._breaker.is_open else None

    async def close(self) -> None:
        await self._background.close()
        self._listen = _ignore
        await self._fast.aclose()
        await self._slow.aclose()

    async def _try(self, work: Callable[[], Awaitable[T]], budget: float) -> T:
        """`work` within `budget` seconds. Whatever goes wrong is StoreDown, and the breaker learns of it."""
        if not self._breaker.allows():
            raise StoreDown("redis: circuit open")
        try:
            async with asyncio.timeout(budget), self._places:
                found = await work()
        except (TimeoutError, RedisTimeoutError) as error:
            self._breaker.fail()
            raise StoreDown("redis: timeout") from error
        except (RedisConnectionError, OSError) as error:
            self._breaker.fail(outright=True)
            raise StoreDown("redis: unreachable") from error
        except RedisError as error:
            # It answered, if only to refuse (read-only replica, out of memory): no reason to stop asking.
            raise StoreDown(f"redis: {type(error).__name__}") from error
        self._breaker.succeed()
        return found

    async def _entries(self, client: "Redis", exacts: Sequence[bytes], budget: float) -> list[Entry | None]:
        if not exacts:
            return []
        keys = [self._keys.entry(exact) for exact in exacts]
        raws = await self._try(lambda: cast("Awaitable[list[bytes | None]]", client.mget(keys)), budget)
        return [None if raw is None else codec.decode(raw, exact) for raw, exact in zip(raws, exacts, strict=True)]

    async def _members(self, limit: int | None = None) -> list[bytes]:
        """Digests of what is held, those used last first."""
        last = -1 if limit is None else limit - 1
        return await self._try(lambda: _list(self._slow.zrevrange(self._keys.used, 0, last)), _WRITE_BUDGET)

    async def _metas(self, exacts: Sequence[bytes]) -> dict[bytes, Meta]:
        if not exacts:
            return {}
        names = cast("list[str]", list(exacts))
        raws = await self._try(
            lambda: cast("Awaitable[list[bytes | None]]", self._slow.hmget(self._keys.meta, names)), _WRITE_BUDGET
        )
        return read_metas(exacts, raws)

    async def _remove(self, exacts: Sequence[bytes], *, tell: bool = True) -> int:
        metas = await self._metas(exacts)
        if metas:
            batch = self._batch()
            for exact, meta in metas.items():
                batch.remove(exact, meta, tell=tell)
            await self._execute(batch)
        return len(metas)

    async def _sweep(self) -> None:
        """Redis expires the answers by itself; this takes away what pointed at them."""
        due = await self._try(
            lambda: _list(self._slow.zrangebyscore(self._keys.expires, 0, self._now(), start=0, num=_PAGE)),
            _WRITE_BUDGET,
        )
        await self._remove(due)

    def _batch(self) -> Batch:
        return Batch(self._slow, self._keys, self._worker)

    async def _execute(self, batch: Batch) -> int:
        held = await self._try(batch.execute, _WRITE_BUDGET)
        for change in batch.changes:
            self._listen(change)
        return held


_NOTHING = Meta(-1, b"", "", ("", "", ""))


def _client(url: str, timeout: float) -> "Redis":
    """A client that fails within `timeout` seconds and never retries by itself."""
    return Redis.from_url(
        url,
        protocol=2,
        max_connections=2 * _CONNECTIONS,
        socket_timeout=timeout,
        socket_connect_timeout=timeout,
        retry=Retry(NoBackoff(), 0),
        decode_responses=False,
    )


def _bytes(reply: object) -> Awaitable[bytes | None]:
    """redis-py types its replies for sync and async, text and bytes at once; this client is async and bytes."""
    return cast("Awaitable[bytes | None]", reply)


def _list(reply: object) -> Awaitable[list[bytes]]:
    return cast("Awaitable[list[bytes]]", reply)


def _ignore(_: Change) -> None:
    """Until started, and after closing, nobody listens."""
