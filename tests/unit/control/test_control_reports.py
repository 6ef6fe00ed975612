"""Reports, prices, the audit log and the API's own description over HTTP."""

from collections.abc import AsyncGenerator
from pathlib import Path

import pytest
from sqlalchemy import text

from gateway.audit import verify
from tests.clock import FrozenClock
from tests.unit.control.house import House, happened, hit_row, house, request_row


@pytest.fixture
async def home(tmp_path: Path, clock: FrozenClock) -> AsyncGenerator[House, None]:
    async with house(tmp_path, clock) as found:
        yield found


async def test_openais_own_reports(home: House, clock: FrozenClock) -> None:
    """A tool that reads OpenAI's bill reads ours: buckets, results, pages and null for what was not asked."""
    await happened(
        home.services.database,
        [
            request_row(clock, 5),
            request_row(clock, 6, operation="completion"),
            hit_row(clock, 7),
            request_row(clock, 8, operation="embedding", completion=0, model_used="minilm"),
            request_row(clock, 60 * 24 * 3),
        ],
    )
    start = int(clock.now() - 4 * 86_400)
    async with home.client(await home.key("finance", "")) as finance:
        costs = (await finance.get(f"/v1/organization/costs?start_time={start}&group_by=project_id")).json()
        first = (await finance.get(f"/v1/organization/costs?start_time={start}&limit=2")).json()
        second = (
            await finance.get(f"/v1/organization/costs?start_time={start}&limit=9&page={first['next_page']}")
        ).json()
        used = (await finance.get(f"/v1/organization/usage/completions?start_time={start}&group_by[]=model")).json()
        vectors = (await finance.get(f"/v1/organization/usage/embeddings?start_time={start}&bucket_width=1d")).json()
        bad = await finance.get("/v1/organization/costs")
        wide = await finance.get("/v1/organization/usage/completions?start_time=0&bucket_width=1m&limit=1440")
    assert (costs["object"], costs["data"][0]["object"]) == ("page", "bucket")
    amounts = [result["amount"]["value"] for bucket in costs["data"] for result in bucket["results"]]
    assert sum(amounts) == pytest.approx(4 * 0.000213)
    assert costs["data"][-1]["results"][0]["project_id"] == "acme/web"
    assert costs["data"][-1]["results"][0]["line_item"] is None
    assert first["has_more"] is True
    assert [b["start_time"] for b in (*first["data"], *second["data"])] == [b["start_time"] for b in costs["data"]]
    results = used["data"][-1]["results"]
    assert [row["model"] for row in results] == ["demo"]
    assert (results[0]["num_model_requests"], results[0]["input_tokens"]) == (3, 360)
    assert results[0]["project_id"] is None
    assert vectors["data"][-1]["results"][0]["input_tokens"] == 120
    assert (bad.status_code, bad.json()["error"]["param"]) == (400, "start_time")
    assert len(wide.json()["data"]) == 1_440


async def test_prices_are_shown_set_and_recorded(home: House) -> None:
    """An operator sets a price once; the answer and the audit log say what holds."""
    async with home.client() as admin:
        before = (await admin.get("/api/v1/prices?model=lab/qwen")).json()["data"][0]
        assert (before["status"], before["source"]) == (None, "none")
        made = (await admin.put("/api/v1/prices/lab/qwen", json={"input_usd": "0.15", "output_usd": 0.6})).json()
        assert (made["input_usd"], made["output_usd"], made["source"], made["status"]) == (
            "0.15",
            "0.6",
            "set",
            "exact",
        )
        listed = (await admin.get("/api/v1/prices")).json()
        assert next(row for row in listed["data"] if row["model"] == "lab/qwen")["input_usd"] == "0.15"
        assert next(row for row in listed["data"] if row["model"] == "local/demo")["source"] == "engine"
        wrong = await admin.put("/api/v1/prices/qwen", json={"input_usd": "1", "output_usd": "1"})
        assert (wrong.status_code, wrong.json()["error"]["param"]) == (400, "model")
        audit = (await admin.get("/api/v1/audit")).json()
    assert audit["data"][0]["action"] == "price.set"
    assert audit["data"][0]["after"]["input_usd"] == "0.15"


GRANTED = {
    "name": "a",
    "team": "acme",
    "project": "default",
    "role": "app",
    "models": ["chat", "smart"],
    "expires": "2099-01-01T00:00:00Z",
}


async def test_the_audit_log_tells_who_and_notices_a_change(home: House) -> None:
    """All that a key opens is told (models and expiry were not); a row altered later breaks the chain at its place."""
    async with home.client() as admin:
        wanted = {"name": "a", "team": "acme", "models": ["smart", "chat"], "expires": "2099-01-01T00:00:00Z"}
        key = (await admin.post("/api/v1/keys", json=wanted)).json()
        await admin.put("/api/v1/budgets/org", json={"limit_usd": "1"})
        await admin.delete(f"/api/v1/keys/{key['id']}")
        found = (await admin.get("/api/v1/audit")).json()
    assert [row["action"] for row in found["data"]] == ["key.revoke", "budget.set", "key.create"]
    assert found["whole"] is True
    assert key["key"] not in str(found)
    revoked, _, created = found["data"]
    assert created["after"] == revoked["before"] == GRANTED
    async with home.services.database.begin() as connection:
        await connection.execute(text("UPDATE audit SET target = 'other' WHERE action = 'budget.set'"))
    assert (await verify(home.services)).broken_at == found["data"][1]["id"]


async def test_the_books_are_checked_over_http(home: House) -> None:
    """`nearhit ledger verify` and `reconcile` ask these two."""
    async with home.client(await home.key("finance", "")) as finance:
        assert (await finance.post("/api/v1/ledger/verify")).json() == {"agrees": True, "problems": []}
        empty = await finance.post("/api/v1/ledger/reconcile", content=b"")
        assert empty.status_code == 400
        line = b'{"id":"c1","model":"m","prompt_tokens":1,"completion_tokens":1,"ended":"complete","attempt":"a.1"}\n'
        found = (await finance.post("/api/v1/ledger/reconcile", content=line)).json()
    assert found["calls"] == 1
    assert found["agrees"] is False


async def test_the_admin_key_can_be_renewed_from_inside(tmp_path: Path, home: House) -> None:
    """One fixed by the environment is not: it would be undone at the next start."""
    async with home.client() as admin:
        answer = await admin.post("/api/v1/keys/admin/rotate")
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "admin_key_fixed")


async def test_the_description_names_every_route_and_asks_nobody_outside(home: House) -> None:
    """`/docs` must work on a machine without a network."""
    async with home.client(None) as anyone:
        page = await anyone.get("/docs")
        schema = (await anyone.get("/docs/openapi.json")).json()
    assert page.status_code == 200
    assert "default-src 'none'" in page.headers["content-security-policy"]
    assert "http://" not in page.text.replace("http://127.0.0.1", "")
    assert "https://" not in page.text
    for path in ("/api/v1/keys", "/api/v1/usage", "/v1/chat/completions", "/v1/organization/costs"):
        assert path in page.text
        assert path in schema["paths"]
    assert not any(path.startswith("/ui") for path in schema["paths"])
