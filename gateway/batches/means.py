"""What it takes to have parts of a batch answered by providers' own batch services, and when to stop.

Knows: names of things, waiting. Does not know: what any of them is used for.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from msgspec import Struct

from gateway.batches.asking import Asking
from gateway.batches.reach import Reach
from gateway.call import Principal
from gateway.errors import GatewayError, UpstreamRefused
from gateway.kept_settings import KeptSettings
from gateway.ledger.shipper import set_within

Transact = Callable[..., Awaitable[Any]]


class Means(Struct, frozen=True, kw_only=True):
    """What it works with. `transact` repeats until the database is there; `principal` says whose requests these are
    now, None once the key is revoked.
    """

    reach: Reach
    asking: Asking
    settings: KeptSettings
    transact: Transact
    principal: Callable[[], Awaitable[Principal | None]]


class Ends(Struct, frozen=True, kw_only=True):
    """When to stop: `halt` is set when no more lines are to be begun, `stopping` when the process is to end."""

    halt: asyncio.Event
    stopping: asyncio.Event

    async def pause(self, seconds: float) -> bool:
        """Whether the process is to end. Returns early when either begins."""
        waited_for = self.stopping if self.halt.is_set() else self.halt
        await set_within(waited_for, seconds)
        return self.stopping.is_set()


class Silence:
    """Whether a service is still worth waiting for. As long as its answers are wanted it is; then for `seconds` more,
    or until it says for good that it will not hear of it.
    """

    def __init__(self, ends: Ends, seconds: float) -> None:
        self._ends = ends
        self._seconds = seconds
        self._since: float | None = None

    def broken(self) -> None:
        """It was heard."""
        self._since = None

    def is_final(self, error: GatewayError) -> bool:
        if not self._ends.halt.is_set() or self._ends.stopping.is_set():
            return False
        now = asyncio.get_running_loop().time()
        if self._since is None:
            self._since = now
        refused = isinstance(error, UpstreamRefused) and not error.may_retry
        return refused or now - self._since >= self._seconds
