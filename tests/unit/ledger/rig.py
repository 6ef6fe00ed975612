"""A ledger on a throw-away database, calls to charge, and crashes on demand."""

import asyncio
import contextlib
import shutil
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import text

from gateway.call import Call, Directives, Outcome, Principal
from gateway.db.session import Database
from gateway.ids import uuid7
from gateway.ledger import AttemptPlan, Hold, Ledger, Settlement
from gateway.settings import Settings
from gateway.tasks import Tasks
from policies.budget import Budget
from policies.money import Price, Usage, bound_nano
from tests.clock import FrozenClock

WHO = Principal(key_id="key1", team="acme", project="app")
PRICE = Price(id="test@1", input=1_000, output=1_000, cached_input=1_000, cache_write=1_000)  # 1 nano-USD a token


def call(who: Principal = WHO, *, model: str = "smart", user: str | None = None, **tags: str) -> Call:
    """A request by `who`."""
    asked = Directives(user=user, tags=tuple(sorted(tags.items())))
    return Call(
        id=uuid7(),
        operation="chat",
        principal=who,
        body={"model": model},
        model=model,
        stream=False,
        include_usage=False,
        directives=asked,
        received=0.0,
        at=1_790_000_000.0,
        deadline=1e12,
    )


def plan(
    of: Call, *, most: int = 10, number: int = 1, billing: Any = "bills-anyway", price: Price = PRICE
) -> AttemptPlan:
    """An attempt that costs at most `most` nano-USD: one token of prompt, the rest of output."""
    return AttemptPlan(
        id=f"{of.id}.{number}",
        request_id=of.id,
        provider="openai",
        model="gpt-5-mini",
        price=price,
        reserve_nano=bound_nano(1, most - 1, price),
        input_bound=1,
        max_output=most - 1,
        billing=billing,
    )


def settled(tokens: int, *, source: Any = "provider", ended: Any = "complete") -> Settlement:
    """An end that cost `tokens` nano-USD."""
    return Settlement(
        usage=Usage(prompt=1, completion=tokens - 1), source=source, ended=ended, provider_id="chatcmpl-1"
    )


def budget(scope: str, limit: int, **more: Any) -> Budget:
    return Budget(scope=scope, limit_nano=limit, **more)


def outcome(of: Call, **more: Any) -> Outcome:
    return Outcome(call=of, source="upstream", provider="openai", model="gpt-5-mini", **more)


def settings(home: Path, **more: Any) -> Settings:
    return Settings(home=home, **more)


class Rig:
    """One database and any number of ledgers on it, as processes of one host."""

    def __init__(
        self,
        home: Path,
        url: str | None = None,
        clock: FrozenClock | None = None,
        kind: type[Database] = Database,
    ) -> None:
        self.home = home
        self.clock = clock or FrozenClock()
        self.url = url or f"sqlite:///{home / 'nearhit.db'}"
        self.database = kind(self.url)
        self.tasks = Tasks()
        self.ledgers: list[Ledger] = []

    async def start(self) -> None:
        await self.database.start()

    async def ledger(
        self,
        *,
        background: bool = False,
        database: Database | None = None,
        prepare: Callable[[Ledger], None] | None = None,
        **more: Any,
    ) -> Ledger:
        """One more process. `prepare` sees it before it starts."""
        made = Ledger(
            database or self.database,
            self.home / "journal",
            settings=settings(self.home, **more),
            now=self.clock.now,
            monotonic=self.clock.monotonic,
            tasks=self.tasks,
        )
        if prepare is not None:
            prepare(made)
        await made.start(background=background)
        self.ledgers.append(made)
        return made

    async def charge(self, ledger: Ledger, amount: int = 3, *, of: Call | None = None, most: int = 10) -> Hold:
        """One whole attempt."""
        asked = of or call()
        hold = await ledger.hold(asked, plan(asked, most=most))
        ledger.settle(hold, settled(amount))
        return hold

    def kill(self, ledger: Ledger) -> None:
        """kill -9: what was written to the journal stays, what was in memory is gone."""
        self.ledgers.remove(ledger)
        ledger._journal.close(remove=False)

    async def close(self) -> None:
        for ledger in self.ledgers:
            await ledger.close()
        await self.tasks.finish(5.0)
        await self.database.close()

    async def rows(self, sql: str, **values: Any) -> list[Any]:
        async with self.database.read() as connection:
            return list((await connection.execute(text(sql), values)).mappings())

    async def window(self, scope: str) -> dict[str, int]:
        """The one window of a scope: limit, spent, estimated and held."""
        (row,) = await self.rows("SELECT * FROM budget_window WHERE scope = :scope", scope=scope)
        return {name: row[f"{name}_nano"] for name in ("limit", "spent", "estimated", "held")}


@asynccontextmanager
async def running(
    home: Path,
    url: str | None = None,
    clock: FrozenClock | None = None,
    kind: type[Database] = Database,
) -> AsyncGenerator[Rig, None]:
    rig = Rig(home, url, clock, kind)
    await rig.start()
    try:
        yield rig
    finally:
        with contextlib.suppress(FileNotFoundError):
            await rig.close()
        shutil.rmtree(home / "journal", ignore_errors=True)


async def settle_loop() -> None:
    """Let everything that is ready run."""
    for _ in range(5):
        await asyncio.sleep(0)
