"""Asking Redis within a budget: two clients, a bound on how many ask at once, a breaker, one kind of error.

A look-up has 50 ms and no hidden retries; an outage costs nothing after the first failures. What this process is late
itself is not held against Redis. Does not know what is asked.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import OutOfMemoryError, RedisError
from redis.exceptions import TimeoutError as RedisTimeoutError

from cache.breaker import Breaker
from cache.store import StoreDown

T = TypeVar("T")

LOOKUP_BUDGET = 0.05
# Writes and whole partitions are off the path of a reply.
WRITE_BUDGET = 2.0
# Longer than the stream's blocking read, so that silence is not mistaken for a dead server.
_SLOW_TIMEOUT = 3.0
_CONNECTIONS = 64
# When a budget is over, so many turns of the event loop are granted: in a herd the reply lies in the socket for long
# before its turn comes. Where the loop is idle they take a fraction of a millisecond.
_TURNS = 16


class StoreFull(StoreDown):
    """Redis has no memory left and may not make any; it still reads and removes."""


class Link:
    """`fast` for look-ups, which have `lookup` seconds, `slow` for all else and for reading the change stream.

    `monotonic`: for the breaker, and for whoever reckons how long Redis has been silent.
    """

    def __init__(self, url: str, *, monotonic: Callable[[], float], lookup: float = LOOKUP_BUDGET) -> None:
        self.lookup = lookup
        self.monotonic = monotonic
        # The budget of `ask` ends it, which knows our own lateness.
        self.fast = _client(url, max(lookup, _SLOW_TIMEOUT))
        self.slow = _client(url, _SLOW_TIMEOUT)
        self._places = asyncio.Semaphore(_CONNECTIONS)
        self._breaker = Breaker(monotonic=monotonic)

    @property
    def is_down(self) -> bool:
        return self._breaker.is_open

    async def ask(self, work: Callable[[], Awaitable[T]], budget: float = WRITE_BUDGET, *, heals: bool = True) -> T:
        """`work` within `budget` seconds. Whatever goes wrong is StoreDown, and the breaker learns of it.

        `heals`: that it went well says that Redis does; not of what follows look-ups and has more time than they.
        """
        if not self._breaker.allows():
            raise StoreDown("redis: circuit open")
        try:
            async with _Within(budget), self._places:
                found = await work()
        except (TimeoutError, RedisTimeoutError) as error:
            self._breaker.fail()
            raise StoreDown("redis: timeout") from error
        except OutOfMemoryError as error:
            raise StoreFull("redis: out of memory") from error
        except (RedisConnectionError, OSError) as error:
            self._breaker.fail(outright=True)
            raise StoreDown("redis: unreachable") from error
        except RedisError as error:
            # It answered, if only to refuse (a read-only replica): no reason to stop asking.
            raise StoreDown(f"redis: {type(error).__name__}") from error
        if heals:
            self._breaker.succeed()
        return found

    async def close(self) -> None:
        await self.fast.aclose()
        await self.slow.aclose()


class _Within:
    """As `asyncio.timeout`, and `_TURNS` turns of the loop more."""

    __slots__ = ("_budget", "_handle", "_limit", "_loop")

    def __init__(self, budget: float) -> None:
        self._budget = budget

    async def __aenter__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._limit = asyncio.timeout(None)
        self._handle: asyncio.Handle = self._loop.call_later(self._budget, self._over, _TURNS)
        await self._limit.__aenter__()

    async def __aexit__(self, *error: Any) -> None:
        self._handle.cancel()
        await self._limit.__aexit__(*error)

    def _over(self, turns: int) -> None:
        if turns:
            self._handle = self._loop.call_soon(self._over, turns - 1)
        else:
            self._limit.reschedule(self._loop.time())


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
