"""The page of one request: what it says must be what happened."""

from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest

from tests.clock import FrozenClock
from tests.unit.control.house import House, explained, happened, house, request_row
from tests.unit.control.test_pages import sign_in

MISS: dict[str, Any] = {"reason": "far", "route": ["local/demo"]}


@pytest.fixture
async def home(tmp_path: Path, clock: FrozenClock) -> AsyncGenerator[House, None]:
    async with house(tmp_path, clock) as found:
        yield found


async def _page(home: House, explanation: dict[str, Any], **changes: Any) -> str:
    row = request_row(home.clock, 1, **changes)
    await happened(home.services.database, [row])
    await explained(home.services.database, str(row["id"]), float(row["at"]), explanation)
    async with home.client(None) as visitor:
        await sign_in(visitor)
        return (await visitor.get(f"/ui/requests/{row['id']}")).text


def _tried(result: str, request_id: str) -> dict[str, Any]:
    told = {"provider": "local", "model": "demo", "start_ms": 1.0, "end_ms": 9.0, "cost_nano": 87_000}
    return {"id": f"{request_id}.1", "result": result, **told}


@pytest.mark.parametrize(
    ("error", "status", "attempts", "words"),
    [
        ("insufficient_quota", 429, 0, "would have gone over a budget"),
        ("cache_miss", 504, 0, "only a kept answer was asked for"),
        ("brand_new_refusal", 400, 0, "refused: brand_new_refusal"),
        ("upstream_error", 502, 3, "asking for a fresh one failed"),
    ],
)
async def test_what_was_refused_is_not_said_to_be_fetched(
    home: House, error: str, status: int, attempts: int, words: str
) -> None:
    """Every miss was told as "a fresh one was fetched", those over a budget and those that nobody answered too."""
    page = await _page(home, MISS, error=error, status=status, attempts=attempts, cost_nano=0, complete=False)
    assert words in page
    assert "a fresh one was fetched" not in page


async def test_an_attempt_that_went_well_does_not_look_like_a_failure(home: House) -> None:
    """All attempts were painted as failures, whatever they came to."""
    tried = [_tried("upstream_error", "r1"), {**_tried("complete", "r1"), "id": "r1.2"}]
    page = await _page(home, {**MISS, "attempts": tried}, attempts=2)
    assert '<span class="status good">complete</span>' in page
    assert '<span class="status bad">upstream_error</span>' in page


async def test_the_attempts_of_a_shared_answer_are_told_as_somebody_elses(home: House) -> None:
    """Their cost stands beside them: read as this request's it would be charged twice."""
    page = await _page(home, {"attempts": [_tried("complete", "r7")]}, source="shared", cache="shared", cost_nano=0)
    assert 'href="/ui/requests/r7"' in page
    assert "which was charged for them" in page


async def test_the_last_page_of_requests_leads_to_no_other(home: House) -> None:
    """Fifty requests made a link to older ones, and that page said that no request had ever come in."""
    rows = [request_row(home.clock, number) for number in range(50)]
    await happened(home.services.database, rows)
    async with home.client(None) as visitor, home.client() as admin:
        await sign_in(visitor)
        page = (await visitor.get("/ui/requests")).text
        assert "50 requests on this page" in page
        assert "Older</a>" not in page
        beyond = (await visitor.get(f"/ui/requests?before={rows[-1]['id']}")).text
        assert "none that is older" in beyond
        assert "has come in yet" not in beyond
        assert (await admin.get("/api/v1/requests?limit=50")).json()["next"] is None
        assert (await admin.get("/api/v1/requests?limit=49")).json()["next"] is not None


async def test_pages_after_a_row_that_was_pruned_do_not_begin_anew(home: House) -> None:
    """Whoever reads page by page would read everything again, for ever."""
    await happened(home.services.database, [request_row(home.clock, number) for number in range(3)])
    async with home.client() as admin:
        gone = await admin.get("/api/v1/requests?before=0190c0de-000000000001")
        assert gone.json() == {"data": [], "next": None}


async def test_the_largest_page_leads_to_the_next(home: House) -> None:
    """One row more than a page is read to know that there are more."""
    await happened(home.services.database, [request_row(home.clock, number) for number in range(1_001)])
    async with home.client() as admin:
        page = (await admin.get("/api/v1/requests?limit=1000")).json()
        assert len(page["data"]) == 1_000
        assert page["next"] == page["data"][-1]["id"]
