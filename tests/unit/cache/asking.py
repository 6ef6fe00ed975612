"""Requests as the cache sees them, for tests of what comes after the scope."""

from cache.scope import Identity, scope_query
from cache.types import Query, Uncacheable


def asked(text: str, team: str = "acme") -> Query | Uncacheable:
    """One user message of a team, through the real scope table."""
    return scope_query(
        {"messages": [{"role": "user", "content": text}]},
        "chat",
        identity=Identity(team=team),
        secret=b"0123456789abcdef",
        model="m",
        max_temperature=1.0,
        encoder="hash",
    )


def query(text: str, team: str = "acme") -> Query:
    """The same where it must be cacheable."""
    found = asked(text, team)
    assert isinstance(found, Query)
    return found
