"""What operators see of the cache: stats, tune and the cache page, over requests that happened."""

import inspect
import re
from collections.abc import AsyncGenerator, Sequence
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest
from sqlalchemy import insert

from cache.semantic import SemanticCache
from cache.store import StoreDown
from cache.store.memory import MemoryStore
from cache.trust import measured, pooled
from cache.types import CacheConfig, Group, Kept, Query, ScopeStats, Trust
from gateway.auth import ADMIN
from gateway.cli import show
from gateway.cli.cache import _hits
from gateway.db.models import Setting
from gateway.db.sums import ROWS_FROM
from gateway.errors import InvalidRequest
from gateway.kept_settings import RetentionSettings
from gateway.routes.cache_page import alarms
from gateway.routes.cache_stats import Names, since_of, statistics
from gateway.routes.cache_tune import tuned
from gateway.settings import ModelSettings, Settings
from gateway.web.why import sentence
from policies.reuse import learned
from policies.reuse import load as load_policy
from tests.clock import FrozenClock
from tests.unit.control.house import House, explained, happened, hit_row, house, request_row

ROOT = Path(__file__).parents[3]
MEASURED = Trust(
    hits=400,
    audited=40,
    audited_wrong=8,
    undecided=2,
    reported_wrong=1,
    confirmed=3,
    explored=90,
    explored_same=30,
    flips=0.8,
    quarantines=4,
    aliases=12,
    alerts=1,
    braked=True,
    rate=0.19,
    low=0.09,
    high=0.33,
    budget=0.05,
)


class Measured(SemanticCache):
    """A cache that was audited."""

    async def stats(self, known: Sequence[Group] = ()) -> list[ScopeStats]:
        rows = await super().stats(known)
        return [msgspec.structs.replace(row, trust=MEASURED) if row.team == "acme" else row for row in rows]


@pytest.fixture
async def home(tmp_path: Path, clock: FrozenClock) -> AsyncGenerator[House, None]:
    cache = Measured(
        MemoryStore(),
        None,
        load_policy("guarded").Policy(),
        config=CacheConfig(mode="exact"),
        now=clock.now,
        monotonic=clock.monotonic,
    )
    await cache.start()
    for team in ("acme", "zeta"):
        query = Query(
            scope=team.encode() * 8, exact=team.encode() * 8, text="x", team=team, project="web", model="local/demo"
        )
        await cache.keep(query, Kept(answer=b"{}", cost_nano=213_000))
    async with house(tmp_path, clock, cache=cache) as found:
        yield found
    await cache.close()


async def log(home: House, clock: FrozenClock) -> None:
    """Hits judged right, a miss that a scope only watched, one that was guarded, one that said nothing."""
    rows = [hit_row(clock, 1), hit_row(clock, 2), request_row(clock, 3), request_row(clock, 4), request_row(clock, 5)]
    await happened(home.services.database, rows)
    near = {"entry": 7, "similarity": 0.95, "confidence": 0.999, "risk": 0.0004, "guard": None}
    for row in rows[:2]:
        told: dict[str, object] = {"entry": 7, "looked": [near], "scope": "s", "judged": {"same": True, "entry": 7}}
        await explained(home.services.database, row["id"], row["at"], told)
    watched: dict[str, object] = {"reason": "shadow", "looked": [near], "scope": "s", "judged": {"same": None}}
    await explained(home.services.database, rows[2]["id"], rows[2]["at"], watched)
    guarded: dict[str, object] = {"reason": "guard", "looked": [{**near, "guard": "number"}], "scope": "s"}
    await explained(home.services.database, rows[3]["id"], rows[3]["at"], guarded)


@pytest.mark.parametrize("since", ["nonsense", "2099-01-01"])
async def test_what_is_wrong_with_a_span_is_told_by_its_own_name(home: House, since: str) -> None:
    """`--since` was given, and the message spoke of `from` and `to`."""
    with pytest.raises(InvalidRequest, match="`since` must") as told:
        await tuned(home.services, ADMIN, "0.01", None, since)
    assert told.value.param == "since"


def test_every_reason_of_a_miss_is_told_in_a_sentence() -> None:
    """ "Reason: unread." on a page sends people to the source, and four words had come without a sentence."""
    named = re.compile(r'(?:reason ?= ?|EncoderDown\(|miss\()"([a-z-]+)"')
    files = [ROOT / "cache" / f"{name}.py" for name in ("meaning", "semantic", "embedder", "learning")]
    files += (ROOT / "policies" / "reuse").glob("*.py")
    words = {word for file in files for word in named.findall(file.read_text("utf-8"))}
    words |= set(re.findall(r'"([a-z]+)"', inspect.getsource(learned.Policy._objection)))
    words -= {"encoder-reads-nothing"}  # of reading two texts, never of a look-up
    assert {"unread", "gone", "brake", "unsure", "encoder-failed"} <= words
    assert {word for word in words if "Reason:" in sentence("miss", word, None, known=True)} == set()


async def test_a_store_that_is_away_holds_an_unknown_number(home: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the midst of an outage "0 kept" reads as a cache that has lost everything."""

    async def away(_: MemoryStore) -> dict[Group, int]:
        raise StoreDown("away")

    monkeypatch.setattr(MemoryStore, "counts", away)
    assert home.services.cache is not None
    await home.services.cache.find(
        Query(scope=b"s" * 32, exact=b"e" * 32, text="x", team="acme", project="app", model="up/m")
    )
    told = await statistics(home.services, ADMIN)
    assert told.data
    assert {row.entries for row in (*told.data, told.total)} == {None}
    assert _hits(msgspec.to_builtins(told.data[0]))[3] == "?"


async def test_stats_tell_what_was_measured_and_what_it_is_worth(home: House, clock: FrozenClock) -> None:
    """One answer holds the rate, its interval, the budget it is held against, and the money on both sides."""
    await log(home, clock)
    async with home.client() as admin:
        told = (await admin.get("/api/v1/cache/stats")).json()
    acme = next(row for row in told["data"] if row["team"] == "acme")
    assert acme["wrong_hits"] == {"judged": 40, "wrong": 8, "rate": 0.19, "low": 0.09, "high": 0.33}
    assert (acme["max_wrong_hit_rate"], acme["braked"]) == (0.05, True)
    assert acme["trust"]["quarantined"] == 4
    assert acme["trust"]["judge_flip_rate"] == pytest.approx(0.02)
    assert acme["money"]["saved_usd"] == "0.000426"
    # One miss was only watched; at a risk of 0.0004 it fits a budget of 1 % of five requests.
    assert (acme["money"]["shadow_hits"], acme["money"]["shadow_usd"]) == (1, "0.000213")
    zeta = next(row for row in told["data"] if row["team"] == "zeta")
    assert zeta["wrong_hits"]["rate"] is None
    assert told["total"]["trust"]["audited"] == 40
    assert told["total"]["money"]["saved_usd"] == "0.000426"


async def test_hits_are_those_of_all_workers_and_the_same_as_in_usage(home: House, clock: FrozenClock) -> None:
    """Each look showed another worker's count since its start, and shared answers were hits in usage only."""
    from tests.unit.control.test_pages import sign_in

    shared = {"source": "shared", "cache": "shared", "cost_nano": 0}
    elsewhere = [
        hit_row(clock, 8, team="omega"),
        request_row(clock, 9, team="omega", **shared),
    ]
    around = [request_row(clock, 6, team="omega", cache="bypass"), request_row(clock, 7, team="omega", cache="audit")]
    await happened(home.services.database, [*elsewhere, *around, request_row(clock, 10, team="omega")])
    async with home.client() as admin, home.client(None) as visitor:
        told = (await admin.get("/api/v1/cache/stats")).json()
        usage = (await admin.get("/api/v1/usage?from=2026-09-01")).json()["total"]
        await sign_in(visitor)
        page = (await visitor.get("/ui/cache")).text
    omega = next(row for row in told["data"] if row["team"] == "omega")
    counts = [omega[name] for name in ("lookups", "hits_exact", "hits_semantic", "hits_shared", "entries")]
    assert counts == [3, 0, 1, 1, 0]
    assert omega["hit_rate"] == pytest.approx(2 / 3)
    assert (told["total"]["lookups"], usage["hits"], usage["requests"]) == (3, 2, 4)
    assert "1 shared the answer of an identical request under way" in page


async def test_the_total_is_corrected_for_the_judge_as_each_row_is(home: House, clock: FrozenClock) -> None:
    """The rows said 18.8 %, the line under them and the first figure of the page 20 %."""
    async with home.client() as admin:
        told = (await admin.get("/api/v1/cache/stats")).json()["total"]["wrong_hits"]
    expected = measured(MEASURED, 0.05)
    assert (told["judged"], told["wrong"]) == (40, 8)
    assert told["rate"] == pytest.approx((0.2 - 0.02) / 0.96)
    assert (told["rate"], told["low"], told["high"]) == (expected.rate, expected.low, expected.high)


def test_several_groups_are_measured_as_one() -> None:
    """What each was audited, judged wrongly and told counts; shares are never averaged."""
    one = Trust(hits=300, audited=30, audited_wrong=6, flips=0.6)
    both = pooled([one, Trust(hits=100, audited=10, audited_wrong=2, flips=0.2)], 0.05)
    assert both is not None
    assert (both.hits, both.audited, both.audited_wrong) == (400, 40, 8)
    assert both.rate == pytest.approx((0.2 - 0.02) / 0.96)
    assert pooled([], 0.05) is None


async def test_a_team_sees_its_own_figures_only(home: House, clock: FrozenClock) -> None:
    """Totals too: a sum over other teams tells what they do."""
    await log(home, clock)
    await happened(home.services.database, [hit_row(clock, 9, team="zeta", saved_nano=10**9)])
    async with home.client(await home.key("viewer", "acme")) as viewer:
        told = (await viewer.get("/api/v1/cache/stats")).json()
        tuned = (await viewer.get("/api/v1/cache/tune")).json()
    assert {row["team"] for row in told["data"]} == {"acme"}
    assert told["total"]["money"]["saved_usd"] == "0.000426"
    assert tuned["requests"] == 5


async def test_tune_replays_the_log_and_says_how_much_there_was(home: House, clock: FrozenClock) -> None:
    """A figure without its data would be taken for a measurement."""
    await log(home, clock)
    async with home.client() as admin:
        told = (await admin.get("/api/v1/cache/tune?budget=0.05,0.01&since=2d")).json()
        for bad in ("budget=x", "budget=2", "budget=", "since=yesterday", "max_wrong_hit_rate=7"):
            assert (await admin.get(f"/api/v1/cache/tune?{bad}")).status_code == 400, bad
        before = (await admin.get("/api/v1/cache/stats")).json()
        assert before == (await admin.get("/api/v1/cache/stats")).json()
    assert (told["requests"], told["explained"], told["weighed"], told["judged"]) == (5, 4, 3, 2)
    assert [row["max_error_rate"] for row in told["data"]] == [0.01, 0.05]
    assert (told["as_it_was"]["hits"], told["as_it_was"]["judged"]) == (2, 2)
    assert told["as_it_was"]["wrong_per_hit"]["rate"] == 0
    assert told["as_it_was"]["wrong_per_hit"]["high"] > 0.5
    assert told["as_it_was"]["saved_usd"] == "0.000426"
    assert any("left out" in warning for warning in told["warnings"])
    assert any("Only 2 near answers were judged" in warning for warning in told["warnings"])


async def test_what_was_asked_before_the_span_is_not_said_to_have_lost_its_explanation(
    home: House, clock: FrozenClock
) -> None:
    """The whole hour in which the span begins was counted, and told to be requests whose explanations are gone."""
    rows = [hit_row(clock, number) for number in range(1, 60)]
    await happened(home.services.database, rows)
    for row in rows:
        await explained(home.services.database, row["id"], row["at"], {"reason": "far", "scope": "s"})
    async with home.client() as admin:
        for minutes in (5, 25, 45):
            since = datetime.fromtimestamp(clock.now() - minutes * 60 - 30, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
            told = (await admin.get(f"/api/v1/cache/tune?since={since}")).json()
            assert (told["requests"], told["explained"]) == (minutes, minutes)
            assert not any("left out" in warning for warning in told["warnings"])


async def test_rows_that_are_kept_for_less_than_a_week_take_no_figures_away(home: House, clock: FrozenClock) -> None:
    """`retention.requests: 3` left stats and the page nothing but an error, as `--days 120` did by the defaults."""
    await log(home, clock)
    async with home.services.database.begin() as connection:
        gone = {"name": ROWS_FROM, "value": str(int(clock.now()) - 3 * 86_400)}
        await connection.execute(insert(Setting).values(gone))
    async with home.client() as admin:
        for days in (7, 120):
            told = await admin.get(f"/api/v1/cache/stats?days={days}")
            assert told.status_code == 200, told.text
            assert told.json()["total"]["money"]["saved_usd"] == "0.000426"
    async with home.client(None) as visitor:
        from tests.unit.control.test_pages import sign_in

        await sign_in(visitor)
        home.services.settings = home.services.settings.model_copy(update={"retention": RetentionSettings(requests=3)})
        for page in (
            "cache",
            "?period=24h",
            "?period=7d",
            "?period=30d",
            "parts/tiles?period=7d",
            "csv/series?period=7d",
        ):
            assert (await visitor.get(f"/ui/{page}")).status_code == 200, page


@pytest.mark.parametrize(("hours", "days", "width"), [(400, 7, 3_600), (0, 300, 3_600), (5, 7, 86_400), (7, 3, 3_600)])
async def test_money_is_counted_from_where_its_sums_are_kept(home: House, hours: int, days: int, width: int) -> None:
    """Sums are by hour, and by day where hours have gone: a span that begins within one cannot be told."""
    kept = RetentionSettings(requests=1, hours=hours, days=0)
    home.services.settings = home.services.settings.model_copy(update={"retention": kept})
    ago = home.services.now() - since_of(home.services, days)
    assert since_of(home.services, days) % width == 0
    assert days * 86_400 <= ago < days * 86_400 + width


async def test_an_unreadable_explanation_is_left_out(home: House, clock: FrozenClock) -> None:
    """An older or newer version wrote other shapes; the page must still come."""
    row = hit_row(clock, 1)
    await happened(home.services.database, [row])
    await explained(home.services.database, row["id"], row["at"], {"looked": "nonsense"})
    async with home.client() as admin:
        assert (await admin.get("/api/v1/cache/tune")).json()["explained"] == 0


async def test_the_page_shows_the_alarm_the_tables_and_their_charts(home: House, clock: FrozenClock) -> None:
    """Who looks at the page must see a broken budget before anything else, and every chart has its table."""
    await log(home, clock)
    await happened(home.services.database, [request_row(clock, 8, cache="audit", tags={"nearhit/audit": "1"})])
    async with home.client(None) as visitor:
        from tests.unit.control.test_pages import sign_in

        await sign_in(visitor)
        page = (await visitor.get("/ui/cache")).text
    assert 'role="alert"' in page
    assert "8 of 40 judged hits were wrong, and people reported 1 (95 %" in page
    assert "braked" in page
    charts = re.findall(r'data-chart="([\w-]+)"', page)
    assert {"trust-table", "hits-table", "found-table", "audits-table", "near-similarity"} <= set(charts)
    for name in charts:
        table = page.split(f'id="{name}"')[1].split("</table>")[0]
        assert table.count("<tr>") > 1, name
    audits = page.split('id="audits-table"')[1].split("</table>")[0]
    assert sum(map(int, re.findall(r'<td class="n">(\d+)</td>', audits))) == 1


async def test_an_interval_that_people_raised_says_so(home: House, capsys: pytest.CaptureFixture[str]) -> None:
    """ "0 of 1 (25 % to 80 %)": where audits found nothing and people much, the figures contradicted each other."""
    told = msgspec.to_builtins(await statistics(home.services, ADMIN))
    show.table(("",) * 11, [_hits(row) for row in told["data"]])
    assert "8 of 40, 1 reported (9.0 % to 33.0 %)" in " ".join(capsys.readouterr().out.split())


async def test_an_alarm_needs_proof(home: House) -> None:
    """One wrong hit of three lies above the budget, but its interval does not."""
    told = await statistics(home.services, ADMIN)
    assert [alarm.scope.team for alarm in alarms(told.data)] == ["acme"]
    (acme,) = [row for row in told.data if row.team == "acme"]
    doubtful = msgspec.structs.replace(
        acme, braked=False, wrong_hits=msgspec.structs.replace(acme.wrong_hits, low=0.01)
    )
    assert alarms([doubtful]) == []


def test_the_log_and_the_cache_name_one_model_alike(tmp_path: Path) -> None:
    """`chat` in the log is `local/demo` in the cache; money under the wrong name would be nobody's."""
    settings = Settings(home=tmp_path, models={"smart": ModelSettings.model_validate({"route": ["a/b", "c/d"]})})
    names = Names(settings)
    assert names.key("acme", "web", "chat") == ("acme", "web", "local/demo")
    assert names.key("acme", "web", "smart") == ("acme", "web", "a/b,c/d")
    assert names.key("", "", "x/y") == ("", "", "x/y")
