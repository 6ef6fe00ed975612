"""What pages and the API say of a time of which rows or sums were pruned (`retention`): that it is gone, and no 0."""

from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import pytest

from gateway.kept_settings import RetentionSettings
from gateway.ledger import sums
from gateway.ledger.closing import Months, NotClosable
from gateway.ledger.retention import Retention, kept
from policies.money import Usage
from policies.months import Blocker
from tests.clock import FrozenClock
from tests.unit.control.house import House, happened, house, request_row
from tests.unit.control.test_pages import sign_in
from tests.unit.exports.books import at, entry, post

MINUTES_OF_A_DAY = 1_440
Keeping = Callable[..., AbstractAsyncContextManager[House]]


@pytest.fixture
def keeping(tmp_path: Path, clock: FrozenClock) -> Keeping:
    """A house of forty days with a request each, up to 2026-09-21, that was pruned to these days."""

    @asynccontextmanager
    async def made(**days: int) -> AsyncGenerator[House, None]:
        async with house(tmp_path, clock) as home:
            rows = [request_row(clock, number=day * MINUTES_OF_A_DAY + 5, cost_nano=7) for day in range(40)]
            await happened(home.services.database, rows)
            await sums.make_days(home.services.database, clock.now())
            settings = home.services.settings.model_copy(update={"retention": RetentionSettings(**days)})
            home.services.settings = settings
            await Retention(home.services.database, kept(settings), now=clock.now).prune()
            yield home

    return made


async def test_what_was_spent_in_days_that_went_is_not_told_as_nothing(keeping: Keeping) -> None:
    """Spend, savings and costs of a pruned month read 0 USD beside a statement that had it."""
    async with keeping(requests=10, hours=10, days=30) as home, home.client() as admin, home.client(None) as visitor:
        await sign_in(visitor)
        for path in (
            "/ui/spend?from=2026-08-12&to=2026-09-21",
            "/ui/spend.csv?from=2026-08-12&to=2026-09-21",
            "/ui/savings?from=2026-08-12&to=2026-09-21",
            "/ui/savings/whatif?month=2026-08&cache=off",
        ):
            gone = await visitor.get(path)
            assert gone.status_code == 400, path
            assert "kept since 2026-08-22" in gone.text, path
        for path in (
            "/api/v1/usage?from=2026-08-12",
            "/api/v1/usage/coverage?month=2026-08",
            "/v1/organization/costs?start_time=1786492800",
        ):
            refused = await admin.get(path)
            assert (refused.status_code, refused.json()["error"]["code"]) == (400, "pruned"), path
        now = await visitor.get("/ui/spend?from=2026-09-01&to=2026-09-21")
        assert now.status_code == 200
        assert "What was spent before is not kept any more." in now.text
        assert (await visitor.get("/ui/spend.csv?from=2026-09-01&to=2026-09-21")).text.rstrip().endswith(",")


async def test_prices_can_be_read_where_rows_are_kept_for_a_week(keeping: Keeping) -> None:
    """Which models are in use is asked of 30 days; with `retention.requests` of fewer the price book was a 400."""
    async with keeping(requests=7) as home, home.client() as admin, home.client(None) as visitor:
        await sign_in(visitor)
        for path in ("/ui/prices", "/ui/prices.csv", "/ui/calculator", "/ui/calculator.csv", "/ui/savings/whatif"):
            assert (await visitor.get(path)).status_code == 200, path
        for path in ("/api/v1/prices", "/api/v1/prices/check", "/api/v1/prices/break-even"):
            assert (await admin.get(path)).status_code == 200, path


async def test_a_month_that_pruning_has_cut_into_is_told_and_sealed_as_what_it_is(keeping: Keeping) -> None:
    """Its statement said 0 requests and 0 USD saved, shared by requests became shared evenly, and it was sealed so."""
    august = at(2026, 8, 15)
    async with keeping(requests=10, hours=10, days=30) as home, home.client() as admin, home.client(None) as visitor:
        rows = [entry(n, august + n, Usage(prompt=1_000), team=["acme", "acme", "acme", "beta"][n]) for n in range(4)]
        await post(home.services.database, rows)
        wanted = {"split": "requests", "from_month": "2026-08", "amount_usd": "4"}
        assert (await admin.put("/api/v1/shared-costs/cluster", json=wanted)).status_code == 200
        for path in ("/api/v1/months/2026-08", "/api/v1/months/2026-08/close"):
            refused = await (admin.post(path) if path.endswith("close") else admin.get(path))
            assert "`retention.days`" in refused.text, path
        assert refused.status_code == 409
        closing = {"force": True, "reason": "closed late"}
        for state in ("open", "sealed"):
            told = (await admin.get("/api/v1/months/2026-08/statement")).json()
            assert (told["state"], told["pruned"], told["total"]["requests"]) == (state, True, None)
            acme, beta = told["teams"]
            assert (acme["own_usd"], acme["net_saved_usd"], acme["hits"]) == ("0.00045", None, None)
            assert [team["shared"][0]["amount_usd"] for team in (acme, beta)] == ["3", "1"]
            await sign_in(visitor)
            page = (await visitor.get("/ui/statements/2026-08")).text
            assert "Costs that are shared by requests are shared by the attempts of the ledger" in page
            if state == "open":
                assert (await admin.post("/api/v1/months/2026-08/close", json=closing)).status_code == 200
        assert (await admin.post("/api/v1/ledger/verify")).json() == {"agrees": True, "problems": []}


async def test_pages_open_with_what_is_kept_of_the_month(keeping: Keeping) -> None:
    """With `retention.days` below 31 the spend and savings pages were a 400 before anybody had chosen anything."""
    async with keeping(requests=5, hours=10, days=10) as home, home.client(None) as visitor:
        await sign_in(visitor)
        for path in ("/ui/spend", "/ui/savings"):
            page = await visitor.get(path)
            assert page.status_code == 200, path
            assert "from 2026-09-11 to" in page.text, path
            assert "Last month" not in page.text, path  # a link to a 400
        apia = await visitor.get("/ui/spend?zone=Pacific/Apia")  # 2026-09-11T00:00Z lies within the 11th there
        assert 'value="2026-09-12"' in apia.text


async def test_the_first_page_says_of_which_days_it_knows_nothing(keeping: Keeping) -> None:
    """The month to date was told without the days that had gone, and a forecast was made of that."""
    async with keeping(requests=5, hours=5, days=10) as home, home.client(None) as visitor:
        await sign_in(visitor)
        page = (await visitor.get("/ui")).text
        assert "what was before 2026-09-11 is not kept any more and left out" in page
        assert "At this pace the month" not in page
        assert "left out" not in (await visitor.get("/ui?period=7d")).text


async def test_usage_that_goes_while_a_month_is_closed_is_not_sealed_as_whole(keeping: Keeping) -> None:
    """Between looking for what keeps a month open and adding it up another process may prune."""
    async with keeping(requests=10, hours=10, days=30) as home:
        months = Months(home.services.database, now=lambda: home.clock.now())
        months.blockers = nothing_found
        with pytest.raises(NotClosable, match=r"retention\.days"):
            await months.close("2026-08", "ada")
        seal = await months.seal("2026-08")
        assert seal is not None
        assert seal.digest is None


async def nothing_found(month: str) -> list[Blocker]:
    """What was true a moment ago."""
    return []
