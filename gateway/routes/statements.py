"""`/api/v1/months/{month}/statement`: what each team owes for a month; `/api/v1/shared-costs`: what teams share.

Knows: JSON and CSV, who may see and do what. Does not know: how costs are split (`policies.statements`).
"""

from decimal import Decimal
from typing import Annotated, Literal

from litestar import Response, delete, get, put
from litestar.params import FromPath, JSONBody, QueryParameter
from litestar.types import ControllerRouterHandler
from msgspec import Struct, field

from gateway.audit import Asking, Change, noted
from gateway.auth import ORG_WIDE
from gateway.call import Principal
from gateway.db import shared_costs as stored
from gateway.db.session import Also
from gateway.db.shared_costs import SharedCostRow
from gateway.errors import InvalidRequest, NotAllowed, NotFound
from gateway.ledger.statement import Statement, TeamStatement, statement
from gateway.routes import shapes
from gateway.routes.access import CallerDep, control_router
from gateway.routes.months import named, own_team
from gateway.services import Services
from gateway.web.sheet import Cell, csv_bytes
from policies.money import nano, usd
from policies.statements import Split, TeamBill

_MOST_SHARES = 1_000
_LARGEST_WEIGHT = 10**9
_COLUMNS = ("team", "kind", "name", "project", "provider", "model", "requests", "tokens", "amount_usd", "estimated_usd")


class SpentLine(Struct, kw_only=True):
    """A team's own spend on one model in one project. `requests` are attempts."""

    project: str
    provider: str
    model: str
    requests: int
    tokens: int
    amount_usd: str
    estimated_usd: str


class SharedLine(Struct, kw_only=True):
    """A team's part of a shared cost; `share` is a fraction of the whole."""

    name: str
    split: str
    share: float
    amount_usd: str


class AdjustedLine(Struct, kw_only=True):
    """What was booked in this month for an earlier, closed one (`belongs`)."""

    belongs: str
    project: str
    model: str
    amount_usd: str


class TeamView(Struct, kw_only=True):
    """One team's statement. `total_usd` = own + shared + adjustments; savings are told beside it, not taken off.

    From `requests` to `provider_cache_usd` null where usage of the month is not kept any more (`pruned`).
    """

    team: str
    own_usd: str
    shared_usd: str
    adjustments_usd: str
    total_usd: str
    requests: int | None
    hits: int | None
    saved_usd: str | None
    corrected_usd: str | None
    audit_usd: str | None
    embed_usd: str | None
    net_saved_usd: str | None
    provider_cache_usd: str | None
    lines: list[SpentLine]
    shared: list[SharedLine]
    adjustments: list[AdjustedLine]


class Sums(Struct, kw_only=True):
    """The sum of all teams that are shown; `requests` and `net_saved_usd` are null where `pruned`."""

    own_usd: str
    shared_usd: str
    adjustments_usd: str
    total_usd: str
    requests: int | None
    net_saved_usd: str | None


class StatementView(Struct, kw_only=True):
    """The statements of a month, in order of team.

    `pruned`: what was spent is exact, and sums of usage of the month are not kept whole any more (`retention.days`), or
    were not when it was closed by force: what the cache saved is not known, and what is shared by requests is shared by
    the attempts of the ledger.
    """

    month: str
    state: str
    digest: str | None
    pruned: bool
    teams: list[TeamView]
    total: Sums


Team = Annotated[str | None, QueryParameter(max_length=200)]


class SharedCostWanted(Struct, kw_only=True, forbid_unknown_fields=True):
    """Either `amount_usd` a month, or `team`: what that one spends, shared among the others.

    `shares`: team -> weight, a whole number, for the split `fixed`. Months from `from_month` to `until_month`, both
    included; without an end until further notice.
    """

    split: Split
    from_month: str
    amount_usd: str | None = None
    team: str | None = None
    shares: dict[str, int] = field(default_factory=dict)
    until_month: str | None = None


class SharedCostView(Struct, kw_only=True):
    """A cost that teams share. Sealed months keep it as it was when they were closed."""

    name: str
    amount_usd: str | None
    team: str | None
    split: str
    shares: dict[str, int]
    from_month: str
    until_month: str | None
    updated: str | None
    updated_by: str


class SharedCostList(Struct):
    """In order of name."""

    data: list[SharedCostView]


@get("/months/{month_name:str}/statement", opt={"role": "viewer"}, summary="Statements of a month")
async def read_statement(
    caller: CallerDep,
    month_name: FromPath[str],
    team: Team = None,
    form: Annotated[Literal["json", "csv"], QueryParameter(name="format")] = "json",
) -> StatementView | Response[bytes]:
    """What each team owes: its own spend, its part of shared costs, corrections of earlier months; and what it saved.

    Those of a sealed month are as they were when it was closed; all others may still change.
    """
    services = caller.services
    await services.ledger.flush()
    limit = own_team(caller.principal, team)
    found = statement_view(await statement(services.database, named(month_name), services.now(), limit))
    if form == "json":
        return found
    headers = {"content-disposition": f'attachment; filename="nearhit-statement-{month_name}.csv"'}
    return Response(statement_csv(found), media_type="text/csv", headers=headers)


def statement_view(of: Statement) -> StatementView:
    bills, known = [team.bill for team in of.teams], not of.pruned
    return StatementView(
        month=of.month.name,
        state=of.month.state,
        digest=None if of.month.seal is None else of.month.seal.digest,
        pruned=of.pruned,
        teams=[_team_view(team, known=known) for team in of.teams],
        total=Sums(
            own_usd=usd(sum(bill.own_nano for bill in bills)),
            shared_usd=usd(sum(bill.shared_nano for bill in bills)),
            adjustments_usd=usd(sum(bill.adjustments_nano for bill in bills)),
            total_usd=usd(sum(bill.total_nano for bill in bills)),
            requests=sum(bill.facts.requests for bill in bills) if known else None,
            net_saved_usd=usd(sum(bill.facts.net_saved_nano for bill in bills)) if known else None,
        ),
    )


def statement_file(of: Statement) -> bytes:
    """A statement as the CSV that scheduled exports write."""
    return statement_csv(statement_view(of))


def _team_view(of: TeamStatement, *, known: bool) -> TeamView:
    bill, facts = of.bill, of.bill.facts
    return TeamView(
        team=bill.team,
        own_usd=usd(bill.own_nano),
        shared_usd=usd(bill.shared_nano),
        adjustments_usd=usd(bill.adjustments_nano),
        total_usd=usd(bill.total_nano),
        requests=facts.requests if known else None,
        hits=facts.hits if known else None,
        saved_usd=usd(facts.saved_nano) if known else None,
        corrected_usd=usd(facts.corrected_nano) if known else None,
        audit_usd=usd(facts.audit_nano) if known else None,
        embed_usd=usd(facts.embed_nano) if known else None,
        net_saved_usd=usd(facts.net_saved_nano) if known else None,
        provider_cache_usd=usd(facts.discount_nano) if known else None,
        lines=[
            SpentLine(
                project=line.project,
                provider=line.provider,
                model=line.model,
                requests=line.requests,
                tokens=line.tokens,
                amount_usd=usd(line.amount_nano),
                estimated_usd=usd(line.estimated_nano),
            )
            for line in of.spent
        ],
        shared=_shared(bill),
        adjustments=[
            AdjustedLine(belongs=line.belongs, project=line.project, model=line.model, amount_usd=usd(line.amount_nano))
            for line in of.adjusted
        ],
    )


def _shared(bill: TeamBill) -> list[SharedLine]:
    return [
        SharedLine(
            name=part.name,
            split=part.split,
            share=part.weight / part.weights if part.weights else 0.0,
            amount_usd=usd(part.amount_nano),
        )
        for part in bill.parts
    ]


def statement_csv(of: StatementView) -> bytes:
    """One line per line of each statement; the amounts of a team add up to what it owes."""
    rows: list[list[Cell]] = []
    for team in of.teams:
        for line in team.lines:
            words: list[Cell] = [team.team, "own", of.month, line.project, line.provider, line.model]
            rows.append([*words, line.requests, line.tokens, Decimal(line.amount_usd), Decimal(line.estimated_usd)])
        rows += [_shared_row(team.team, part) for part in team.shared]
        for late in team.adjustments:
            words = [team.team, "adjustment", late.belongs, late.project, "", late.model]
            rows.append([*words, None, None, Decimal(late.amount_usd), None])
    return csv_bytes(_COLUMNS, rows)


def _shared_row(team: str, part: SharedLine) -> list[Cell]:
    return [team, "shared", part.name, "", "", "", None, None, Decimal(part.amount_usd), None]


@get("/shared-costs", opt={"role": "finance"}, summary="Shared costs")
async def list_shared(caller: CallerDep) -> SharedCostList:
    """The costs that statements split among teams."""
    return SharedCostList(await shared_costs(caller.services, caller.principal))


@put("/shared-costs/{name:str}", opt={"role": "finance"}, summary="Set a shared cost")
async def put_shared(caller: CallerDep, name: FromPath[str], data: JSONBody[SharedCostWanted]) -> SharedCostView:
    """Counts in every open month from `from_month` on; sealed months stay as they are."""
    return await set_shared(caller, name, data)


@delete("/shared-costs/{name:str}", opt={"role": "finance"}, summary="Take a shared cost out", status_code=204)
async def delete_shared(caller: CallerDep, name: FromPath[str]) -> None:
    """It counts in no open month any more."""
    await take_out_shared(caller, name)


async def shared_costs(services: Services, principal: Principal) -> list[SharedCostView]:
    """In order of name. Raises NotAllowed for a key of one team."""
    _everyone(principal)
    return [_shown(row) for row in await stored.load(services.database)]


async def set_shared(asking: Asking, name: str, data: SharedCostWanted) -> SharedCostView:
    """Set one and note it. Raises InvalidRequest naming the field, NotAllowed for a key of one team."""
    _everyone(asking.principal)
    wanted = _wanted(shapes.name(name, param="name"), data, asking)

    def said(before: SharedCostRow | None) -> Also:
        return noted(asking, Change("shared_cost.set", wanted.name, before=_noted(before), after=_noted(wanted)))

    await stored.put(asking.services.database, wanted, said)
    return _shown(wanted)


async def take_out_shared(asking: Asking, name: str) -> None:
    """Take one out and note it. Raises NotFound, NotAllowed for a key of one team."""
    _everyone(asking.principal)

    def said(before: SharedCostRow) -> Also:
        return noted(asking, Change("shared_cost.delete", name, before=_noted(before)))

    if not await stored.take_out(asking.services.database, name, said):
        raise NotFound(f"There is no shared cost {name[:80]!r}.", code="shared_cost_not_found")


def _everyone(principal: Principal) -> None:
    if principal.team != ORG_WIDE:
        raise NotAllowed("Shared costs concern every team; this key is bound to one.", code="beyond_team")


def _wanted(name: str, data: SharedCostWanted, asking: Asking) -> SharedCostRow:
    named(data.from_month)
    if data.until_month is not None and named(data.until_month) < data.from_month:
        raise InvalidRequest("`until_month` must not lie before `from_month`.", param="until_month")
    if (data.amount_usd is None) == (data.team is None):
        raise InvalidRequest("Give either `amount_usd` or `team`.", param="amount_usd")
    if (data.split == "fixed") != bool(data.shares):
        raise InvalidRequest("`shares` belong to the split `fixed`, and it needs them.", param="shares")
    if any(weight < 0 or weight > _LARGEST_WEIGHT for weight in data.shares.values()):
        raise InvalidRequest(f"`shares` must be whole numbers from 0 to {_LARGEST_WEIGHT}.", param="shares")
    if len(data.shares) > _MOST_SHARES:
        raise InvalidRequest(f"`shares` names more than {_MOST_SHARES} teams.", param="shares")
    try:
        amount = None if data.amount_usd is None else nano(data.amount_usd)
    except ValueError as error:
        raise InvalidRequest(f"`amount_usd`: {error}.", param="amount_usd") from error
    return SharedCostRow(
        name=name,
        amount_nano=amount,
        team=data.team,
        split=data.split,
        shares=data.shares,
        from_month=data.from_month,
        until_month=data.until_month,
        actor=asking.principal.key_id,
        updated=asking.services.now(),
    )


def _shown(row: SharedCostRow) -> SharedCostView:
    return SharedCostView(
        name=row.name,
        amount_usd=None if row.amount_nano is None else usd(row.amount_nano),
        team=row.team,
        split=row.split,
        shares=row.shares,
        from_month=row.from_month,
        until_month=row.until_month,
        updated=shapes.moment(row.updated),
        updated_by=row.actor,
    )


def _noted(row: SharedCostRow | None) -> dict[str, object] | None:
    if row is None:
        return None
    amount = None if row.amount_nano is None else usd(row.amount_nano)
    terms: dict[str, object] = {"amount_usd": amount, "team": row.team, "split": row.split, "shares": row.shares}
    return {**terms, "from_month": row.from_month, "until_month": row.until_month}


def route_handlers() -> list[ControllerRouterHandler]:
    return [control_router("/api/v1", [read_statement, list_shared, put_shared, delete_shared], tags=["Statements"])]
