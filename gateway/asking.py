"""What one request asks of the cache: its query, whether it may be read, kept and shared, and how that is marked.

A client may only make things stricter than the operator's settings. Does not know: entries, similarity, providers.
"""

from typing import Literal, cast

from msgspec.structs import replace

from cache.scope import Identity, Level, scope_query
from cache.types import Miss, Query, Uncacheable
from gateway.auth import ORG_WIDE
from gateway.call import PASSED, CacheMark, Call
from gateway.catalog import Route
from gateway.flights import Key
from gateway.settings import CacheSettings

Tier = Literal["exact", "semantic"]
Reused = Literal["chat", "completion", "embedding"]
_MOST_IDENTITIES = 4_096
_NO_TEAM = "default, no team"


class Asking:
    """`secret` keys the digests, so nobody outside can compute or recognise a scope."""

    def __init__(self, settings: CacheSettings, secret: bytes) -> None:
        # Read once: a setting is slow to read, and every request asks.
        self._off = settings.mode == "off"
        self._by_meaning = settings.mode in {"semantic", "shadow"}  # in shadow it is decided, and nothing is served
        self._scope: Level = settings.scope
        self._max_temperature, self._encoder = settings.max_temperature, settings.encoder
        self._secret = secret
        self._identities: dict[tuple[str, str, str, str, bool], Identity] = {}

    def query(self, call: Call, route: Route) -> Query | Uncacheable:
        """The request as the cache sees it, from the client's own, unpatched body."""
        operation = call.operation
        if self._off or call.directives.tier == "off" or operation in PASSED:
            return Uncacheable("off")
        # What only some upstreams are told of changes their answers all the same.
        body = call.body if call.native is None or not call.native.apart else {**call.body, "native": call.native.apart}
        found = scope_query(
            body,
            cast("Reused", operation),
            identity=self._identity(call),
            secret=self._secret,
            model=route.told,
            max_temperature=self._max_temperature,
            encoder=self._encoder,
        )
        if isinstance(found, Query) and call.principal.team == ORG_WIDE:
            # What is shown, counted and purged by team: no team may be called what those without one are.
            return replace(found, team=ORG_WIDE)
        return found

    def _identity(self, call: Call) -> Identity:
        principal, directives = call.principal, call.directives
        user = directives.user or _text(call.body.get("user")) or _text(call.body.get("safety_identifier"))
        asker = (principal.team, principal.project, principal.key_id, user, directives.per_user)
        found = self._identities.get(asker)
        if found is None:
            if len(self._identities) >= _MOST_IDENTITIES:
                self._identities.clear()
            scope = "user" if directives.per_user else self._scope
            found = self._identities[asker] = Identity(
                # A team may be called "admin" too.
                org="default" if principal.team or scope == "org" else _NO_TEAM,
                team=principal.team or "admin",
                project=principal.project,
                key=principal.key_id,
                user=f"{principal.key_id}/{user}" if user else "",
                scope=scope,
            )
        return found

    def tier(self, call: Call) -> Tier:
        """The widest tier that may answer: the operator's mode, narrowed by the client."""
        return "semantic" if self._by_meaning and call.directives.tier == "semantic" else "exact"

    def may_read(self, call: Call) -> bool:
        return call.directives.read

    def may_keep(self, call: Call) -> bool:
        return call.directives.write

    def shared_key(self, call: Call, query: Query | Uncacheable) -> Key | None:
        """What identical calls in flight share. None where reuse is switched off, by whichever side."""
        if isinstance(query, Uncacheable) or not call.directives.read or not call.directives.write:
            return None
        return query.scope, query.exact

    def mark(self, call: Call, query: Query | Uncacheable, miss: Miss | None) -> CacheMark:
        """How a request that is not a hit is marked. A cache that could not be asked was no miss."""
        away = miss is not None and miss.reason == "store-down"
        if isinstance(query, Uncacheable) or away or not call.directives.write:
            return "bypass"
        return "miss" if call.directives.read else "refresh"


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""
