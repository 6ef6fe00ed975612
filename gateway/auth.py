"""Who is calling: a presented key becomes a Principal; what each role may do; how keys are made, rotated and revoked.

`Keyring.identify` is on the hot path: one SHA-256 of the presented text and one dictionary look-up by the full digest.
The database is asked only for a well-formed key that is unknown here or older than `TTL` seconds, never for other text.
Does not know: HTTP frameworks, budgets, sessions of the dashboard. A key is never logged, raised or stored as text.
"""

import asyncio
import hashlib
import hmac
import math
import secrets
from collections.abc import Callable, Iterable
from typing import NamedTuple, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from gateway import keyform
from gateway.call import Principal, Role
from gateway.db.session import UNREACHABLE, Also, Database, nothing
from gateway.errors import InvalidRequest, NotAllowed, NotFound, Overloaded, Unauthorized
from gateway.keyrows import KeyRow, KeyRows
from gateway.strangers import Strangers

Headers = Iterable[tuple[bytes, bytes]]

TTL = 30.0  # seconds until a key is looked up again, should word of a change elsewhere not arrive (gateway/keywatch.py)
SILENT = 5.0  # seconds after which a database that did not answer is asked again
GRACE = 300.0  # seconds a key that was seen good stays good while the database is out of reach
ORG_WIDE = ""  # the team of a principal that is not bound to one
_KNOWN_BOUND = 10_000
_UNKNOWN_BOUND = 2_000
LONGEST_OVERLAP = 30 * 86_400.0  # seconds an old secret may work on after a rotation
_LONGEST_TOKEN = 512
_K = TypeVar("_K")
_V = TypeVar("_V")

# The control plane's order. `app` is a key for applications and opens nothing there.
ROLES: tuple[Role, ...] = ("app", "viewer", "finance", "operator", "admin")
_RANK: dict[Role, int] = {role: rank for rank, role in enumerate(ROLES)}


class NewKey(Struct, frozen=True, kw_only=True):
    """What is asked for. `models` None means all; `expires` in seconds since the epoch, None for never."""

    name: str
    team: str
    project: str
    role: Role = "app"
    models: frozenset[str] | None = None
    expires: float | None = None


class Created(NamedTuple):
    """`key` is the whole text; nobody can read it again."""

    row: KeyRow
    key: str


class SignedIn(NamedTuple):
    """Whose key was typed, and a mark of the very secret: `Keyring.still_good` says by it whether that still opens."""

    principal: Principal
    mark: str


class _Known(NamedTuple):
    principal: Principal
    fresh_until: float
    last_resort: float


def presented(headers: Headers) -> bytes:
    """The key in `Authorization: Bearer …`, `x-api-key` or `api-key` (names in lower case). Raises Unauthorized."""
    other = b""
    for name, value in headers:
        if name == b"authorization":
            if value[:7].lower() == b"bearer " and (token := value[7:].strip()):
                return token
        elif name in (b"x-api-key", b"api-key"):
            other = other or value.strip()
    if not other:
        raise Unauthorized("No API key was presented. Send it as `Authorization: Bearer sk-nh-…`.")
    return other


def may(principal: Principal, role: Role) -> bool:
    """True when this principal holds `role` or a higher one."""
    return _RANK[principal.role] >= _RANK[role]


def require(principal: Principal, role: Role) -> None:
    """Raises NotAllowed 403 when the principal's role is below `role`."""
    if not may(principal, role):
        raise NotAllowed(
            f"This needs a key with the role {role!r} or higher; the one presented is {principal.role!r}.",
            code="insufficient_role",
        )


def within(principal: Principal, team: str) -> bool:
    """True when rows of `team` may be seen: everything for an unbound principal, else its own team's only."""
    return principal.team == ORG_WIDE or principal.team == team


def grantable(creator: Principal, wanted: NewKey | KeyRow) -> str | None:
    """None when `wanted` grants nothing beyond what `creator` holds, else what goes beyond it, in words."""
    if _RANK[wanted.role] > _RANK[creator.role]:
        return f"the role {wanted.role!r}"
    if not within(creator, wanted.team):
        return f"the team {wanted.team!r}"
    if creator.models is not None and (wanted.models is None or not wanted.models <= creator.models):
        return "models beyond your own"
    return None


def _nothing(_: KeyRow) -> Also:
    """Nothing else belongs to a key that is made here."""
    return nothing


class Keyring:
    """Keys in the database with a bounded memory of those seen lately.

    `pepper`: the installation's secret (≥ 16 bytes), kept outside the database. `admin_key` answers the SHA-256 of the
    operator's own key (`gateway.firstrun.AdminKey`), None for none. `now` is wall-clock, `monotonic` drives freshness.
    """

    def __init__(
        self,
        database: Database,
        pepper: bytes,
        *,
        now: Callable[[], float],
        monotonic: Callable[[], float],
        admin_key: Callable[[], bytes | None] = lambda: None,
    ) -> None:
        if len(pepper) < 16:
            raise ValueError("the installation's secret must have at least 16 bytes")
        self._rows = KeyRows(database)
        self._pepper = pepper
        self._now = now
        self._monotonic = monotonic
        self._admin = admin_key
        self._known: dict[bytes, _Known] = {}
        self._digests: dict[str, tuple[bytes, ...]] = {}
        self._unknown: dict[bytes, float] = {}
        self._met: dict[bytes, None] = {}  # that were good once: they never wait behind strangers
        self._changes = 0
        self._asking = asyncio.Lock()
        self._strangers = Strangers()
        self._silent_until: float | None = None  # the database did not answer: until then it is not asked again

    async def identify(self, headers: Headers, address: str = "") -> Principal:
        """The principal of the key in `headers`, sent from `address`. Raises Unauthorized 401, Overloaded 503 (database
        out of reach), RateLimited 429 (too many that are not known).
        """
        token = presented(headers)
        digest = hashlib.sha256(token).digest()
        known = self._known.get(digest)
        if known is not None and self._monotonic() < known.fresh_until:
            return known.principal
        return await self._look_up(token, digest, address)

    async def identify_key(self, key: str, address: str = "") -> Principal:
        """The same for a key typed into a form."""
        return await self.identify(((b"authorization", b"Bearer " + key.encode("utf-8", "replace")),), address)

    async def sign_in(self, key: str, address: str = "") -> SignedIn:
        """The same, for a session that shall end with this secret and not only with the key."""
        principal = await self.identify_key(key, address)
        token = key.encode("utf-8", "replace")
        admin = principal.key_id == ADMIN.key_id
        kept = hashlib.sha256(token).digest() if admin else keyform.stored_form(self._pepper, token)
        return SignedIn(principal, keyform.mark(self._pepper, kept))

    async def still_good(self, key_id: str, mark: str | None = None) -> Principal | None:
        """The principal behind a key, None once it is revoked, expired or gone.

        `mark`: of the secret that was used (`sign_in`), which then must open the key as well: a rotation ends that.
        """
        if key_id == ADMIN.key_id:
            return ADMIN if (admin := self._admin()) is not None and self._marked(mark, admin) else None
        row = await self._rows.find(key_id)
        if row is None or row.unusable(self._now()):
            return None
        old = row.old_hash if (row.old_until or 0.0) > self._now() else None
        return principal_of(row) if self._marked(mark, row.hash, old) else None

    def _marked(self, mark: str | None, *kept: bytes | None) -> bool:
        marks = (keyform.mark(self._pepper, one) for one in kept if one is not None)
        return mark is None or any(hmac.compare_digest(mark, one) for one in marks)

    async def _look_up(self, token: bytes, digest: bytes, address: str) -> Principal:
        if (admin := self._admin()) is not None and hmac.compare_digest(digest, admin):
            self._remember(digest, ADMIN, self._monotonic() + TTL)
            return ADMIN
        key_id = keyform.key_id(token) if len(token) <= _LONGEST_TOKEN else None
        if key_id is None or self._unknown.get(digest, 0.0) > self._monotonic():
            raise _refusal()
        if (known := self._meanwhile(digest, asking=self._asking.locked())) is not None:
            return known
        async with self._asking if digest in self._met else self._strangers.turn(address, digest):
            known = self._known.get(digest)  # another request may have asked while this one waited
            if known is not None and self._monotonic() < known.fresh_until:
                return known.principal
            if self._unknown.get(digest, 0.0) > self._monotonic():
                raise _refusal()
            if (stood_in := self._meanwhile(digest)) is not None:
                return stood_in
            return await self._ask(key_id, token, digest)

    def _meanwhile(self, digest: bytes, *, asking: bool = False) -> Principal | None:
        """Whose key this is, where it was good lately and the database does not answer: a silent one takes seconds to
        be given up, so only one request at a time (`asking`: another one does) finds out whether it is back.
        """
        known, now = self._known.get(digest), self._monotonic()
        if known is None or self._silent_until is None or now >= known.last_resort:
            return None
        return known.principal if asking or now < self._silent_until else None

    async def _ask(self, key_id: str, token: bytes, digest: bytes) -> Principal:
        changes = self._changes
        try:
            row = await self._rows.find(key_id)
        except UNREACHABLE as error:
            self._silent_until = self._monotonic() + SILENT
            return self._last_resort(digest, error)
        self._silent_until = None
        ends = _good_until(row, keyform.stored_form(self._pepper, token))
        if ends is None or row is None:
            self._forget(digest)
            _bounded(self._unknown, _UNKNOWN_BOUND)[digest] = self._monotonic() + TTL
            raise _refusal()
        if (why := row.unusable(self._now())) is not None or ends <= self._now():
            self._forget(digest)
            raise Unauthorized(f"This API key {why or 'has been replaced'}. Ask an administrator for a new one.")
        principal = principal_of(row)
        if changes == self._changes:  # else a key was revoked while the database answered: do not remember
            self._remember(digest, principal, self._monotonic() + min(TTL, ends - self._now()))
        return principal

    def _last_resort(self, digest: bytes, error: BaseException) -> Principal:
        known = self._known.get(digest)
        if known is not None and self._monotonic() < known.last_resort:
            return known.principal
        raise Overloaded(
            "The API key could not be checked because the database does not answer.",
            code="database_unavailable",
            headers=(("retry-after", "2"),),
        ) from error

    def _remember(self, digest: bytes, principal: Principal, fresh_until: float) -> None:
        _bounded(self._known, _KNOWN_BOUND)[digest] = _Known(principal, fresh_until, fresh_until + GRACE)
        _bounded(self._met, _KNOWN_BOUND)[digest] = None
        before = self._digests.get(principal.key_id, ())
        if digest not in before:  # two at most: the secret of now and the one before it
            _bounded(self._digests, _KNOWN_BOUND)[principal.key_id] = (*before[-1:], digest)

    def _forget(self, digest: bytes) -> None:
        self._known.pop(digest, None)

    def forget_key(self, key_id: str) -> None:
        """Ask the database again at the next use of this key: called on every change, here or elsewhere."""
        self._changes += 1
        for digest in self._digests.pop(key_id, ()):
            self._forget(digest)

    def forget_all(self) -> None:
        """The same for every key: word of changes may have been missed."""
        self._changes += 1
        self._digests.clear()
        self._known = {digest: known._replace(fresh_until=0.0) for digest, known in self._known.items()}

    async def create(self, creator: Principal, wanted: NewKey, also: Callable[[KeyRow], Also] = _nothing) -> Created:
        """Make a key, and in the same transaction what `also` says of it.

        Raises NotAllowed when it would grant more than the creator holds, a longer life included.
        """
        await self._within_own(creator, wanted)
        if wanted.expires is not None and wanted.expires <= self._now():
            raise InvalidRequest("`expires` lies in the past.", param="expires")
        minted = keyform.mint(secrets.token_bytes)
        row = KeyRow(
            id=minted.id,
            name=wanted.name,
            hash=keyform.stored_form(self._pepper, minted.key.encode()),
            team=wanted.team,
            project=wanted.project,
            role=wanted.role,
            models=wanted.models,
            created=self._now(),
            expires=wanted.expires,
        )
        await self._rows.add(row, also(row))
        return Created(row, minted.key)

    async def rotate(
        self, actor: Principal, key_id: str, *, overlap: float = 0.0, also: Callable[[KeyRow], Also] = _nothing
    ) -> Created:
        """A new secret under the same id, so that budgets and usage stay together.

        The old one works on for `overlap` seconds, 0 to `LONGEST_OVERLAP`; one that was still good from an earlier
        rotation stops now. Raises NotFound, NotAllowed, InvalidRequest.
        """
        if not 0.0 <= overlap <= LONGEST_OVERLAP:
            raise InvalidRequest("`overlap` must be a duration of at most 30 days, such as 24h.", param="overlap")
        row = await self._own(actor, key_id)
        if (why := row.unusable(self._now())) is not None:
            raise InvalidRequest(f"The key {key_id} {why}; create a new one instead.", code="key_not_usable")
        await self._within_own(actor, row)  # else its text would be a way around what `create` refuses
        minted = keyform.mint(secrets.token_bytes, name=key_id)
        fresh = replace(
            row,
            hash=keyform.stored_form(self._pepper, minted.key.encode()),
            old_hash=row.hash if overlap else None,
            old_until=self._now() + overlap if overlap else None,
        )
        await self._rows.put_hash(fresh, also(fresh))
        self.forget_key(key_id)
        return Created(fresh, minted.key)

    async def revoke(self, actor: Principal, key_id: str, also: Callable[[KeyRow], Also] = _nothing) -> KeyRow:
        """Stop a key: at once in this process, within a second in others. Revoking twice changes nothing."""
        row = await self._own(actor, key_id)
        at = self._now() if row.revoked is None else row.revoked
        await self._rows.revoke(key_id, at, also(row))
        self.forget_key(key_id)
        return replace(row, revoked=at)

    async def any(self) -> bool:
        """False only in a database that never had a key."""
        return await self._rows.any()

    async def list(self, actor: Principal) -> list[KeyRow]:
        """Every key the actor may see, newest first."""
        return await self._rows.all(None if actor.team == ORG_WIDE else actor.team)

    async def _within_own(self, maker: Principal, wanted: NewKey | KeyRow) -> None:
        """Whoever is shown a key's text holds all that it opens."""
        if (beyond := grantable(maker, wanted)) is None:
            beyond = _outlives(await self._rows.find(maker.key_id), wanted)
        if beyond is not None:
            raise NotAllowed(f"A key can never grant more than its maker has: {beyond}.", code="grant_exceeds_creator")

    async def _own(self, actor: Principal, key_id: str) -> KeyRow:
        """The row, if the actor's reach covers it. Another team's key looks like one that does not exist."""
        row = await self._rows.find(key_id)
        if row is None or not within(actor, row.team):
            raise NotFound(f"There is no key {key_id[:40]!r}.", code="key_not_found")
        if _RANK[row.role] > _RANK[actor.role]:
            raise NotAllowed("This key stands above your role.", code="insufficient_role")
        return row


ADMIN = Principal(key_id="admin", team=ORG_WIDE, project="", role="admin")
LOCAL = Principal(key_id="local", team=ORG_WIDE, project="", role="admin")


def principal_of(row: KeyRow) -> Principal:
    return Principal(key_id=row.id, team=row.team, project=row.project, role=row.role, models=row.models)


def _good_until(row: KeyRow | None, presented: bytes) -> float | None:
    """Until when the secret behind `presented` opens `row` (inf: as long as the key does), None if it never did.

    Both secrets are compared, whatever the first comparison says and whether or not the id exists.
    """
    current = hmac.compare_digest(row.hash if row is not None else bytes(32), presented)
    old = hmac.compare_digest((row.old_hash if row is not None else None) or bytes(32), presented)
    if row is None or not (current or old):
        return None
    ends = math.inf if row.expires is None else row.expires
    return ends if current else min(ends, row.old_until or 0.0)


def _outlives(creator: KeyRow | None, wanted: NewKey | KeyRow) -> str | None:
    """A key that ends makes none that lasts longer. `creator` is None for those that are no key in the database."""
    if creator is None or creator.expires is None:
        return None
    return None if wanted.expires is not None and wanted.expires <= creator.expires else "a longer life than your own"


def _refusal() -> Unauthorized:
    return Unauthorized("The API key is not known here. Check that it was copied whole, or ask for a new one.")


def _bounded(store: dict[_K, _V], bound: int) -> dict[_K, _V]:
    """`store` with room for one more: the oldest entries go first."""
    while len(store) >= bound:
        del store[next(iter(store))]
    return store


def may_ask(principal: Principal, model: str) -> None:
    """Raises NotAllowed where this key is not for that model."""
    if principal.models is not None and model not in principal.models:
        raise NotAllowed(f"This key may not use the model `{model}`.", param="model")
