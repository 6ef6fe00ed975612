"""A time once more from the ledger, under other prices, models or another cache.

Knows: where attempts and hits are read, which price each would have had. Does not know: the rules
(`policies.whatif`), HTTP. Reads the ledger in pages, so its memory does not grow with it.
"""

import asyncio
from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from gateway.call import AUDIT_SCOPE
from gateway.db.queries import Queries
from gateway.db.session import Database
from gateway.ledger.checks import usage_of
from gateway.ledger.entries import pages
from gateway.price_terms import hours_of
from gateway.prices import PriceBook
from policies.money import Price
from policies.whatif import Attempt, CacheWanted, Hits, Replay, Verdict

_SOURCES = ("exact", "semantic", "shared")
_AUDIT = f'"{AUDIT_SCOPE}|'


class Scenario(Struct, frozen=True, kw_only=True):
    """What changes. `prices`: by `provider/model`; `models`: the one that is asked in another's place."""

    prices: Mapping[str, Price]
    models: Mapping[str, str]
    cache: CacheWanted


class Stage(Struct, frozen=True, kw_only=True):
    """Where the ledger is, who knows prices, and the kind of each configured provider and engine."""

    database: Database
    book: PriceBook
    kinds: Mapping[str, str]


class Pricing:
    """The price that each attempt would have had."""

    def __init__(self, stage: Stage, scenario: Scenario) -> None:
        self._stage = stage
        self._models = scenario.models
        self._contracts = {name: (price, hours_of(price)) for name, price in scenario.prices.items()}
        self.met: set[str] = set()

    def target(self, name: str) -> str:
        found = self._models.get(name, name)
        self.met.update((name, found))
        return found

    def at(self, name: str, target: str, instant: float) -> Price | None:
        """The other price of `target`; None where nothing changes, or where there is none."""
        if (contract := self._contracts.get(target)) is not None:
            price, hours = contract
            return hours[price.band(instant) if price.bands else 0]
        if target == name:
            return None
        provider, _, model = target.partition("/")
        return self._stage.book.peek(provider, self._stage.kinds.get(provider, ""), model, instant)


async def replay(
    stage: Stage, scenario: Scenario, span: tuple[float, float], team: str | None = None
) -> tuple[Verdict, list[str]]:
    """What the time would have cost, and the names in the scenario that were never asked.

    Raises ValueError when there are too many models, Pruned when hits would need what is not kept any more.
    """
    pricing, play = Pricing(stage, scenario), Replay(scenario.cache)
    await Queries(stage.database).require_kept(span[0])
    async with stage.database.snapshot() as connection:
        async for rows in pages(connection, *span, team):
            for row in rows:
                _attempt(row, pricing, play)
            await asyncio.sleep(0)  # others have their turn between pages
    where = {} if team is None else {"team": team}
    for source in _SOURCES:
        found = await Queries(stage.database).usage(
            ["provider", "model_used"], *span, {**where, "source": source}, latencies=False
        )
        for row in found:
            name = f"{row.group['provider']}/{row.group['model_used']}"
            target = pricing.target(name)
            hits = Hits(
                provider=row.group["provider"],
                model=row.group["model_used"],
                source=source,
                requests=row.requests,
                prompt=row.prompt,
                completion=row.completion,
                saved=row.saved_nano,
            )
            play.hits(hits, target, pricing.at(name, target, span[1] - 1))
    return play.verdict(), sorted({*scenario.models, *scenario.prices} - pricing.met)


def _attempt(row: Any, pricing: Pricing, play: Replay) -> None:
    if row.source == "void":
        return
    name = f"{row.provider}/{row.model}"
    target = pricing.target(name)
    found = Attempt(
        provider=row.provider,
        model=row.model,
        usage=usage_of(row),
        amount=row.amount_nano,
        bounded=row.source == "upper_bound",
        audit=_AUDIT in row.windows,
        fixed=row.source == "adjust",
    )
    play.attempt(found, target, pricing.at(name, target, row.admitted))
