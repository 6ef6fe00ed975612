"""Asking Redis within a budget: two clients, a bound on how many ask at once, a breaker, one kind of error.

A look-up has 50 ms and no hidden retries; an outage costs nothing after the first failures.
Does not know what is asked.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

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


class StoreFull(StoreDown):
    """Redis has no memory left and may not make any; it still reads and removes."""


class Link:
    """`fast` for look-ups, which have `lookup` seconds, `slow` for all else and for reading the change stream.

    `monotonic`: for the breaker.
    """

    def __init__(self, url: str, *, monotonic: Callable[[], float], lookup: float = LOOKUP_BUDGET) -> None:
        self.lookup = lookup
        self.fast = _client(url, lookup)
        self.slow = _client(url, _SLOW_TIMEOUT)
        self._places = asyncio.Semaphore(_CONNECTIONS)
        self._breaker = Breaker(monotonic=monotonic)

    @property
    def is_down(self) -> bool:
        return self._breaker.is_open

    async def ask(self, work: Callable[[], Awaitable[T]], budget: float = WRITE_BUDGET) -> T:
        """`work` within `budget` seconds. Whatever goes wrong is StoreDown, and the breaker learns of it."""
        if not self._breaker.allows():
            raise StoreDown("redis: circuit open")
        try:
            async with asyncio.timeout(budget), self._places:
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
        self._breaker.succeed()
        return found

    async def close(self) -> None:
        await self.fast.aclose()
        await self.slow.aclose()


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
