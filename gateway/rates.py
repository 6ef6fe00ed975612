"""Limits per minute for keys, teams, projects, users, models, tags and the whole installation: requests and tokens.

    enter    one request: counted whatever answers it, also from the cache
    expect   tokens it may use, before anything is sent upstream; what it really used is known at the end
    told     what is left, for the headers of every answer a limit applies to

Knows: which limits a request falls under, how a refusal and the headers read. Does not know: money, SQL, HTTP.
One worker counts in its memory (full again after a restart); several share each limit (`gateway.rate_leases`).
"""

import math
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Literal

from msgspec import Struct
from sqlalchemy.exc import IntegrityError

from gateway.call import Call
from gateway.catalog import Catalog
from gateway.db import rates as stored
from gateway.db.session import Also, Database, nothing
from gateway.errors import NotFound, RateLimited
from gateway.estimate import asked_output
from gateway.flights import Flight
from gateway.ledger.configured import FILE
from gateway.rate_leases import Keeper, Purse
from gateway.settings import Settings
from policies.budget import scopes_of
from policies.rate import Bucket, Rate, told

Kind = Literal["requests", "tokens"]
Meter = Bucket | Purse
Lines = tuple[tuple[str, str], ...]
_MOST_ASKERS = 4_096
_TRIES = 3  # a portion may be gone again to others who waited for it
_BYTES_PER_TOKEN = 4  # of English text; what it really was is counted at the end
_TYPICAL_OUTPUT = 512  # tokens, where the client names no limit
_SHORT = {"requests": ("requests per min", "RPM"), "tokens": ("tokens per min", "TPM")}


class Expected(Struct, frozen=True):
    """Tokens taken in advance for one request, and from where."""

    meters: tuple[Meter, ...]
    amount: float


class _Limits(Struct):
    """What one scope may use."""

    rate: Rate
    requests: Meter | None = None
    tokens: Meter | None = None


class _Found(Struct, frozen=True):
    """The limits one asker falls under, with their scopes."""

    requests: tuple[tuple[str, Meter], ...]
    tokens: tuple[tuple[str, Meter], ...]


def _unsaid(_before: Rate | None, _after: Rate) -> Also:
    """Nothing else belongs to a change."""
    return nothing


class Rates:
    """One per worker. False while no limit is set. `names`: every name a model asked for goes by.

    `keeper`: how limits are shared; None where this is the only worker.
    """

    def __init__(
        self,
        database: Database,
        *,
        names: Callable[[str], tuple[str, ...]],
        now: Callable[[], float],
        monotonic: Callable[[], float],
        keeper: Keeper | None = None,
    ) -> None:
        self._database = database
        self._names = names
        self._now = now
        self._monotonic = monotonic
        self._keeper = keeper
        self._standing: dict[str, _Limits] = {}
        self._of: dict[object, _Found] = {}
        self._stamp = (-1, 0)

    def __bool__(self) -> bool:
        return bool(self._standing)

    # -- what is in force ----------------------------------------------------------------------------------------

    async def start(self, configured: Iterable[Rate] = (), said: stored.Said = _unsaid) -> None:
        """Set what the configuration file says, whenever it is read, and read what is in force.

        `said`: what else belongs to the change of one scope's limits.
        """
        known = {rate.scope: (rate.rpm, rate.tpm) for rate in await stored.load(self._database)}
        for wanted in configured:
            if known.get(wanted.scope) != (wanted.rpm, wanted.tpm):
                with suppress(IntegrityError):  # another worker that starts at the same time has put the same ones
                    await stored.put_unless_same(self._database, wanted, actor=FILE, now=self._now(), said=said)
        await self.refresh()

    async def set(self, rate: Rate, actor: str, also: Also = nothing) -> Rate:
        """Put limits in force at once; both None takes them away. Raises ValueError when they make no sense."""
        made = await stored.put(self._database, rate, actor=actor, now=self._now(), also=also)
        await self.refresh()
        return made

    async def refresh(self) -> None:
        """Follow changes made here or by other processes."""
        stamp = await stored.stamp(self._database)
        if stamp != self._stamp:
            self.put(await stored.load(self._database))
            self._stamp = stamp

    async def tend(self) -> None:
        """Hand back what this worker does not use."""
        if self._keeper is not None and self._standing:
            meters = [meter for limits in self._standing.values() for meter in (limits.requests, limits.tokens)]
            await self._keeper.tend([meter for meter in meters if isinstance(meter, Purse)])

    def put(self, rates: Iterable[Rate]) -> None:
        """Make exactly these the limits in force; what was used of those that stand stays used."""
        fresh: dict[str, _Limits] = {}
        for rate in rates:
            old = self._standing.get(rate.scope) or _Limits(rate)
            fresh[rate.scope] = _Limits(
                rate,
                self._meter(old.requests, f"{rate.scope}|requests", rate.rpm),
                self._meter(old.tokens, f"{rate.scope}|tokens", rate.tpm),
            )
        self._standing = fresh
        self._of.clear()

    def _meter(self, old: Meter | None, identity: str, per_minute: int | None) -> Meter | None:
        if per_minute is None:
            return None
        now = self._monotonic()
        if old is None:
            return Bucket(per_minute, now) if self._keeper is None else Purse(identity, per_minute, now)
        if old.per_minute != per_minute:
            old.change(per_minute, now)
        return old

    # -- one request ---------------------------------------------------------------------------------------------

    async def enter(self, call: Call) -> None:
        """Count one request. Raises RateLimited, and then counts nothing. Waits only where workers share a limit."""
        found = self._found(call)
        if found.requests:
            if call.background:
                self._leave_half(found.requests, "requests")
            await self._take(found.requests, 1.0, "requests")

    async def expect(self, call: Call) -> Expected | None:
        """Take the tokens that `call` is likely to use; None where no limit applies. Raises RateLimited."""
        found = self._found(call)
        if not found.tokens:
            return None
        if call.background:
            self._leave_half(found.tokens, "tokens")
        need = self._tokens(call)
        await self._take(found.tokens, need, "tokens")
        return Expected(tuple(meter for _, meter in found.tokens), need)

    def follow(self, expected: Expected, flight: Flight, *, leads: bool) -> None:
        """Once the answer has ended, what it really used counts; only for the one who made it come about."""
        if not leads:
            self._settle(expected, 0)
            return

        def ended() -> None:
            usage = flight.landing.usage
            self._settle(expected, 0 if usage is None else usage.total)

        flight.at_end(ended)

    def _settle(self, expected: Expected, used: int) -> None:
        for meter in expected.meters:
            meter.give(expected.amount - used, self._monotonic())

    def told(self, call: Call) -> Lines:
        """The headers of an answer to `call`: the tightest limit of each kind that applies. Counts in whole units."""
        found = self._found(call)
        return (*self._lines("requests", found.requests), *self._lines("tokens", found.tokens))

    def rehearse(self, call: Call) -> list[dict[str, object]]:
        """Every limit `call` falls under: what is left, what it would take, whether that is enough. Takes nothing."""
        found, now = self._found(call), self._monotonic()
        needs: list[tuple[Kind, tuple[tuple[str, Meter], ...], float]] = [
            ("requests", found.requests, 1.0),
            ("tokens", found.tokens, self._tokens(call)),
        ]
        return [
            {
                "scope": scope,
                "kind": kind,
                "limit": meter.per_minute,
                "left": max(0, math.floor(meter.left(now) + 1e-9)),
                "needs": need,
                "enough": meter.per_minute > 0
                and meter.left(now) >= (meter.per_minute / 2 if call.background else min(need, meter.per_minute)),
            }
            for kind, limits, need in needs
            for scope, meter in limits
        ]

    @staticmethod
    def _tokens(call: Call) -> float:
        return float(call.size // _BYTES_PER_TOKEN + asked_output(call, _TYPICAL_OUTPUT))

    def _leave_half(self, limits: tuple[tuple[str, Meter], ...], kind: Kind) -> None:
        """What nobody waits for never takes the second half of a limit. Raises RateLimited."""
        now = self._monotonic()
        for scope, meter in limits:
            if meter.left(now) < meter.per_minute / 2:
                raise self._refusal(scope, meter, meter.per_minute / 2, kind)

    async def _take(self, limits: tuple[tuple[str, Meter], ...], need: float, kind: Kind) -> None:
        short: tuple[str, Meter] | None = None
        for _ in range(_TRIES):
            now = self._monotonic()
            short = next((one for one in limits if not one[1].has(need, now)), None)
            if short is None:
                for _, meter in limits:
                    meter.take(need)
                return
            if self._keeper is None:
                break
            await self._keeper.obtain(
                [meter for _, meter in limits if isinstance(meter, Purse) and not meter.has(need, now)], need
            )
        assert short is not None
        raise self._refusal(*short, need, kind)

    def _refusal(self, scope: str, meter: Meter, need: float, kind: Kind) -> RateLimited:
        now = self._monotonic()
        words, letters = _SHORT[kind]
        if not meter.per_minute:
            closed = RateLimited(
                f"{scope} is switched off: its limit on {words} ({letters}) is 0 until somebody raises it.",
                headers=(("x-should-retry", "false"),),
            )
            closed.kind = kind
            return closed
        wait = max(0.001, meter.wait(need, now))
        used = meter.per_minute - max(0.0, meter.left(now))
        error = RateLimited(
            f"Rate limit reached for {scope} on {words} ({letters}): Limit {meter.per_minute:.0f}, Used {used:.0f}, "
            f"Requested {need:.0f}. Please try again in {told(wait)}.",
            headers=(("retry-after", str(math.ceil(wait))), ("retry-after-ms", str(math.ceil(wait * 1_000)))),
        )
        error.kind = kind
        return error

    def _lines(self, kind: Kind, limits: tuple[tuple[str, Meter], ...]) -> Lines:
        if not limits:
            return ()
        now = self._monotonic()
        left, meter = min(((meter.left(now), meter) for _, meter in limits), key=lambda one: one[0])
        lines = (
            (f"x-ratelimit-limit-{kind}", f"{meter.per_minute:.0f}"),
            (f"x-ratelimit-remaining-{kind}", str(max(0, math.floor(left + 1e-9)))),
        )
        if not meter.per_minute:
            return lines
        return (*lines, (f"x-ratelimit-reset-{kind}", told(meter.wait(meter.per_minute, now))))

    def _found(self, call: Call) -> _Found:
        """The limits `call` falls under, remembered while they stand."""
        who, asked = call.principal, call.directives
        asker = (who.team, who.project, who.key_id, asked.user, call.model, asked.tags)
        found = self._of.get(asker)
        if found is None:
            if len(self._of) >= _MOST_ASKERS:
                self._of.clear()
            scopes = scopes_of(who.team, who.project, who.key_id, asked.user, self._names(call.model), asked.tags)
            limits = [self._standing[scope] for scope in scopes if scope in self._standing]
            found = self._of[asker] = _Found(
                tuple((one.rate.scope, one.requests) for one in limits if one.requests is not None),
                tuple((one.rate.scope, one.tokens) for one in limits if one.tokens is not None),
            )
        return found


def configured(settings: Settings) -> list[Rate]:
    """The limits of the configuration file."""
    given = [one for one in settings.budgets if one.rpm is not None or one.tpm is not None]
    return [stored.check(Rate(scope=one.scope, rpm=one.rpm, tpm=one.tpm)) for one in given]


def names_of(catalog: Catalog, model: str) -> tuple[str, ...]:
    """The names a model asked for goes by before anybody is asked: its own, and those of the first of its route."""
    try:
        route = catalog.resolve(model)
    except NotFound:
        return (model,)
    first = route.targets[0]
    return tuple(dict.fromkeys((model, first.model, str(first))))
