"""Several keys of one provider as one: a key that is told to wait, or is refused, is left alone for a while.

Knows: which key has the fewest calls under way, how long each rests, which has nothing left. Does not know: the
language (each key has a provider of its own), money: a refused key's try costs nothing and is a part of the same
attempt.
"""

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing

import structlog
from msgspec import Struct
from msgspec.structs import replace

from gateway.allowance import Account, Accounted
from gateway.call import Body, Chunk
from gateway.errors import UpstreamRefused
from gateway.providers import Billing, Cannot, Provider, Sending, TellsTokens, TokenPath
from policies.money import Usage

log = structlog.get_logger("nearhit.upstream")

_PATIENCE = 1.0  # seconds for a key that was told to wait without saying how long
_LONGEST = 300.0
_REFUSED_FOR = 60.0  # seconds for a key the provider does not know
_TOO_MANY, _REFUSED = 429, (401, 402, 403)  # 402: nothing is left on its account


class _Key(Struct):
    provider: Provider
    number: int
    in_flight: int = 0
    until: float = 0.0
    refused: UpstreamRefused | None = None  # why it rests, where it was not told to wait

    @property
    def name(self) -> str:
        """Of itself nothing is told."""
        return f"key {self.number}"

    @property
    def spent_until(self) -> float:
        return getattr(self.provider, "spent_until", 0.0)

    @property
    def account(self) -> Account:
        return self.provider.accounts()[0] if isinstance(self.provider, Accounted) else Account()


class KeyPool:
    """Obeys gateway.providers.Provider over one provider per key, all of the same name."""

    def __init__(self, name: str, members: Sequence[Provider], *, monotonic: Callable[[], float]) -> None:
        self.name = name
        self.billing: Billing = members[0].billing
        self.cannot: Cannot | None = getattr(members[0], "cannot", None)
        self.speaks: str = getattr(members[0], "speaks", "")
        self._keys = [_Key(member, number + 1) for number, member in enumerate(members)]
        self._monotonic = monotonic
        self._asked = 0

    async def told_of_tokens(self, path: TokenPath, body: Body) -> Body | None:
        """With the key that would be asked first."""
        member = (self._order() or self._keys)[0].provider
        return await member.told_of_tokens(path, body) if isinstance(member, TellsTokens) else None

    async def send(self, sending: Sending) -> AsyncGenerator[Chunk, None]:
        """As a provider's; each key that may be asked is asked at most once, all of them within the time of one."""
        until: float | None = None
        for key in self._order():
            now = self._monotonic()
            until = now + sending.timeout if until is None else until
            key.in_flight += 1
            sending.keys.append(key.name)
            try:
                asked = sending if now + sending.timeout <= until else replace(sending, timeout=max(0.001, until - now))
                async with aclosing(key.provider.send(asked)) as chunks:
                    async for chunk in chunks:
                        yield chunk
                return
            except UpstreamRefused as problem:
                if not self._rest(key, problem):
                    raise
            finally:
                key.in_flight -= 1
        raise self._all_rest()

    def _order(self) -> list[_Key]:
        """Keys that may be asked: fewest calls under way first, in turns where that is the same.

        One whose limits are used up, as it said itself, comes last: it would most likely answer 429.
        """
        now = self._monotonic()
        self._asked += 1
        many = len(self._keys)
        ready = [key for key in self._keys if now >= key.until]
        return sorted(ready, key=lambda key: (key.spent_until > now, key.in_flight, (key.number - self._asked) % many))

    def _rest(self, key: _Key, problem: UpstreamRefused) -> bool:
        """Whether it was the key that was refused, which then rests."""
        status = problem.http_status
        if status == _TOO_MANY:
            wait = problem.retry_after if problem.retry_after is not None else _PATIENCE
            key.until, key.refused = self._monotonic() + min(_LONGEST, wait), None
            return True
        if status in _REFUSED:
            log.warning("a key of the pool was refused", provider=self.name, key=key.number, status=status)
            key.until, key.refused = self._monotonic() + _REFUSED_FOR, problem
            return True
        return False

    def _all_rest(self) -> UpstreamRefused:
        """Of keys that only wait it is told for how long; where none does, waiting is of no use, and why is told."""
        waiting = [key.until for key in self._keys if key.refused is None]
        refused = next((key.refused for key in self._keys if key.refused is not None), None)
        if not waiting and refused is not None:
            return UpstreamRefused(refused.http_status, refused.upstream_error)
        wait = max(0.0, min(waiting) - self._monotonic())
        error: Body = {
            "message": f"Every key of {self.name} has been told to wait.",
            "type": "requests",
            "code": "rate_limit_exceeded",
        }
        return UpstreamRefused(_TOO_MANY, error, retry_after=wait)

    async def consumed(self, attempt: str) -> Usage | None:
        return await self._keys[0].provider.consumed(attempt)

    def members(self) -> list[tuple[str, Provider]]:
        """One for each key, which is told by its number only."""
        return [(key.name, key.provider) for key in self._keys]

    async def models(self) -> list[str]:
        return await self._keys[0].provider.models()

    def ready(self) -> str | None:
        resting = sum(self._monotonic() < key.until for key in self._keys)
        return f"all {resting} keys rest" if resting == len(self._keys) else self._keys[0].provider.ready()

    def accounts(self) -> list[Account]:
        """One for each key, which is told by its number only."""
        now = self._monotonic()
        return [
            replace(key.account, name=key.name, in_flight=key.in_flight, rests=max(0.0, key.until - now))
            for key in self._keys
        ]

    async def close(self) -> None:
        for key in self._keys:
            await key.provider.close()
