"""Who makes the answer to a digest, among all processes on one Redis: a lease beside the place where it will be kept.

A key below prefix and generation, `l:<exact>`: the holder's token, and after it `B` with the moment of the answer's
first token, in Redis's own milliseconds; or `U` alone: what is made for this is not kept, so nobody need wait for it.
The lease is asked for by the look-up itself, in its one round trip: a script, because what is asked depends on what is
found there.
Does not know who waits, for how long, or what a lease is for.
"""

import logging
from collections.abc import Awaitable, Sequence
from hashlib import sha1
from typing import NamedTuple, TypeVar, cast

from redis.asyncio import Redis
from redis.exceptions import NoPermissionError, NoScriptError, ResponseError

from cache.codec import Codec
from cache.redis_batch import Keys, read_entry
from cache.redis_era import Era
from cache.redis_link import Link
from cache.store import Claimed

log = logging.getLogger("nearhit.cache")

TOKEN = 16
LIFE = 3.0
# An answer that was not kept would not be kept the next time either, nearly always: it is too long, or calls a tool.
_VAIN_LIFE = 60.0
_MOST_AT_ONCE = 256
_Raw = bytes | None
T = TypeVar("T")


class _Script(NamedTuple):
    """Its text, and the name under which Redis knows it once it has run."""

    text: str
    digest: str


def _script(text: str) -> _Script:
    return _Script(text, sha1(text.encode(), usedforsecurity=False).hexdigest())


# Where Redis has no memory left, or only reads, the look-up goes on without a lease: hence pcall. Where it tells us no
# time, as rights of reading and writing alone do not include that, an answer has begun when somebody first hears of it.
_CLAIM = _script("""
local found = redis.call('MGET', KEYS[1], KEYS[2], KEYS[3], KEYS[4])
if found[3] then return found end
local held = found[4]
if not held then
  local made = redis.pcall('SET', KEYS[4], ARGV[1], 'NX', 'PX', ARGV[2])
  if type(made) == 'table' and made.ok then found[4] = ARGV[1] end
elseif #held > #ARGV[1] then
  local begun, now = tonumber(string.sub(held, #ARGV[1] + 2)), redis.pcall('TIME')
  if begun then found[5] = (now.err or begun == 0) and 0 or math.floor(now[1] * 1000 + now[2] / 1000 - begun) end
end
return found
""")
_BEGIN = _script("""
local held = redis.pcall('GET', KEYS[1])
if type(held) ~= 'string' or string.sub(held, 1, #ARGV[1]) ~= ARGV[1] then return 0 end
local now = redis.pcall('TIME')
local begun = now.err and '0' or string.format('%.0f', now[1] * 1000 + now[2] / 1000 - ARGV[2])
redis.call('SET', KEYS[1], ARGV[1] .. 'B' .. begun, 'PX', ARGV[3])
return 1
""")
_RENEW = _script("""
local kept = {}
for i, key in ipairs(KEYS) do
  local held, token = redis.pcall('GET', key), ARGV[i + 1]
  local ours = type(held) == 'string' and string.sub(held, 1, #token) == token
  kept[i] = ours and redis.call('PEXPIRE', key, ARGV[1]) or 0
end
return kept
""")
# The first argument: for how long it is told that an answer was not kept. Then tokens, each with `1` where that is so.
_RELEASE = _script("""
for i, key in ipairs(KEYS) do
  local held, token, vain = redis.pcall('GET', key), ARGV[2 * i], ARGV[2 * i + 1]
  if type(held) == 'string' and string.sub(held, 1, #token) == token then
    local told = vain == '1' and redis.pcall('SET', key, 'U', 'PX', ARGV[1])
    if not told or told.err then redis.call('DEL', key) end
  end
end
return 0
""")


class RedisLeases:
    """Implements `cache.store.Leasing`."""

    life = LIFE

    def __init__(self, link: Link, era: Era, codec: Codec) -> None:
        self._link = link
        self._era = era
        self._codec = codec
        self._allowed = True

    @property
    def is_down(self) -> bool:
        return self._link.is_down

    async def claim(self, exact: bytes, token: bytes) -> Claimed:
        budget = self._link.lookup
        keys = await self._era.begin(budget)
        generation, cut, raw, holder, begun = await self._link.ask(lambda: self._look(keys, exact, token), budget)
        if not await self._era.is_present(generation, cut, budget):
            return Claimed(None)
        if raw is not None:
            found = read_entry(self._codec, exact, raw)
            return Claimed(found[0] if found is not None and self._era.lives(*found) else None)
        if holder is None or len(holder) < TOKEN:
            return Claimed(None)
        return Claimed(None, holder[:TOKEN], None if begun is None else begun / 1e3)

    async def begin(self, exact: bytes, token: bytes, ago: float) -> None:
        keys = await self._era.begin()
        told = (token, round(ago * 1e3), _milliseconds(LIFE))
        await self._run_slowly(_BEGIN, [keys.lease(exact)], told)

    async def renew(self, held: Sequence[tuple[bytes, bytes]]) -> None:
        for some in _portions(held):
            keys = await self._era.begin()
            names = [keys.lease(exact) for exact, _ in some]
            told = (_milliseconds(LIFE), *(token for _, token in some))
            await self._run_slowly(_RENEW, names, told)

    async def release(self, held: Sequence[tuple[bytes, bytes, bool]]) -> None:
        for some in _portions(held):
            keys = await self._era.begin()
            names = [keys.lease(exact) for exact, _, _ in some]
            pairs = (part for _, token, vain in some for part in (token, b"1" if vain else b"0"))
            told = (_milliseconds(_VAIN_LIFE), *pairs)
            await self._run_slowly(_RELEASE, names, told)

    async def _run_slowly(self, script: _Script, names: Sequence[bytes], told: Sequence[bytes | int]) -> None:
        """Off the path of a reply. Else a Redis that is too slow for look-ups would be asked by every one of them."""
        await self._link.ask(lambda: _run(self._link.slow, script, names, told), heals=False)

    async def _look(self, keys: Keys, exact: bytes, token: bytes) -> tuple[_Raw, _Raw, _Raw, _Raw, int | None]:
        """The words of the present, the entry, who makes it, and since how many milliseconds that has been coming."""
        names = [keys.generation, keys.cut, keys.entry(exact), keys.lease(exact)]
        if self._allowed:
            try:
                found = await _run(self._link.fast, _CLAIM, names, (token, _milliseconds(LIFE)))
                generation, cut, raw, holder, *begun = cast("list[_Raw]", found)
                return generation, cut, raw, holder, cast("int", begun[0]) if begun else None
            except ResponseError as error:
                if not isinstance(error, NoPermissionError) and "unknown command" not in str(error):
                    raise
                self._allowed = False
                log.warning("Redis runs no scripts for us: each worker makes an answer of its own (%s)", error)
        generation, cut, raw = await cast("Awaitable[list[_Raw]]", self._link.fast.mget(names[:3]))
        return generation, cut, raw, None, None


async def _run(client: "Redis", script: _Script, keys: Sequence[bytes], told: Sequence[bytes | int]) -> object:
    """By its name, or by its text where Redis has not heard it since it started."""
    values = cast("list[str]", [*keys, *told])  # redis-py types them as text, yet takes bytes as they are
    try:
        return await cast("Awaitable[object]", client.evalsha(script.digest, len(keys), *values))
    except NoScriptError:
        return await cast("Awaitable[object]", client.eval(script.text, len(keys), *values))


def _portions(held: Sequence[T]) -> list[Sequence[T]]:
    """So few at a time that Redis does not stand still for them."""
    return [held[at : at + _MOST_AT_ONCE] for at in range(0, len(held), _MOST_AT_ONCE)]


def _milliseconds(seconds: float) -> int:
    return round(seconds * 1e3)
