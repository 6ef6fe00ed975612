"""Word of changed keys, from every worker to every worker, within a second: the audit log is read on from where it was.

Every change of a key is a row of the audit log, and those rows become visible in the order of their ids, because their
writers take turns (`gateway/audit.py`); so "ids beyond the last one seen" misses nothing. Only needed where several
processes share a database. Does not know: what a key may do.
"""

import asyncio
import contextlib

from sqlalchemy import func, select

from gateway.auth import Keyring
from gateway.db.models import Audit
from gateway.db.session import UNREACHABLE, Database

EVERY = 0.5
_MOST = 1_000
_CREATED = "key.create"  # whoever has seen that key good has seen it as it is


class KeyWatch:
    """Tells one keyring which keys to look up again."""

    def __init__(self, database: Database, keyring: Keyring) -> None:
        self._database = database
        self._keyring = keyring
        self._last: int | None = None
        self._stopped = asyncio.Event()

    def stop(self) -> None:
        self._stopped.set()

    async def run(self) -> None:
        """Until stopped. While the database is away the keyring's own times hold; then what was missed is read."""
        while not self._stopped.is_set():
            with contextlib.suppress(*UNREACHABLE):  # the keyring promises `GRACE` seconds to keys seen good
                await self.look()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopped.wait(), EVERY)

    async def look(self) -> None:
        """Read on once. Raises what the database raises when it does not answer."""
        async with self._database.read() as connection:
            if self._last is None:
                self._last = await connection.scalar(select(func.max(Audit.id))) or 0
                self._keyring.forget_all()
                return
            wanted = select(Audit.id, Audit.action, Audit.target).where(Audit.id > self._last).order_by(Audit.id)
            rows = (await connection.execute(wanted.limit(_MOST))).all()
        for row in rows:
            self._last = row.id
            if row.action.startswith("key.") and row.action != _CREATED:
                self._keyring.forget_key(row.target)
