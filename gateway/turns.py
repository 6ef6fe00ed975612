"""Work that is done again and again until somebody stops it, and waits while the database is away.

Knows: how often, what is said of an outage. Does not know: what the work is.
"""

import asyncio
from collections.abc import Awaitable, Callable

from gateway.db.session import UNREACHABLE
from gateway.ledger.shipper import set_within
from gateway.outage import Outage


async def take_turns(
    turn: Callable[[], Awaitable[object]], stopping: asyncio.Event, seconds: float, away: Outage, **told: object
) -> None:
    """A turn every so many seconds, the first after as many; never stopped in the middle of one. `told`: of outages."""
    while not await set_within(stopping, seconds):
        try:
            await turn()
            away.over()
        except UNREACHABLE as error:
            away.goes_on(error, **told)
