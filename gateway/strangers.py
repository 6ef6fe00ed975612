"""Keys that nobody here has seen yet are looked up one at a time, and no address keeps more than a few of them waiting.

A key's form says only that it may be one; whether it is costs a read of the database. So who sends made-up keys by the
thousand waits in a lane of strangers, of which each address has a bounded share, while known keys have a lane of their
own. Knows: addresses, turns. Does not know: keys, the database.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from gateway.errors import RateLimited

EACH = 32  # waiting for one address: a client that starts with all its connections has no more
ALL = 1_024


class Strangers:
    """One per worker."""

    def __init__(self) -> None:
        self._turn = asyncio.Lock()
        self._waiting: dict[str, Counter[bytes]] = {}

    @asynccontextmanager
    async def turn(self, address: str, key: bytes) -> AsyncGenerator[None, None]:
        """Alone, after those who came before. Many requests with one `key` (its digest) take one place. Raises
        RateLimited where too many wait.
        """
        mine = self._waiting.setdefault(address, Counter())
        if key not in mine and (len(mine) >= EACH or sum(map(len, self._waiting.values())) >= ALL):
            raise RateLimited(
                "Too many keys that are not known here come at once; send this request again in a moment.",
                code="too_many_unknown_keys",
                headers=(("retry-after", "1"),),
            )
        mine[key] += 1
        try:
            async with self._turn:
                yield
        finally:
            mine[key] -= 1
            if not mine[key]:
                del mine[key]
            if not mine:
                self._waiting.pop(address, None)
