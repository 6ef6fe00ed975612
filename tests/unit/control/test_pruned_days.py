"""What pages and the API say of a time of which rows or sums were pruned (`retention`): that it is gone, and no 0."""

from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import pytest

from gateway.kept_settings import RetentionSettings
from gateway.ledger import sums
from gateway.ledger.retention import Retention, kept
from tests.clock import FrozenClock
from tests.unit.control.house import House, happened, house, request_row
from tests.unit.control.test_pages import sign_in

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
