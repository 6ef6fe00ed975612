"""Whether this installation's secret is the one that its database was filled under.

Every API key is kept as an HMAC under a secret that is not in the database. A host that shares the database and not the
secret refuses every key of the others with 401, and nothing says why; so the database holds a mark of the secret.
Knows: that mark, a row of `setting`. Does not know: what a key is, who is told.
"""

import hashlib
import hmac

from sqlalchemy import Connection, delete, insert, select
from sqlalchemy.exc import IntegrityError

from gateway.db.models import ApiKey, Setting
from gateway.db.session import Database

OTHER = (
    "the API keys in this database were made under another secret, and none of them is recognised here: give this host "
    "the NEARHIT_SECRET (or NEARHIT_HOME/secret) of the others, or make new keys and revoke the old ones"
)
_NAME = "secret"
_LABEL = b"nearhit installation secret v1"


async def is_the_same(database: Database, secret: bytes) -> bool:
    """Leaves the mark of `secret` where there is none yet, or where no key is left that another one could open."""
    mark = _mark(secret)
    try:
        return await database.transact(_compared, mark)
    except IntegrityError:  # another worker left one at the same time
        return await database.transact(_compared, mark)


async def differs(url: str, secret: bytes) -> bool:
    """The same question of a database that is only looked at; its schema is this version's."""
    database = Database(url)
    try:
        async with database.read() as connection:
            return await connection.run_sync(_is_other, _mark(secret))
    finally:
        await database.close()


def _mark(secret: bytes) -> str:
    return hmac.digest(secret, _LABEL, hashlib.sha256).hex()


def _compared(connection: Connection, mark: str) -> bool:
    if _is_other(connection, mark):
        return False
    if _kept(connection) != mark:
        connection.execute(delete(Setting).where(Setting.name == _NAME))
        connection.execute(insert(Setting).values(name=_NAME, value=mark))
    return True


def _is_other(connection: Connection, mark: str) -> bool:
    """Whether another mark is kept, and a key that works was made while it was."""
    kept = _kept(connection)
    if kept is None or hmac.compare_digest(kept, mark):
        return False
    return connection.scalar(select(ApiKey.id).where(ApiKey.revoked.is_(None)).limit(1)) is not None


def _kept(connection: Connection) -> str | None:
    return connection.scalar(select(Setting.value).where(Setting.name == _NAME))
