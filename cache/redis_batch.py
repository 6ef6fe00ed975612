"""What an entry is made of in Redis, and one transaction that adds or removes all of it.

Keys, below a prefix: `generation`, `generations`, `cut` and `cuts` (see `cache.redis_era`), `feed` the change stream,
`s:<name>` a state: eight bytes of version, then the value. Below prefix and generation: `e:<exact>` the entry, after
eight bytes of the cut it was written at, `i:<id>` its digest, `p:<scope>:<encoder>` a partition's vectors, `meta` what
removal needs, `used` entries by rank, `expires` by expiry, `groups` counts, `a:<id>` the digests of an answer's keys,
`l:<exact>` who makes the answer now (see `cache.redis_lease`).
Does not know budgets, breakers or listeners.
"""

from collections.abc import Awaitable, Sequence
from typing import NamedTuple, cast

import msgspec
from msgspec import Struct
from redis.asyncio import Redis
from redis.exceptions import WatchError

from cache import feed
from cache.codec import Codec
from cache.store import Change, Stored, VectorRow
from cache.types import Entry, Group
from policies import eviction


class Meta(Struct, array_like=True):
    """What removing an entry needs to know of it."""

    entry_id: int
    scope: bytes
    encoder: str
    group: tuple[str, str, str]
    root: int = 0
    worth: float = 0.0

    @property
    def of(self) -> Group:
        return Group(*self.group)


class _Vector(Struct, array_like=True):
    entry_id: int
    expires: float
    vector: bytes


_STAMP = 8
# What an entry costs in Redis besides its bytes: names, orders, pointers.
_OVERHEAD = 1_000
_STATE_LIFE = 90 * 86_400_000
_encode = msgspec.msgpack.Encoder().encode
_decode_meta = msgspec.msgpack.Decoder(Meta)
_decode_vector = msgspec.msgpack.Decoder(_Vector)
_decode_group = msgspec.msgpack.Decoder(tuple[str, str, str])


class Keys:
    """Names of everything kept."""

    def __init__(self, prefix: str, generation: bytes) -> None:
        self._shared = prefix.encode()
        self._prefix = self._shared + generation + b":"
        self.generation = self._shared + b"generation"
        self.generations = self._shared + b"generations"
        self.cut = self._shared + b"cut"
        self.cuts = self._shared + b"cuts"
        self.feed = self._shared + b"feed"
        self.meta = self._prefix + b"meta"
        self.used = self._prefix + b"used"
        self.expires = self._prefix + b"expires"
        self.groups = self._prefix + b"groups"

    def entry(self, exact: bytes) -> bytes:
        return self._prefix + b"e:" + exact

    def lease(self, exact: bytes) -> bytes:
        return self._prefix + b"l:" + exact

    def pointer(self, entry_id: int) -> bytes:
        return self._prefix + b"i:" + entry_id.to_bytes(8, "big")

    def answer(self, root: int) -> bytes:
        return self._prefix + b"a:" + root.to_bytes(8, "big")

    def state(self, name: bytes) -> bytes:
        return self._shared + b"s:" + name

    def partition(self, scope: bytes, encoder: str) -> bytes:
        return self._prefix + b"p:" + scope + b":" + encoder.encode()


class Done(NamedTuple):
    """After a batch: how many entries are held, and what tells whether the present has moved on meanwhile."""

    held: int
    generation: bytes | None
    cut: bytes | None


class Batch:
    """One MULTI/EXEC. Counts by group follow what it really changed, since two processes may remove the same entry.

    `whole=False`: one command after the other, since a full Redis queues none, while it still removes.
    """

    def __init__(self, client: "Redis", keys: Keys, worker: str, codec: Codec, *, whole: bool = True) -> None:
        self._client = client
        self._codec = codec
        self._keys = keys
        self._worker = worker
        self._pipe = client.pipeline(transaction=whole)
        self._counted: list[tuple[int, bytes, int]] = []
        self.changes: list[Change] = []

    def add(self, entry: Entry, now: float, stamp: int) -> None:
        """`stamp`: the cut this process knows of."""
        keys, pipe = self._keys, self._pipe
        life = max(1, int((entry.expires - now) * 1_000))
        group = (entry.team, entry.project, entry.model)
        body = stamp.to_bytes(_STAMP, "big") + self._codec.encode(entry)
        worth = eviction.worth(entry.cost_nano, entry.latency_ms, len(body) + len(entry.vector) + _OVERHEAD)
        pipe.set(keys.entry(entry.exact), body, px=life)
        pipe.delete(keys.lease(entry.exact))  # there is nothing to wait for any more, whoever made it
        pipe.set(keys.pointer(entry.id), entry.exact, px=life)
        meta = _encode(Meta(entry.id, entry.scope, entry.encoder, group, entry.root, worth))
        pipe.sadd(keys.answer(entry.root), entry.exact)
        pipe.hset(keys.meta, _text(entry.exact), _text(meta))
        pipe.zadd(keys.used, {entry.exact: eviction.first(worth, now)})
        self._count(group, 1)
        pipe.zadd(keys.expires, {entry.exact: entry.expires})
        if entry.vector:
            vector = _encode(_Vector(entry.id, entry.expires, entry.vector))
            pipe.hset(keys.partition(entry.scope, entry.encoder), _text(entry.exact), _text(vector))
        row = VectorRow(entry.id, entry.exact, entry.expires, entry.vector)
        self.tell(Change("add", entry.scope, entry.encoder, row))

    def remove(self, exact: bytes, meta: Meta, *, tell: bool = True) -> None:
        keys, pipe = self._keys, self._pipe
        pipe.delete(keys.entry(exact), keys.pointer(meta.entry_id))
        pipe.srem(keys.answer(meta.root or meta.entry_id), exact)
        pipe.hdel(keys.partition(meta.scope, meta.encoder), _text(exact))
        pipe.hdel(keys.meta, _text(exact))
        pipe.zrem(keys.used, exact)
        self._count(meta.group, -1)
        pipe.zrem(keys.expires, exact)
        if tell:
            self.tell(Change("drop", meta.scope, meta.encoder, VectorRow(meta.entry_id, exact, 0.0, b"")))

    def tell(self, change: Change) -> None:
        """Write `change` to the stream with the rest."""
        self.changes.append(change)
        self._pipe.xadd(self._keys.feed, feed.fields(self._worker, change), maxlen=feed.MAX_LENGTH)

    async def watch(self, *names: bytes) -> None:
        """From now on, `execute` raises WatchError when one of these keys was written meanwhile."""
        await self._pipe.watch(*names)

    async def look(self, beside: bytes, root: int) -> tuple[bytes | None, set[bytes]]:
        """What is kept under a digest and the keys of an answer, read between `watch` and the first change.

        Raw: `read_entry` says what it is.
        """
        kept = await cast("Awaitable[bytes | None]", self._pipe.get(self._keys.entry(beside)))
        keys = await cast("Awaitable[set[bytes]]", self._pipe.smembers(self._keys.answer(root)))
        self._pipe.multi()
        return kept, keys

    async def close(self) -> None:
        await self._pipe.reset()

    async def execute(self) -> Done:
        self._pipe.zcard(self._keys.used)
        self._pipe.get(self._keys.generation)
        self._pipe.get(self._keys.cut)
        results = cast("list[int]", await self._pipe.execute())
        deltas: dict[bytes, int] = {}
        for position, group, sign in self._counted:
            deltas[group] = deltas.get(group, 0) + sign * results[position]
        moved = {group: delta for group, delta in deltas.items() if delta}
        if moved:
            counts = self._client.pipeline(transaction=True)
            for group, delta in moved.items():
                counts.hincrby(self._keys.groups, _text(group), delta)
            await counts.execute()
        held, generation, cut = cast("tuple[int, bytes | None, bytes | None]", tuple(results[-3:]))
        return Done(held, generation, cut)

    def _count(self, group: tuple[str, str, str], sign: int) -> None:
        """The next command answers 1 when it added or removed an entry, 0 when another process was faster."""
        self._counted.append((len(self._pipe.command_stack), _encode(group), sign))


def read_metas(exacts: Sequence[bytes], raws: Sequence[bytes | None]) -> dict[bytes, Meta]:
    """What is known of each digest; damaged records count as none."""
    metas: dict[bytes, Meta] = {}
    for exact, raw in zip(exacts, raws, strict=True):
        if raw is not None:
            try:
                metas[exact] = _decode_meta.decode(raw)
            except msgspec.DecodeError:
                continue
    return metas


def read_entry(codec: Codec, exact: bytes, raw: bytes | None) -> tuple[Entry, int] | None:
    """The entry kept under `exact` and the cut it was written at; None where it is damaged or another's."""
    if raw is None or len(raw) < _STAMP:
        return None
    entry = codec.decode(raw[_STAMP:], exact)
    return None if entry is None else (entry, int.from_bytes(raw[:_STAMP], "big"))


def meta_of(entry: Entry) -> Meta:
    """What is known of an entry whose record was lost."""
    return Meta(entry.id, entry.scope, entry.encoder, (entry.team, entry.project, entry.model), entry.root)


def read_vector(exact: bytes, raw: bytes) -> VectorRow | None:
    try:
        found = _decode_vector.decode(raw)
    except msgspec.DecodeError:
        return None
    return VectorRow(found.entry_id, exact, found.expires, found.vector)


async def put_state(client: "Redis", key: bytes, blob: bytes, seen: int) -> bool:
    """Compare the version and set, without a script: what was watched must not have been written meanwhile."""
    async with client.pipeline(transaction=True) as pipe:
        try:
            await pipe.watch(key)
            held = read_state(await cast("Awaitable[bytes | None]", pipe.get(key)))
            if (held.version if held else 0) != seen:
                return False
            pipe.multi()
            pipe.set(key, (seen + 1).to_bytes(8, "big") + blob, px=_STATE_LIFE)
            await pipe.execute()
        except WatchError:
            return False
    return True


def read_state(raw: bytes | None) -> Stored | None:
    return None if raw is None or len(raw) < 8 else Stored(int.from_bytes(raw[:8], "big"), raw[8:])


def read_groups(raw: dict[bytes, bytes]) -> dict[Group, int]:
    return {Group(*_decode_group.decode(group)): int(count) for group, count in raw.items() if int(count) > 0}


def _text(raw: bytes) -> str:
    """redis-py's hash commands are typed for text, yet take bytes as they are."""
    return cast("str", raw)
