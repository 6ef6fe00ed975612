"""The ledger against a provider's own bill, attempt by attempt.

Knows: the bill's lines (`nearhit scripted` writes one per call), what each label of an entry promises about its amount.
Does not know: how to correct anything; corrections are adjustment entries and a person's decision.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct
from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncConnection

from gateway.db.models import Entry
from gateway.db.session import Database
from gateway.ledger.balances import CHUNK, parameters
from gateway.ledger.checks import prices_by_id, usage_of
from gateway.ledger.openings import UNCONFIRMED
from policies.money import Price, Usage, cost_nano, usd

_MOST_PROBLEMS = 1_000
_LARGEST_LINE = 1 << 20


class BillLine(Struct, frozen=True):
    """One call as the provider billed it. `attempt` is the id that was sent along with it."""

    id: str
    model: str
    prompt_tokens: int
    completion_tokens: int
    ended: str = ""
    attempt: str = ""


class Reconciliation(Struct, kw_only=True):
    """What came out. `problems`: differences that no label explains; `over_nano`: labelled, posted above the bill."""

    calls: int = 0
    exact: int = 0
    estimated: int = 0
    billed_nano: int = 0
    posted_nano: int = 0
    over_nano: int = 0
    problems: list[str] = []
    omitted: int = 0

    @property
    def agrees(self) -> bool:
        return not self.problems

    def tell(self, problem: str) -> None:
        if len(self.problems) < _MOST_PROBLEMS:
            self.problems.append(problem)
        else:
            self.omitted += 1


_decode = msgspec.json.Decoder(BillLine).decode


async def reconcile(database: Database, bill: Path) -> Reconciliation:
    """Compare every line of the bill with its entry, and every exact entry of those providers with the bill.

    Raises OSError for an unreadable file, ValueError that names the line for one that is not a bill's.
    """
    found = Reconciliation()
    matched: set[str] = set()
    providers: set[str] = set()
    async with database.snapshot() as connection:
        prices = await prices_by_id(connection)
        for lines in _pages(bill):
            entries = await _entries(connection, [line.attempt for line in lines])
            for line in lines:
                found.calls += 1
                if line.attempt in matched:
                    found.tell(f"the bill names attempt {line.attempt} twice")
                matched.add(line.attempt)
                entry = entries.get(line.attempt)
                if entry is not None:
                    providers.add(entry.provider)
                _compare(line, entry, prices, found)
        await _unbilled(connection, providers, matched, found)
    return found


def _compare(line: BillLine, entry: Any, prices: dict[str, Price], found: Reconciliation) -> None:
    if entry is None:
        found.tell(f"call {line.id} (attempt {line.attempt or 'unknown'}) was billed and is not in the ledger")
        return
    price = prices.get(entry.price)
    if price is None:
        found.tell(f"attempt {entry.id}: its price {entry.price} is not known")
        return
    exact = entry.source not in UNCONFIRMED and entry.source != "void"
    usage = Usage(prompt=line.prompt_tokens, completion=line.completion_tokens)
    if exact:  # parts of the prompt that are priced apart are known to us only
        usage = msgspec.structs.replace(usage_of(entry), prompt=usage.prompt, completion=usage.completion)
    billed = cost_nano(usage, price)
    found.billed_nano += billed
    found.posted_nano += entry.amount_nano
    if exact:
        found.exact += 1
        if entry.amount_nano != billed:
            found.tell(f"attempt {entry.id}: posted {usd(entry.amount_nano)} USD, billed {usd(billed)} USD")
        return
    found.estimated += 1
    if entry.amount_nano < billed:
        posted = f"{usd(entry.amount_nano)} USD ({entry.source})"
        found.tell(f"attempt {entry.id}: posted {posted}, below the bill of {usd(billed)} USD")
    found.over_nano += max(0, entry.amount_nano - billed)


async def _unbilled(connection: AsyncConnection, providers: set[str], matched: set[str], found: Reconciliation) -> None:
    """Exact entries of the billed providers that the bill does not know; estimates of calls that never arrived are."""
    last = ""
    while providers:
        wanted = (
            select(Entry.id, Entry.amount_nano, Entry.source)
            .where(Entry.provider.in_(sorted(providers)), Entry.id > last)
            .order_by(Entry.id)
            .limit(CHUNK)
        )
        rows = (await connection.execute(wanted)).all()
        for row in rows:
            if row.id in matched or row.source in ("void", "adjust"):
                continue
            found.posted_nano += row.amount_nano
            if row.source in UNCONFIRMED:
                found.estimated += 1
                found.over_nano += row.amount_nano
            else:
                found.tell(f"attempt {row.id}: posted {usd(row.amount_nano)} USD and is not on the bill")
        if len(rows) < CHUNK:
            return
        last = rows[-1].id


async def _entries(connection: AsyncConnection, names: Sequence[str]) -> dict[str, Any]:
    return {row.id: row for row in await connection.execute(_WANTED, {"names": sorted(set(names))})}


def _pages(bill: Path) -> Iterator[list[BillLine]]:
    page: list[BillLine] = []
    with bill.open("rb") as file:
        for number, text in enumerate(iter(lambda: file.readline(_LARGEST_LINE), b""), start=1):
            if not text.strip():
                continue
            try:
                page.append(_decode(text))
            except msgspec.DecodeError as error:
                raise ValueError(f"{bill.name}, line {number}: {error}") from error
            if len(page) == CHUNK:
                yield page
                page = []
    if page:
        yield page


_WANTED = select(*Entry.__table__.columns).where(Entry.id.in_(parameters("names")))
