"""What became of a request whose process is gone: was it ever sent?

Nothing is sent before it is journalled, and whoever closes a dead boot has posted its journal: so once a boot is
closed, the ledger's entries are the whole truth about its requests. Knows boots and entries, nothing else.
"""

from typing import Literal

from sqlalchemy import select
from sqlalchemy.engine import Connection

from gateway.db.models import Boot, Entry

Fate = Literal["alive", "unsent", "sent"]


def closed(connection: Connection, boot: str) -> bool:
    """Whether a process has ended and its books are closed; one that nobody knows has."""
    row = connection.execute(select(Boot.closed).where(Boot.id == boot)).first()
    return row is None or row.closed is not None


def fate(connection: Connection, boot: str, request_id: str) -> Fate:
    """`alive` while its process may still answer it. A process without a journal leaves no proof, so it was sent."""
    row = connection.execute(select(Boot.closed, Boot.journalled).where(Boot.id == boot)).first()
    if row is not None and row.closed is None:
        return "alive"
    return "sent" if row is None or not row.journalled or was_sent(connection, request_id) else "unsent"


def was_sent(connection: Connection, request_id: str) -> bool:
    """Whether anything was sent upstream for it. Only true or false once its process's books are closed."""
    wanted = select(Entry.id).where(Entry.request_id == request_id, Entry.source != "void").limit(1)
    return connection.execute(wanted).first() is not None
