"""The change stream in Redis: every write says what it changed, every process reads it in order.

Knows XADD, XREAD and how to tell that something was missed (trimmed, flushed): then it says `reset`.
Does not know what listeners remember. Delivery is at least once; changes are idempotent.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, cast

import msgspec
from msgspec import Struct
from redis.asyncio import Redis
from redis.exceptions import RedisError

from cache.store import Change, StoreDown, VectorRow

log = logging.getLogger("nearhit.cache")

# About an hour of busy writing; who falls further behind starts over from the store.
MAX_LENGTH = 20_000
_BATCH = 512
_BLOCK_MS = 500
_SLACK_MS = 2_000
# Longer than Redis takes to start anew: an outage should not make every exact hit an upstream call at once.
_TOUCH_SECONDS = 10.0
_LONGEST_WHY = 200
# Seconds between two outages that are told: one that comes and goes must not fill the log.
_TOLD_EVERY = 60.0
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
    """Reads the stream for one process and tells `listen` what others did; `worker`'s own changes are skipped.

    A process that is cut off from Redis alone does not hear what the others take back: `in_touch` says so, and the
    log, once when that begins and once when it ends, at most once a minute: this one asks also while nobody calls.

    `look` is awaited when it begins and at least every second: for what the stream does not tell.
    """

    def __init__(
        self,
        client: "Redis",
        key: bytes,
        *,
        worker: str,
        listen: Callable[[Change], None],
        look: Callable[[], Awaitable[None]],
        monotonic: Callable[[], float],
    ) -> None:
        self._client = client
        self._key = key
        self._worker = worker
        self._listen = listen
        self._look = look
        self._monotonic = monotonic
        self._last: bytes | None = None
        self._heard: float | None = None
        self._told: float | None = None  # when an outage was last told
        self._owed = False  # whether its end is still to be told

    def in_touch(self) -> bool:
        """Whether the stream has been heard, if only to be silent, in the last seconds."""
        return self._heard is not None and self._monotonic() - self._heard < _TOUCH_SECONDS

    @property
    def position(self) -> str:
        """A place a moment ago: what this process wrote itself may have been read here before it was told there."""
        moment, number = _order(self._last or _START)
        return "" if self._last is None else f"{max(0, moment - _SLACK_MS)}-{number}"

    async def run(self, pause: float) -> None:
        """Follow until cancelled; on errors wait `pause` seconds and go on where it was."""
        while not _is_cancelled():
            try:
                await self._look()
                if self._last is None or await self._missed_some():
                    await self._begin()
                until = asyncio.get_running_loop().time() + _BLOCK_MS / 1_000
                while await self._read() and asyncio.get_running_loop().time() < until and not _is_cancelled():
                    pass
                self._answered()
            except (RedisError, OSError, TimeoutError, StoreDown) as error:
                if not _is_cancelled():
                    self._failed(error)
                    await asyncio.sleep(pause)

    def _failed(self, error: Exception) -> None:
        cause, now = error.__cause__ or error, self._monotonic()
        if self._owed or isinstance(cause, StoreDown):  # not asked at all: the next one who is allowed to ask knows why
            return
        if self._told is None or now - self._told >= _TOLD_EVERY:
            self._told, self._owed = now, True
            why = str(cause)[:_LONGEST_WHY] or type(cause).__name__
            log.warning("Redis does not answer as it should (%s): the cache is gone around until it does", why)

    def _answered(self) -> None:
        if self._owed:
            self._owed = False
            log.warning("Redis answers again: the cache is used")

    async def since(self, position: str) -> list[Change] | None:
        """What was written after `position`. None when part of it is gone, or it cannot be understood."""
        oldest = cast("_Items", await self._client.xrange(self._key, count=1))
        if not oldest or _order(oldest[0][0]) > _order(position.encode()):
            return None
        changes: list[Change] = []
        after = position.encode()
        while items := cast("_Items", await self._client.xrange(self._key, min=b"(" + after, count=_BATCH)):
            for item_id, item in items:
                change = _change(_read(item.get(_FIELD, b"")))
                if change.kind == "reset":
                    return None
                changes.append(change)
                after = item_id
        return changes

    async def _begin(self) -> None:
        """From the newest change on. What was before is in the store, so forget what is remembered of it."""
        newest = cast("_Items", await self._client.xrevrange(self._key, count=1))
        self._last = newest[0][0] if newest else _START
        self._listen(Change("reset"))
        self._heard = self._monotonic()

    async def _read(self) -> bool:
        """One batch. False when it is time to look whether something was missed: after silence, or far behind."""
        assert self._last is not None
        found = cast(
            "list[tuple[bytes, _Items]] | None",
            await self._client.xread({self._key: self._last}, count=_BATCH, block=_BLOCK_MS),
        )
        items = found[0][1] if found else []
        for item_id, item in items:
            self._apply(item.get(_FIELD, b""))
            self._last = item_id
        if len(items) < _BATCH:
            self._heard = self._monotonic()  # of all there is
        return 0 < len(items) < _BATCH

    async def _missed_some(self) -> bool:
        """Whether the oldest change still there is younger than the last one read, or the newest one is older."""
        if self._last == _START:
            return False
        pipe = self._client.pipeline(transaction=False)
        pipe.xrange(self._key, count=1)
        pipe.xrevrange(self._key, count=1)
        oldest, newest = cast("tuple[_Items, _Items]", await pipe.execute())
        last = _order(self._last or _START)
        return not oldest or _order(oldest[0][0]) > last or _order(newest[0][0]) < last

    def _apply(self, raw: bytes) -> None:
        item = _read(raw)
        if item is None or item.worker != self._worker:
            self._listen(_change(item))


def _read(raw: bytes) -> _Item | None:
    try:
        return _decode.decode(raw)
    except msgspec.DecodeError:
        return None


def _change(item: _Item | None) -> Change:
    """A newer version's change is a reset: what it meant is unknown, so nothing remembered is safe."""
    if item is None or item.kind not in {"add", "drop"}:
        return Change("reset")
    row = VectorRow(item.entry_id, item.exact, item.expires, item.vector)
    return Change("add" if item.kind == "add" else "drop", item.scope, item.encoder, row)


def _is_cancelled() -> bool:
    """A client that is cancelled while it connects may say `connection lost` instead; that must not keep us running."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _order(item_id: bytes) -> tuple[int, int]:
    moment, _, number = item_id.partition(b"-")
    return int(moment), int(number or 0)
