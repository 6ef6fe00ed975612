"""The change stream in Redis: every write says what it changed, every process reads it in order.

Knows XADD, XREAD and how to tell that something was missed (trimmed, flushed): then it says `reset`.
Does not know what listeners remember. Delivery is at least once; changes are idempotent.
"""

import asyncio
from collections.abc import Callable
from typing import Any, cast

import msgspec
from msgspec import Struct
from redis.asyncio import Redis
from redis.exceptions import RedisError

from cache.store import Change, VectorRow

# About an hour of busy writing; who falls further behind starts over from the store.
MAX_LENGTH = 20_000
_BATCH = 512
_BLOCK_MS = 1_000
_FIELD = b"c"
_START = b"0-0"
_Items = list[tuple[bytes, dict[bytes, bytes]]]


class _Item(Struct, array_like=True):
    worker: str
    kind: str
    scope: bytes
    encoder: str
    entry_id: int
    exact: bytes
    expires: float
    vector: bytes


_encode = msgspec.msgpack.Encoder()
_decode = msgspec.msgpack.Decoder(_Item)


def fields(worker: str, change: Change) -> dict[Any, Any]:
    """What XADD writes for `change` made by `worker`."""
    row = change.row
    item = _Item(worker, change.kind, change.scope, change.encoder, row.entry_id, row.exact, row.expires, row.vector)
    return {_FIELD: _encode.encode(item)}


class Follower:
    """Reads the stream for one process and tells `listen` what others did; `worker`'s own changes are skipped."""

    def __init__(self, client: "Redis", key: bytes, *, worker: str, listen: Callable[[Change], None]) -> None:
        self._client = client
        self._key = key
        self._worker = worker
        self._listen = listen
        self._last: bytes | None = None

    async def run(self, pause: float) -> None:
        """Follow until cancelled; on errors wait `pause` seconds and go on where it was."""
        while True:
            try:
                if self._last is None or await self._missed_some():
                    await self._begin()
                while await self._read():
                    pass
            except (RedisError, OSError, TimeoutError):
                await asyncio.sleep(pause)

    async def _begin(self) -> None:
        """From the newest change on. What was before is in the store, so forget what is remembered of it."""
        newest = cast("_Items", await self._client.xrevrange(self._key, count=1))
        self._last = newest[0][0] if newest else _START
        self._listen(Change("reset"))

    async def _read(self) -> bool:
        """One batch. False when it is time to look whether something was missed: after silence, or far behind."""
        assert self._last is not None
        found = cast(
            "list[tuple[bytes, _Items]] | None",
            await self._client.xread({self._key: self._last}, count=_BATCH, block=_BLOCK_MS),
        )
        if not found:
            return False
        items = found[0][1]
        for item_id, item in items:
            self._apply(item.get(_FIELD, b""))
            self._last = item_id
        return len(items) < _BATCH

    async def _missed_some(self) -> bool:
        """Whether the oldest change still there is younger than the last one read (or the stream is gone)."""
        oldest = cast("_Items", await self._client.xrange(self._key, count=1))
        if not oldest:
            return self._last != _START
        return self._last != _START and _order(oldest[0][0]) > _order(self._last or _START)

    def _apply(self, raw: bytes) -> None:
        try:
            item = _decode.decode(raw)
        except msgspec.DecodeError:
            # A newer version's change: what it meant is unknown, so nothing remembered is safe.
            self._listen(Change("reset"))
            return
        if item.worker == self._worker:
            return
        row = VectorRow(item.entry_id, item.exact, item.expires, item.vector)
        if item.kind == "add":
            self._listen(Change("add", item.scope, item.encoder, row))
        elif item.kind == "drop":
            self._listen(Change("drop", item.scope, item.encoder, row))
        else:
            self._listen(Change("reset"))


def _order(item_id: bytes) -> tuple[int, int]:
    moment, _, number = item_id.partition(b"-")
    return int(moment), int(number or 0)
