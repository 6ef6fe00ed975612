"""What must match exactly before meaning may match: one table, one digest.

Knows: OpenAI request bodies (chat, completion, embedding), who asks, and which requests may match by meaning at all.
Does not know: stores, vectors, policies, or how a tenant was authenticated.
The digest is a keyed BLAKE2b (RFC 7693) over length-prefixed fields, so no two different requests can spell the same
message, and nobody without the secret can compute or recognise a scope.
"""

import hashlib
from collections.abc import Callable
from itertools import islice
from typing import Any, Literal, TypeVar, cast

import msgspec
from msgspec import Struct

from cache.types import Query, Uncacheable
from cache.wording import is_time_sensitive

Level = Literal["user", "key", "project", "team", "org"]
Operation = Literal["chat", "completion", "embedding"]
Json = dict[str, object]

# More characters than this cannot be trusted to fit the encoder's window of 256 tokens.
MAX_TEXT = 1_000
# Answers to time-sensitive questions age in minutes, not in the cache's usual day.
TIME_SENSITIVE_TTL = 300.0
# So many of the user's earlier turns still say what a short last one ("and Paris?") is about.
_TURNS_BACK = 3
# Characters at the end of such a turn, where its question stands: reading all of a long one would cost milliseconds.
_ASKED_IN = 400
# Raising it makes every older entry unreachable; needed whenever the table below changes its meaning.
VERSION = 2
_MIN_SECRET = 16

# These say how to deliver, bill or file the answer, not what it is.
IGNORED = frozenset(
    (
        "stream",
        "stream_options",
        "user",
        "metadata",
        "store",
        "safety_identifier",
        "prompt_cache_key",
        "prompt_cache_retention",
        "prompt_cache_options",
        "service_tier",
    )
)


class Identity(Struct, frozen=True, kw_only=True):
    """Who asks, as authenticated. `scope`: how far answers are shared; narrower levels contain the wider ones.

    An empty `project` is the team's own; `user` and `key` are needed at their own level only.
    """

    org: str = "default"
    team: str
    project: str = ""
    key: str = ""
    user: str = ""
    scope: Level = "project"


class _Turn(Struct, frozen=True):
    """The last user message, taken apart: `texts` may match by meaning, `rest` (its shape) must match exactly."""

    texts: list[str]
    rest: object
    bar: str | None


class _Seen(Struct, frozen=True):
    body: Json
    operation: Operation
    identity: Identity
    model: str
    encoder: str
    turn: _Turn
    before: list[tuple[int, object]]


class Row(Struct, frozen=True):
    """One line of the table: `read` gives what must be equal, None where there is nothing to compare.

    `fields`: the body's fields it accounts for. `reads`: what it depends on; rows about the asker are digested once per
    asker, rows about fields only where one of these fields is there, rows about messages before the last turn only
    where there are such, the others for every request.
    """

    name: str
    read: Callable[[_Seen], object]
    fields: tuple[str, ...] = ()
    reads: Literal["asker", "fields", "before", "request"] = "request"


def _asker(name: str, read: Callable[[_Seen], object], *fields: str) -> Row:
    return Row(name, read, fields, "asker")


def _fields(name: str, *fields: str) -> Row:
    """A row of body fields; absent and null are the same."""

    def read(seen: _Seen) -> Json | None:
        return {name: _plain(seen.body[name]) for name in fields if seen.body.get(name) is not None} or None

    return Row(name, read, fields, "fields")


def _tenant(seen: _Seen) -> list[str]:
    who = seen.identity
    narrower = {"org": [], "team": [], "project": [], "key": [who.key], "user": [who.user]}[who.scope]
    return [who.scope, *narrower]


def _rest(seen: _Seen) -> Json | None:
    """Every field nobody thought of: unknown parameters change answers too, so they must match."""
    return {name: value for name, value in seen.body.items() if name not in _ACCOUNTED and value is not None} or None


# What must match exactly. A row taken out of here would let one request be answered with another's answer;
# `tests/unit/cache/test_scope.py` takes each out in turn and shows the wrong hit.
ROWS: tuple[Row, ...] = (
    _asker("version", lambda _: VERSION),
    _asker("org", lambda seen: seen.identity.org),
    _asker("team", lambda seen: seen.identity.team if seen.identity.scope != "org" else ""),
    _asker("project", lambda seen: seen.identity.project if seen.identity.scope not in {"org", "team"} else ""),
    _asker("principal", _tenant),
    _asker("operation", lambda seen: seen.operation),
    _asker("model", lambda seen: [seen.model, seen.body.get("model")], "model"),
    _asker("encoder", lambda seen: seen.encoder),
    Row("system", lambda seen: [item for item in seen.before if _is_system(item[1])] or None, reads="before"),
    Row("history", lambda seen: [item for item in seen.before if not _is_system(item[1])] or None, reads="before"),
    Row("turn", lambda seen: seen.turn.rest, ("messages", "prompt", "input")),
    _fields("tools", "tools", "tool_choice", "parallel_tool_calls", "functions", "function_call"),
    _fields("format", "response_format", "modalities", "audio", "verbosity", "encoding_format", "dimensions"),
    _fields("sampling", "temperature", "top_p", "seed", "frequency_penalty", "presence_penalty", "logit_bias"),
    _fields("length", "max_tokens", "max_completion_tokens", "stop"),
    _fields("count", "n", "best_of", "logprobs", "top_logprobs", "echo", "suffix"),
    _fields("reasoning", "reasoning_effort", "reasoning", "thinking"),
    Row("rest", _rest, reads="fields"),
)
_ACCOUNTED: frozenset[str] = IGNORED | {field for row in ROWS for field in row.fields}
_canonical = msgspec.json.Encoder(order="deterministic")
_MOST_REMEMBERED = 4_096


class _Digests:
    """What of a scope's digest is the same for many requests, remembered: the asker's part, and which rows to read.

    Never a matter of correctness: a forgotten part is computed again.
    """

    def __init__(self, rows: tuple[Row, ...], version: int) -> None:
        self.rows = rows
        self.version = version
        self._askers: dict[object, Any] = {}
        self._exacts: dict[bytes, Any] = {}
        self._plans: dict[tuple[bool, tuple[str, ...]], list[Row]] = {}

    def scope(self, secret: bytes, seen: _Seen) -> bytes:
        """The digest of every row. Raises what a body that is not JSON makes the encoder raise."""
        asker = (secret, seen.identity, seen.operation, seen.model, seen.body.get("model"), seen.encoder)
        begun = self._askers.get(asker)
        if begun is None:
            told = {row.name: row.read(seen) for row in self.rows if row.reads == "asker"}
            begun = _bounded(self._askers)[asker] = _begin(secret, b"scope")
            begun.update(_framed(_canonical.encode(told)))
        shape = bool(seen.before), tuple(seen.body)
        plan = self._plans.get(shape)
        if plan is None:
            plan = _bounded(self._plans)[shape] = self._plan(*shape)
        told = {row.name: value for row in plan if (value := row.read(seen)) is not None}
        digest = begun.copy()
        digest.update(_framed(_canonical.encode(told)))
        return digest.digest()

    def exact(self, secret: bytes, scope: bytes, texts: list[str]) -> bytes:
        """The digest of the very texts asked within a scope. Raises UnicodeEncodeError for a lone surrogate."""
        begun = self._exacts.get(secret)
        if begun is None:
            begun = _bounded(self._exacts)[secret] = _begin(secret, b"exact")
        digest = begun.copy()
        digest.update(_framed(scope))
        for text in texts:
            digest.update(_framed(text.encode()))
        return digest.digest()

    def _plan(self, before: bool, fields: tuple[str, ...]) -> list[Row]:
        """The rows that can have something to say about a body with these fields, and messages `before` the last."""
        names = frozenset(fields)
        unknown = not names <= _ACCOUNTED
        return [
            row
            for row in self.rows
            if row.reads == "request"
            or (row.reads == "before" and before)
            or (row.reads == "fields" and (not names.isdisjoint(row.fields) or (unknown and not row.fields)))
        ]


_V = TypeVar("_V")
_K = TypeVar("_K")
_digests = _Digests(ROWS, VERSION)


def _current() -> _Digests:
    global _digests  # noqa: PLW0603 - a memory that belongs to one table
    if _digests.rows is not ROWS or _digests.version != VERSION:
        _digests = _Digests(ROWS, VERSION)
    return _digests


def _bounded(memory: dict[_K, _V]) -> dict[_K, _V]:
    """`memory` with room for one more."""
    if len(memory) >= _MOST_REMEMBERED:
        memory.clear()
    return memory


def scope_query(  # noqa: PLR0913 - a request, who asks, and what the operator set: nothing to bundle
    body: Json,
    operation: Operation,
    *,
    identity: Identity,
    secret: bytes,
    model: str,
    max_temperature: float,
    encoder: str,
) -> Query | Uncacheable:
    """How the cache sees a request: `Query`, or `Uncacheable(reason)` when it must be neither looked up nor kept.

    `body` is the decoded request and is not changed. `secret` (>= 16 bytes) keys the digests; `encoder` is the
    configured embedding model. Raises ValueError for a secret that is too short, never for a body.
    """
    if len(secret) < _MIN_SECRET:
        raise ValueError(f"the cache's secret must have at least {_MIN_SECRET} bytes")
    if not _is_known(identity):
        return Uncacheable("no-identity")
    if _temperature(body) > max_temperature and operation != "embedding":
        return Uncacheable("temperature")
    try:
        turn, before = _take_apart(body, operation)
        seen = _Seen(body, operation, identity, model, encoder, turn, before)
        digests = _current()
        scope = digests.scope(secret, seen)
        exact = digests.exact(secret, scope, turn.texts)
    except (UnicodeEncodeError, TypeError, RecursionError):
        # Lone surrogates, or values that did not come from JSON: not ours to repair.
        return Uncacheable("malformed")
    text = turn.texts[0] if len(turn.texts) == 1 else "\n".join(turn.texts)
    aging = is_time_sensitive(text) or _is_looked_up(body) or (bool(before) and _began_with_now(before))
    return Query(
        scope=scope,
        exact=exact,
        text=text,
        semantic_bar=_bar(body, operation, turn, text) or ("time-sensitive" if aging else None),
        max_ttl=TIME_SENSITIVE_TTL if aging else None,
        team=identity.team,
        project=identity.project,
        model=model,
    )


def _began_with_now(before: list[tuple[int, object]]) -> bool:
    """Whether the user asked about the moment a few turns ago: "Paris" after "what is the weather today?" does too.

    What the assistant says ("How can I help you today?") asks for nothing.
    """
    items = (cast("Json", item) for _, item in reversed(before) if isinstance(item, dict))
    asked = (_said(item.get("content")) for item in items if item.get("role") == "user")
    return any(is_time_sensitive(text[-_ASKED_IN:]) for text in islice(asked, _TURNS_BACK))


def _said(content: object) -> str:
    """The text of a message; empty for any other shape."""
    if isinstance(content, str):
        return content
    parts = cast("list[object]", content) if isinstance(content, list) else []
    texts = (cast("Json", part).get("text") for part in parts if isinstance(part, dict))
    return "\n".join(text for text in texts if isinstance(text, str))


def _is_looked_up(body: Json) -> bool:
    """Whether the service may search for the answer, by OpenAI's option or by tools that it runs itself."""
    if body.get("web_search_options") is not None:
        return True
    native = body.get("native")
    own = cast("Json", native) if isinstance(native, dict) else None
    return own is not None and bool(own.get("tools") or own.get("mcp_servers"))


def _is_known(identity: Identity) -> bool:
    """Fail closed: the level's own name must be there, and so must every wider one that isolates tenants."""
    scope = identity.scope
    own = identity.key if scope == "key" else identity.user if scope == "user" else scope
    return bool(identity.org and own and (identity.team or scope == "org"))


def _bar(body: Json, operation: Operation, turn: _Turn, text: str) -> str | None:
    """Why only the very same request may be answered from the cache; None when meaning may match too."""
    if operation != "chat":
        return "operation"
    if turn.bar is not None:
        return turn.bar
    if not _BARRING.isdisjoint(body) and (barred := _barred(body)) is not None:
        return barred
    if len(text) > MAX_TEXT:
        return "text-too-long"
    return "no-text" if not text or text.isspace() else None


_BARRING = frozenset(("tools", "functions", "n", "logprobs", "top_logprobs", "audio"))


def _barred(body: Json) -> str | None:
    checks = (
        ("tools", bool(body.get("tools") or body.get("functions"))),
        ("n", not (body.get("n") is None or body.get("n") == 1)),
        ("logprobs", bool(body.get("logprobs")) or body.get("top_logprobs") is not None),
        ("audio", body.get("audio") is not None),
    )
    return next((name for name, holds in checks if holds), None)


def _take_apart(body: Json, operation: Operation) -> tuple[_Turn, list[tuple[int, object]]]:
    """The last user turn, and the (position, message) pairs before it. Whatever is not understood stays exact."""
    if operation != "chat":
        source = body.get("prompt") if operation == "completion" else body.get("input")
        if isinstance(source, str):
            return _Turn([source], None, None), []
        # A list, marked as one: the text '["a"]' is another question than the list ["a"].
        return _Turn([_spelled(source)], "json", None), []
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        return _Turn([], messages, "no-text"), []
    items = cast("list[object]", messages)
    last = items[-1]
    if not isinstance(last, dict) or cast("Json", last).get("role") != "user":
        return _Turn([], None, "last-turn-not-user"), list(enumerate(items))
    return _read_turn(cast("Json", last)), list(enumerate(items[:-1]))


def _read_turn(message: Json) -> _Turn:
    """A user message as texts and shape: each text leaves a gap in the shape, other parts stay in it by digest."""
    others = {name: value for name, value in message.items() if name != "content" and value is not None}
    content = message.get("content")
    if isinstance(content, str):
        return _Turn([content], [others, [None]], None)
    if not isinstance(content, list):
        return _Turn([], [others, content], "no-text")
    texts: list[str] = []
    shape: list[object] = []
    for part in cast("list[object]", content):
        found = cast("Json", part) if isinstance(part, dict) else {}
        text = found.get("text")
        if isinstance(text, str) and found.keys() == {"type", "text"} and found["type"] == "text":
            texts.append(text)
            shape.append(None)
        else:
            # A picture may be megabytes; its digest is enough to tell it from every other.
            shape.append(hashlib.sha256(_spelled(part).encode()).hexdigest())
    return _Turn(texts, [others, shape], "non-text-parts" if any(shape) else None)


def _is_system(message: object) -> bool:
    return isinstance(message, dict) and cast("Json", message).get("role") in {"system", "developer"}


def _temperature(body: Json) -> float:
    """Absent and null count as 1.0, the API's default."""
    value = body.get("temperature")
    return float(value) if isinstance(value, int | float) else 1.0


def _plain(value: object) -> object:
    """`1.0` and `1` ask for the same thing."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _spelled(value: object) -> str:
    """As JSON. Raises for what did not come from JSON."""
    return _canonical.encode(value).decode()


def _begin(secret: bytes, purpose: bytes) -> Any:
    """Keyed BLAKE2b over a purpose; the fields follow."""
    key = secret if len(secret) <= hashlib.blake2b.MAX_KEY_SIZE else hashlib.sha256(secret).digest()
    return hashlib.blake2b(_framed(purpose), key=key, digest_size=32)


def _framed(field: bytes) -> bytes:
    """With its length in front: moving a byte from one field to the next changes the message."""
    return len(field).to_bytes(8, "big") + field
