"""What an entry is made of in Redis, and one transaction that adds or removes all of it.

Keys, below a prefix: `e:<exact>` the entry, `i:<id>` its digest, `p:<scope>:<encoder>` a partition's vectors, `meta`
what removal needs, `used` and `expires` two orders, `groups` counts, `feed` the change stream.
Does not know budgets, breakers or listeners.
"""

from collections.abc import Sequence
from typing import cast

import msgspec
from msgspec import Struct
from redis.asyncio import Redis

from cache import codec, feed
from cache.store import Change, VectorRow
from cache.types import Entry, Group


class Meta(Struct, array_like=True):
    """What removing an entry needs to know of it."""

    entry_id: int
    scope: bytes
    encoder: str
    group: tuple[str, str, str]


class _Vector(Struct, array_like=True):
    entry_id: int
    expires: float
    vector: bytes


_encode = msgspec.msgpack.Encoder().encode
_decode_meta = msgspec.msgpack.Decoder(Meta)
_decode_vector = msgspec.msgpack.Decoder(_Vector)
_decode_group = msgspec.msgpack.Decoder(tuple[str, str, str])


class Keys:
    """Names of everything kept."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix.encode()
        self.meta = self._prefix + b"meta"
        self.used = self._prefix + b"used"
        self.expires = self._prefix + b"expires"
        self.groups = self._prefix + b"groups"
        self.feed = self._prefix + b"feed"

    def entry(self, exact: bytes) -> bytes:
        return self._prefix + b"e:" + exact

    def pointer(self, entry_id: int) -> bytes:
        return self._prefix + b"i:" + entry_id.to_bytes(8, "big")

    def partition(self, scope: bytes, encoder: str) -> bytes:
        return self._prefix + b"p:" + scope + b":" + encoder.encode()


class Batch:
    """One MULTI/EXEC. Counts by group follow what it really changed, since two processes may remove the same entry."""

    def __init__(self, client: "Redis", keys: Keys, worker: str) -> None:
        self._client = client
        self._keys = keys
        self._worker = worker
        self._pipe = client.pipeline(transaction=True)
        self._counted: list[tuple[int, bytes, int]] = []
        self.changes: list[Change] = []

    def add(self, entry: Entry, now: float) -> None:
        keys, pipe = self._keys, self._pipe
        life = max(1, int((entry.expires - now) * 1_000))
        group = (entry.team, entry.project, entry.model)
        pipe.set(keys.entry(entry.exact), codec.encode(entry), px=life)
        pipe.set(keys.pointer(entry.id), entry.exact, px=life)
        meta = _encode(Meta(entry.id, entry.scope, entry.encoder, group))
        pipe.hset(keys.meta, _text(entry.exact), _text(meta))
        pipe.zadd(keys.used, {entry.exact: now})
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

    async def execute(self) -> int:
        """Run it; the number of entries held afterwards."""
        self._pipe.zcard(self._keys.used)
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
        return results[-1]

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


def read_vector(exact: bytes, raw: bytes) -> VectorRow | None:
    try:
        found = _decode_vector.decode(raw)
    except msgspec.DecodeError:
        return None
    return VectorRow(found.entry_id, exact, found.expires, found.vector)


def read_groups(raw: dict[bytes, bytes]) -> dict[Group, int]:
    return {Group(*_decode_group.decode(group)): int(count) for group, count in raw.items() if int(count) > 0}


def _text(raw: bytes) -> str:
    """redis-py's hash commands are typed for text, yet take bytes as they are."""
    return cast("str", raw)
