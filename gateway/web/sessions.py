"""Dashboard sessions: kept in the database, 8 hours at most, 30 minutes without use, gone with their key or its secret.

The cookie holds a random token, the table its SHA-256. The CSRF token is derived from the cookie's token, so pages can
show it and the database cannot. Does not know: cookies' attributes, pages.
"""

import hashlib
import hmac
import secrets
from collections.abc import Callable
from typing import Any

from msgspec import Struct
from sqlalchemy import delete, insert, select, update

from gateway.auth import may
from gateway.call import Principal
from gateway.db.models import LoginSession
from gateway.db.session import Also, nothing
from gateway.services import Services

ABSOLUTE = 8 * 3_600.0
IDLE = 30 * 60.0
_NOTED_EVERY = 60.0
_CSRF = b"nearhit dashboard csrf v1"
_LONGEST_TOKEN = 128


class Opened(Struct, frozen=True, kw_only=True):
    """A session that counts: who it acts for and the token that every change must carry."""

    principal: Principal
    csrf: str
    expires: float


def csrf_of(token: str) -> str:
    return hmac.digest(token.encode(), _CSRF, hashlib.sha256).hex()


def csrf_matches(opened: Opened, presented: str) -> bool:
    return hmac.compare_digest(opened.csrf.encode(), presented.encode("utf-8", "replace"))


class Sessions:
    """Opens, finds and ends sessions. Cheap to build; one per request."""

    def __init__(self, services: Services) -> None:
        self._database = services.database
        self._keyring = services.keyring
        self._sign_on = services.sign_on
        self._now = services.now

    async def open(
        self, principal: Principal, also: Also = nothing, *, person: bool = False, mark: str | None = None
    ) -> str:
        """A new session's token, always a fresh one: a token from before the login never counts after it.

        `person`: signed in elsewhere, so that no key says what the session may do; the session itself does.
        `mark`: of the secret that was typed (`Keyring.sign_in`), with which the session ends.
        """
        token, now = secrets.token_urlsafe(32), self._now()
        async with self._database.begin() as connection:
            await connection.execute(delete(LoginSession).where(LoginSession.expires < now))
            await connection.execute(
                insert(LoginSession).values(
                    id=_digest(token),
                    actor=principal.key_id,
                    role=principal.role,
                    csrf=_digest(csrf_of(token)),
                    created=now,
                    seen=now,
                    expires=now + ABSOLUTE,
                    team=principal.team if person else None,
                    secret=mark,
                )
            )
            await connection.run_sync(also)
        return token

    async def find(self, token: str, *, used: bool = True) -> Opened | None:
        """The session, None when there is none, it is over, or its key no longer opens the control plane.

        `used` is False for what an open page asks by itself: a page left open overnight must not keep its session.
        """
        if not token or len(token) > _LONGEST_TOKEN:
            return None
        async with self._database.read() as connection:
            row = (await connection.execute(_WANTED.where(LoginSession.id == _digest(token)))).first()
        now = self._now()
        if row is None or row.expires <= now or row.seen + IDLE <= now:
            return None
        by_key = row.team is None
        principal = await self._keyring.still_good(row.actor, row.secret) if by_key else self._person(row)
        if principal is None or not may(principal, "viewer"):
            return None
        if used and now - row.seen >= _NOTED_EVERY:
            await self._note(token, now)
        return Opened(principal=principal, csrf=csrf_of(token), expires=min(row.expires, now + IDLE))

    def _person(self, row: Any) -> Principal | None:
        """Who signed in elsewhere is let in only while that way in is open, and while somebody may have that reach."""
        if self._sign_on is None or not self._sign_on.settings.grants(row.role, row.team):
            return None
        return Principal(key_id=row.actor, team=row.team, project="", role=row.role)

    async def close_all(self, actor: str, also: Callable[[int], Also] = lambda _: nothing) -> int:
        """End every session of a key or of a person; answers how many there were."""
        async with self._database.begin() as connection:
            gone = await connection.execute(delete(LoginSession).where(LoginSession.actor == actor))
            await connection.run_sync(also(gone.rowcount))
        return gone.rowcount

    async def close(self, token: str, also: Also = nothing) -> None:
        async with self._database.begin() as connection:
            await connection.execute(delete(LoginSession).where(LoginSession.id == _digest(token)))
            await connection.run_sync(also)

    async def _note(self, token: str, now: float) -> None:
        async with self._database.begin() as connection:
            await connection.execute(update(LoginSession).where(LoginSession.id == _digest(token)).values(seen=now))


_WANTED = select(
    LoginSession.actor,
    LoginSession.role,
    LoginSession.team,
    LoginSession.seen,
    LoginSession.expires,
    LoginSession.secret,
)


def _digest(token: str) -> str:
    return hashlib.sha256(token.encode("utf-8", "replace")).hexdigest()
