"""`/api/v1/cache/stats`: how far the cache can be trusted and what it is worth, per tenant and model.

Knows: counts and measurements of `cache`, money and decisions of the request log, and how the two are told apart by
name. Does not know: how an answer is found, judged or learned about, pages.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct

from cache.trust import pooled
from cache.types import Group, ScopeStats, Trust
from engine.api import EngineError
from gateway.auth import within
from gateway.call import Principal
from gateway.db.decisions import Decision, decisions, verdicts
from gateway.db.queries import Queries
from gateway.db.rows import UsageRow
from gateway.db.usage import MOST_GROUPS
from gateway.parts import aliases
from gateway.routes import shapes
from gateway.routes.usage import reach, since_of
from gateway.services import Services
from gateway.settings import Settings
from policies.money import usd
from policies.reuse import Budget
from policies.tuning import wilson, within_reach

Key = tuple[str, str, str]
DAYS = 7.0
_MOST_SHADOWED = 5_000
_GROUP = ("team", "project", "model")
_SUMMED = ("requests", "cost_nano", "saved_nano", "corrected_nano", "audit_nano", "embed_nano")
_HITS = ("hits_exact", "hits_semantic", "hits_shared")
_MARKS = {"hit-exact": "hits_exact", "hit-semantic": "hits_semantic", "shared": "hits_shared", "miss": None}


class Measured(Struct, kw_only=True):
    """The share of wrong hits among the judged ones, with its 95 % interval; all null while nothing was judged."""

    judged: int
    wrong: int
    rate: float | None
    low: float | None
    high: float | None


class TrustView(Struct, kw_only=True):
    """What was compared since the store was first filled. `audited` hits were asked again, `audited_wrong` of them were
    wrong, `undecided` ones could not be told; `explored` misses were compared, `explored_same` would have been right.
    `quarantined` spots, `aliases`: made so far. `judge_flip_rate`: how often the judge is known to err.
    """

    audited: int = 0
    audited_wrong: int = 0
    undecided: int = 0
    reported_wrong: int = 0
    confirmed: int = 0
    explored: int = 0
    explored_same: int = 0
    quarantined: int = 0
    aliases: int = 0
    alerts: int = 0
    judge_flip_rate: float | None = None


class MoneyView(Struct, kw_only=True):
    """USD since `from`: what hits saved, what feedback took back of that, what audits and the encoder cost, and
    what is left.

    `shadow_hits` more could have been served within both budgets where the cache only watched, saving `shadow_usd`.
    """

    saved_usd: str = "0"
    corrected_usd: str = "0"
    audit_usd: str = "0"
    embed_usd: str = "0"
    net_saved_usd: str = "0"
    shadow_hits: int = 0
    shadow_usd: str = "0"


class ScopeView(Struct, kw_only=True):
    """One tenant's model. Look-ups and hits of all workers since `since`; `hits_shared` were given the answer of an
    identical request under way. `kept`, and `misses` by reason, are those of one process since it started, the one that
    answers this. `entries` is what the store holds now, null while it does not answer.

    `max_wrong_hit_rate` is the budget that `wrong_hits` is held against; `braked`: serving by meaning is stopped
    because the budget was proved broken.
    """

    team: str
    project: str
    model: str
    entries: int | None
    lookups: int
    hits_exact: int
    hits_semantic: int
    hits_shared: int
    hit_rate: float | None
    kept: int
    misses: dict[str, int]
    wrong_hits: Measured
    max_wrong_hit_rate: float
    braked: bool
    trust: TrustView
    money: MoneyView


class StatsAnswer(Struct, kw_only=True):
    """`mode` and both budgets as configured; one row per tenant and model. `since`: from when money and look-ups are
    counted.
    """

    mode: str
    policy: str
    max_error_rate: float
    max_wrong_hit_rate: float
    since: str
    data: list[ScopeView]
    total: ScopeView


class Worth(Struct):
    """Nano-USD of one group."""

    saved: int = 0
    corrected: int = 0
    audit: int = 0
    embed: int = 0
    shadow_hits: int = 0
    shadow: int = 0

    def add(self, other: "Worth") -> None:
        for name in self.__struct_fields__:
            setattr(self, name, getattr(self, name) + getattr(other, name))


class Looked(Struct):
    """How often the cache was asked about one group, and how often it had an answer."""

    lookups: int = 0
    hits_exact: int = 0
    hits_semantic: int = 0
    hits_shared: int = 0

    @property
    def rate(self) -> float | None:
        return _share(self.hits_exact + self.hits_semantic + self.hits_shared, self.lookups)

    def count(self, mark: str, requests: int) -> None:
        """Requests the cache was not asked about, or only told to forget what it had, were no look-ups."""
        if mark not in _MARKS:
            return
        self.lookups += requests
        if (name := _MARKS[mark]) is not None:
            setattr(self, name, getattr(self, name) + requests)


class Names:
    """The cache calls a model by where it leads (`local/demo`), the request log by what was asked for (`chat`)."""

    def __init__(self, settings: Settings) -> None:
        try:
            self._led = dict(aliases(settings))
        except EngineError:  # the engine's folder is gone: its short name leads nowhere then
            self._led = {}
        self._led |= {name: ",".join(entry.to for entry in model.route) for name, model in settings.models.items()}

    def key(self, team: str, project: str, asked: str) -> Key:
        return team, project, self._led.get(asked, asked)


def interval(wrong: int, judged: int) -> Measured:
    """Wilson's, null where nothing was judged."""
    found = wilson(wrong, judged)
    if found.rate is None:
        return Measured(judged=0, wrong=0, rate=None, low=None, high=None)
    return Measured(judged=judged, wrong=wrong, rate=found.rate, low=found.low, high=found.high)


async def statistics(services: Services, principal: Principal, days: float = DAYS) -> StatsAnswer:
    """What the caller may see of every tenant and model, and the sum."""
    await services.ledger.catch_up()
    since = since_of(services, days)
    names = Names(services.settings)
    people = await _people(services, names)
    money, looked = await _summed(services, principal, since, names)
    worth = await _worth(services, principal, since, names, money)
    known = [Group(*key) for key in {**worth, **looked, **people}]
    groups = await services.cache.stats(known) if services.cache is not None else []
    if services.cache is not None:
        groups += _elsewhere(groups, looked)
    chosen = services.settings.cache
    allowed = chosen.max_wrong_hit_rate
    rows: list[ScopeView] = []
    trusts: list[Trust] = []
    told: list[bool] = []
    for group in groups:
        if within(principal, group.team):
            key = (group.team, group.project, group.model)
            asked = looked.get(key, Looked())
            rows.append(_scope_view(group, people.get(key, []), worth.get(key, Worth()), asked, allowed))
            told += people.get(key, [])
            trusts += [] if group.trust is None else [group.trust]
    wrong_hits = _measured(pooled(trusts, chosen.max_wrong_hit_rate), told)
    return StatsAnswer(
        mode=chosen.mode,
        policy=chosen.policy,
        max_error_rate=chosen.max_error_rate,
        max_wrong_hit_rate=chosen.max_wrong_hit_rate,
        since=shapes.moment(since) or "",
        data=rows,
        total=_total(rows, worth.values(), wrong_hits, chosen.max_wrong_hit_rate),
    )


def _elsewhere(groups: Sequence[ScopeStats], looked: Mapping[Key, Looked]) -> list[ScopeStats]:
    """Those that only other processes, or this one before it was started anew, were asked for, and hold nothing."""
    here = {(group.team, group.project, group.model) for group in groups}
    entries = None if any(group.entries is None for group in groups) else 0
    return [
        ScopeStats(team=team, project=project, model=model, entries=entries)
        for (team, project, model), found in sorted(looked.items())
        if found.lookups and (team, project, model) not in here
    ]


async def _people(services: Services, names: Names) -> dict[Key, list[bool]]:
    """Whether each hit that a person judged was wrong."""
    found: dict[Key, list[bool]] = defaultdict(list)
    for said in (await verdicts(services.database)).values():
        found[names.key(said.team, said.project, said.model)].append(said.wrong)
    return found


async def _summed(
    services: Services, principal: Principal, since: float, names: Names
) -> tuple[dict[Key, list[UsageRow]], dict[Key, Looked]]:
    """Money and look-ups of the requests' sums: those know every worker and host, and no restart."""
    queries, until, where = Queries(services.database), services.now() + 1, reach(principal)
    money: dict[Key, list[UsageRow]] = defaultdict(list)
    looked: dict[Key, Looked] = defaultdict(Looked)
    rows = await queries.usage([*_GROUP, "cache"], since, until, where, latencies=False, measures=_SUMMED)
    for row in rows:
        key = names.key(*(row.group[name] for name in _GROUP))
        looked[key].count(row.group["cache"], row.requests)
        money[key].append(row)
    if len(rows) >= MOST_GROUPS:  # the dearest come first: hits, which are all that saves, would be left out
        money.clear()
        for row in await queries.usage(_GROUP, since, until, where, latencies=False, measures=_SUMMED):
            money[names.key(*(row.group[name] for name in _GROUP))].append(row)
    return money, looked


async def _worth(
    services: Services, principal: Principal, since: float, names: Names, money: Mapping[Key, list[UsageRow]]
) -> dict[Key, Worth]:
    found: dict[Key, Worth] = defaultdict(Worth)
    requests: dict[Key, int] = defaultdict(int)
    for key, rows in money.items():
        for row in rows:
            found[key].add(_money(row))
            requests[key] += row.requests
    chosen = services.settings.cache
    budget = Budget(max_error_rate=chosen.max_error_rate, max_wrong_hit_rate=chosen.max_wrong_hit_rate)
    team = reach(principal).get("team")
    log = await decisions(services.database, since, team=team, reason="shadow", most=_MOST_SHADOWED)
    shadowed: dict[Key, list[Decision]] = defaultdict(list)
    for one in log.decisions:
        shadowed[names.key(one.team, one.project, one.model)].append(one)
    for key, found_there in shadowed.items():
        hits, saved = _shadowed(found_there, requests[key], budget, watching=chosen.mode == "shadow")
        found[key].add(Worth(shadow_hits=hits, shadow=saved))
    return found


def _money(row: UsageRow) -> Worth:
    return Worth(saved=row.saved_nano, corrected=row.corrected_nano, audit=row.audit_nano, embed=row.embed_nano)


def _shadowed(missed: list[Decision], requests: int, budget: Budget, *, watching: bool) -> tuple[int, int]:
    """What a mode that only watches kept back was decided; a scope that has not learned enough is estimated."""
    if not watching:
        return within_reach([one.seen for one in missed], requests, budget)
    decided = [
        one.seen.worth
        for one in missed
        if one.seen.risk is not None and (one.threshold is None or one.seen.risk <= one.threshold)
    ]
    return len(decided), sum(decided)


def _scope_view(group: ScopeStats, told: list[bool], worth: Worth, looked: Looked, budget: float) -> ScopeView:
    return ScopeView(
        team=group.team,
        project=group.project,
        model=group.model,
        entries=group.entries,
        lookups=looked.lookups,
        hits_exact=looked.hits_exact,
        hits_semantic=looked.hits_semantic,
        hits_shared=looked.hits_shared,
        hit_rate=looked.rate,
        kept=group.kept,
        misses=group.misses,
        wrong_hits=_measured(group.trust, told),
        max_wrong_hit_rate=budget,
        braked=group.trust is not None and group.trust.braked,
        trust=_trust(group.trust, told),
        money=_money_view(worth),
    )


def _measured(trust: Trust | None, told: list[bool]) -> Measured:
    """By audits, corrected for the judge's errors, where there were any; else by what people said."""
    if trust is None or trust.rate is None:
        return interval(sum(told), len(told))
    wrong, judged = trust.audited_wrong, trust.audited
    if not judged:
        wrong, judged = trust.reported_wrong, trust.reported_wrong + trust.confirmed
    return Measured(judged=judged, wrong=wrong, rate=trust.rate, low=trust.low, high=trust.high)


def _trust(trust: Trust | None, told: list[bool]) -> TrustView:
    if trust is None:
        return TrustView(reported_wrong=sum(told), confirmed=len(told) - sum(told))
    return TrustView(
        audited=trust.audited,
        audited_wrong=trust.audited_wrong,
        undecided=trust.undecided,
        reported_wrong=trust.reported_wrong,
        confirmed=trust.confirmed,
        explored=trust.explored,
        explored_same=trust.explored_same,
        quarantined=trust.quarantines,
        aliases=trust.aliases,
        alerts=trust.alerts,
        judge_flip_rate=trust.flips / trust.audited if trust.audited else None,
    )


def _money_view(worth: Worth) -> MoneyView:
    return MoneyView(
        saved_usd=usd(worth.saved),
        corrected_usd=usd(worth.corrected),
        audit_usd=usd(worth.audit),
        embed_usd=usd(worth.embed),
        net_saved_usd=usd(worth.saved + worth.corrected - worth.audit - worth.embed),
        shadow_hits=worth.shadow_hits,
        shadow_usd=usd(worth.shadow),
    )


def _total(rows: list[ScopeView], worth: Iterable[Worth], wrong_hits: Measured, budget: float) -> ScopeView:
    """Money of everything the caller may see, also where nothing is kept any more."""
    misses: dict[str, int] = defaultdict(int)
    for row in rows:
        for reason, count in row.misses.items():
            misses[reason] += count
    money = Worth()
    for one in worth:
        money.add(one)
    kept = [row.entries for row in rows]
    looked = Looked(**{name: sum(getattr(row, name) for row in rows) for name in ("lookups", *_HITS)})
    return ScopeView(
        team="",
        project="",
        model="",
        entries=None if any(held is None for held in kept) else sum(held or 0 for held in kept),
        lookups=looked.lookups,
        hits_exact=looked.hits_exact,
        hits_semantic=looked.hits_semantic,
        hits_shared=looked.hits_shared,
        hit_rate=looked.rate,
        kept=sum(row.kept for row in rows),
        misses=dict(misses),
        wrong_hits=wrong_hits,
        max_wrong_hit_rate=budget,
        braked=any(row.braked for row in rows),
        trust=_trust_total([row.trust for row in rows]),
        money=_money_view(money),
    )


def _trust_total(rows: list[TrustView]) -> TrustView:
    counted = [name for name in TrustView.__struct_fields__ if name != "judge_flip_rate"]
    sums = {name: sum(getattr(row, name) for row in rows) for name in counted}
    flips = sum((row.judge_flip_rate or 0.0) * row.audited for row in rows)
    return TrustView(**sums, judge_flip_rate=flips / sums["audited"] if sums["audited"] else None)


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None
