"""`/ui/savings`: what was not spent, where that came from, and what finding it out has cost.

Knows: which amounts belong together. Does not know: SQL, how a wrong hit is found (`gateway.routes.cache_stats`).
"""

from litestar import Response, get
from litestar.types import ControllerRouterHandler
from msgspec import Struct

from gateway.db.kept import kept_from
from gateway.db.queries import Queries
from gateway.db.rows import UsageRow
from gateway.routes.cache_stats import statistics
from gateway.routes.spend_page import presets
from gateway.routes.spend_view import View, read_view, starts_of
from gateway.routes.usage import reach
from gateway.routes.visitor import Visitor, VisitorDep, page_router, spreadsheet
from gateway.web.sheet import Cell
from policies.money import dollars

_SOURCES = (
    ("exact", "Exact hits", "The very same request had been answered before."),
    ("semantic", "Hits by meaning", "A request that means the same had been answered before."),
    ("shared", "Shared answers", "An identical request was under way; one answer served all."),
)


class Part(Struct, frozen=True, kw_only=True):
    """One line of the sum, nano-USD; costs are negative."""

    name: str
    meaning: str
    amount: int
    count: int | None = None


class Day(Struct, frozen=True, kw_only=True):
    """What each source saved on one day, nano-USD, in the order of the page; `discount`, `routed` as in `Savings`."""

    label: str
    amounts: list[int]
    discount: int
    routed: int

    @property
    def saved(self) -> list[int]:
        return [*self.amounts, self.discount, self.routed]


class Savings(Struct, frozen=True, kw_only=True):
    """`parts` add up to `net`, what reuse saved as every page says it; `discount`: providers' own, beside it.

    `routed`: what choosing among the places of a route saved, also beside it; negative where it cost more.
    """

    parts: list[Part]
    net: int
    discount: int
    routed: int
    spent: int
    days: list[Day]


async def savings(queries: Queries, view: View, where: dict[str, str], since: float) -> Savings:
    """From the requests' own rows: what each hit would have cost, as priced when it was served.

    `since`: from when on sums are kept. Raises Pruned for a view that begins before.
    """
    start, end = view.span()
    await queries.require_kept(start, since)
    total = (await queries.usage((), start, end, where, latencies=False))[0]
    by_source = {
        row.group["source"]: row for row in await queries.usage(["source"], start, end, where, latencies=False)
    }
    parts = [_part(by_source.get(key), name, meaning) for key, name, meaning in _SOURCES]
    parts.append(
        Part(
            name="Wrong hits",
            meaning="Taken back by feedback or audits: a wrong answer saves nothing.",
            amount=total.corrected_nano,
        )
    )
    parts.append(
        Part(
            name="Audits",
            meaning="Hits that were answered afresh to see whether they were right.",
            amount=-total.audit_nano,
            count=total.audits,
        )
    )
    parts.append(
        Part(
            name="Embedding",
            meaning="The encoder's time, at the price of its hour (cache.encoder_hour_usd).",
            amount=-total.embed_nano,
        )
    )
    starts = starts_of(view)
    found = await queries.series([*(at for _, at in starts), end], ["source"], where)
    days = [
        Day(
            label=label,
            amounts=[_saved(groups, key) for key, _, _ in _SOURCES],
            discount=sum(row.discount_nano for row in groups),
            routed=sum(row.routed_nano for row in groups),
        )
        for (label, _), groups in zip(starts, found, strict=True)
    ]
    net = sum(part.amount for part in parts)
    beside = {"discount": total.discount_nano, "routed": total.routed_nano}
    return Savings(parts=parts, net=net, spent=total.cost_nano, days=days, **beside)


def _part(row: UsageRow | None, name: str, meaning: str) -> Part:
    return Part(name=name, meaning=meaning, amount=row.saved_nano if row else 0, count=row.requests if row else 0)


def _saved(groups: list[UsageRow], source: str) -> int:
    return sum(row.saved_nano for row in groups if row.group["source"] == source)


async def _seen(visitor: Visitor) -> tuple[View, Savings, float]:
    """The view that was asked for, what it has, and from when on sums are kept."""
    await visitor.services.ledger.catch_up()
    asked = {str(name): str(value) for name, value in visitor.request.query_params.items()}
    asked = {name: asked[name] for name in ("from", "to", "zone") if name in asked}
    database = visitor.services.database
    since = await kept_from(database)
    view = read_view(asked, visitor.services.now(), since)
    return view, await savings(Queries(database), view, reach(visitor.principal), since), since


@get("/savings", opt={"role": "viewer"})
async def savings_page(visitor: VisitorDep) -> Response[bytes]:
    """Where savings came from, less what they cost, per day, with the measured share of wrong hits beside them."""
    view, found, since = await _seen(visitor)
    told = await statistics(visitor.services, visitor.principal)
    return visitor.page(
        "savings.html",
        view=view,
        found=found,
        sources=[name for _, name, _ in _SOURCES],
        presets=presets(view, visitor.services.now(), since),
        wrong=told.total.wrong_hits,
        allowed=visitor.services.settings.cache.max_wrong_hit_rate,
    )


@get("/savings.csv", opt={"role": "viewer"})
async def savings_csv(visitor: VisitorDep) -> Response[bytes]:
    """The days of this view."""
    view, found, _ = await _seen(visitor)
    columns = ["day", *(f"{key}_usd" for key, _, _ in _SOURCES), "provider_cache_usd", "routing_usd"]
    rows: list[list[Cell]] = [[day.label, *map(dollars, day.saved)] for day in found.days]
    return spreadsheet(columns, rows, f"savings-{view.first}-{view.last}")


def route_handlers() -> list[ControllerRouterHandler]:
    return [page_router("/ui", [savings_page, savings_csv])]
