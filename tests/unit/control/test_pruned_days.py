"""What pages and the API say of a time whose sums of days were pruned (`retention.days`): that it is gone, and no 0."""

from pathlib import Path

from gateway.ledger import sums
from gateway.ledger.retention import Kept, Retention
from tests.clock import FrozenClock
from tests.unit.control.house import happened, house, request_row
from tests.unit.control.test_pages import sign_in

MINUTES_OF_A_DAY = 1_440


async def test_what_was_spent_in_days_that_went_is_not_told_as_nothing(tmp_path: Path, clock: FrozenClock) -> None:
    """Spend, savings and costs of a pruned month read 0 USD beside a statement that had it."""
    async with house(tmp_path, clock) as home, home.client() as admin, home.client(None) as visitor:
        rows = [request_row(clock, number=day * MINUTES_OF_A_DAY + 5, cost_nano=7) for day in range(40)]
        database = home.services.database
        await happened(database, rows)
        await sums.make_days(database, clock.now())
        await Retention(database, Kept(requests=10, hours=10, days=30), now=clock.now).prune()
        await sign_in(visitor)
        for path in (
            "/ui/spend?from=2026-08-12&to=2026-09-21",
            "/ui/spend.csv?from=2026-08-12&to=2026-09-21",
            "/ui/savings?from=2026-08-12&to=2026-09-21",
        ):
            gone = await visitor.get(path)
            assert gone.status_code == 400, path
            assert "kept since 2026-08-22" in gone.text
        for path in (
            "/api/v1/usage?from=2026-08-12",
            "/api/v1/usage/coverage?month=2026-08",
            "/v1/organization/costs?start_time=1786492800",
        ):
            refused = await admin.get(path)
            assert (refused.status_code, refused.json()["error"]["code"]) == (400, "pruned"), path
        kept = await visitor.get("/ui/spend?from=2026-09-01&to=2026-09-21")
        assert kept.status_code == 200
        assert "What was spent before is not kept any more." in kept.text
        assert (await visitor.get("/ui/spend.csv?from=2026-09-01&to=2026-09-21")).text.rstrip().endswith(",")
