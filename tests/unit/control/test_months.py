"""Months, statements, exports, corrections and invoices through the control plane: who may, and what is answered."""

import csv
import io
import re
from collections.abc import AsyncGenerator
from decimal import Decimal
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.call import Role
from gateway.db.session import Database
from policies.money import Usage
from tests.clock import FrozenClock
from tests.unit.control.house import ADMIN_KEY, House, happened, hit_row, house, request_row
from tests.unit.control.test_pages import sign_in
from tests.unit.exports.books import at, entry, post

USAGE = Usage(prompt=1_000, cached=100, completion=300)  # 322_500 nano-USD at the price `plain`
NOVEMBER = at(2026, 11, 5)
OCTOBER = at(2026, 10, 15)


@pytest.fixture
async def home(tmp_path: Path) -> AsyncGenerator[House, None]:
    """In November, with an October of three teams."""
    async with house(tmp_path, FrozenClock(NOVEMBER)) as made:
        rows = [entry(n, OCTOBER + n, USAGE, team="acme", project=["web", "app"][n % 2]) for n in range(4)]
        rows += [entry(10 + n, OCTOBER, USAGE, team="beta", model="gpt-5") for n in range(2)]
        rows += [entry(20, OCTOBER, USAGE, team="core", source="estimated")]
        await post(made.services.database, rows)
        noon = FrozenClock(OCTOBER)
        told = [request_row(noon, n, team=["acme", "acme", "acme", "beta"][n % 4]) for n in range(8)]
        await happened(made.services.database, [*told, hit_row(noon, 9, team="acme")])
        yield made


async def ask(home: House, method: str, path: str, key: str = ADMIN_KEY, **more: Any) -> httpx.Response:
    async with home.client(key) as client:
        return await client.request(method, path, **more)


async def test_a_month_is_read_closed_and_read_again(home: House) -> None:
    """The whole way of finance at the end of a month."""
    before = (await ask(home, "GET", "/api/v1/months/2026-10")).json()
    assert (before["state"], before["spent_usd"], before["estimated_usd"]) == ("open", "0.0022575", "0.0003225")
    assert before["blockers"] == []
    # without a body, as the call is named in the documentation
    closed = await ask(home, "POST", "/api/v1/months/2026-10/close", await home.key("finance", ""))
    assert closed.status_code == 200, closed.text
    assert (closed.json()["state"], closed.json()["spent_usd"]) == ("sealed", "0.0022575")
    again = await ask(home, "POST", "/api/v1/months/2026-10/close", json={})
    assert (again.status_code, again.json()["error"]["code"]) == (409, "month_closed")
    listed = (await ask(home, "GET", "/api/v1/months")).json()["data"]
    assert [(month["month"], month["state"]) for month in listed] == [("2026-11", "running"), ("2026-10", "sealed")]
    (line,) = [
        line for line in (await ask(home, "GET", "/api/v1/audit")).json()["data"] if line["action"] == "month.close"
    ]
    assert line["target"] == "2026-10"
    assert line["after"]["digest"] == closed.json()["digest"]
    assert (await ask(home, "POST", "/api/v1/ledger/verify")).json() == {"agrees": True, "problems": []}


@pytest.mark.parametrize(
    ("role", "team", "status"),
    [("viewer", "", 403), ("finance", "acme", 403), ("finance", "", 200), ("operator", "", 200)],
)
async def test_who_may_close(home: House, role: Role, team: str, status: int) -> None:
    """Sealing the books is for finance, and for nobody who sees one team only."""
    answer = await ask(home, "POST", "/api/v1/months/2026-10/close", await home.key(role, team), json={})
    assert answer.status_code == status, answer.text


async def test_no_hosts_clock_closes_a_month_that_runs(home: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is admitted goes by the database's time: entries of a month that was closed too early would change it."""
    monkeypatch.setattr(home.services, "now", lambda: float(at(2026, 12, 5)))
    refused = await ask(home, "POST", "/api/v1/months/2026-11/close", json={})
    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "month_not_closable")
    assert "2026-11 runs until" in refused.json()["error"]["message"]
    told = (await ask(home, "GET", "/api/v1/months/2026-11")).json()["blockers"]
    assert [blocker["kind"] for blocker in told] == ["running"]


async def test_force_is_for_operators_and_has_a_reason(home: House) -> None:
    """Closing over something open is a decision that somebody answers for."""
    path, finance = "/api/v1/months/2026-10/close", await home.key("finance", "")
    await unread_journal(home.services.database)
    refused = await ask(home, "POST", path, finance, json={})
    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "month_not_closable")
    assert "process gone on elsewhere" in refused.json()["error"]["message"]
    assert (await ask(home, "POST", path, finance, json={"force": True, "reason": "x"})).status_code == 403
    assert (await ask(home, "POST", path, json={"force": True})).status_code == 400
    closed = await ask(home, "POST", path, json={"force": True, "reason": "the disk is lost"})
    assert closed.json()["reason"] == "the disk is lost"


async def test_a_running_month_and_no_month_are_refused(home: House) -> None:
    """Each with its reason, in the usual shape."""
    running = await ask(home, "POST", "/api/v1/months/2026-11/close", json={"force": True, "reason": "now"})
    assert (running.status_code, running.json()["error"]["code"]) == (409, "month_not_closable")
    for path in ("/api/v1/months/oct", "/api/v1/export/focus?month=2026-13"):
        answer = await ask(home, "GET", path)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "month")


async def test_statements_split_shared_costs_exactly(home: House) -> None:
    """All bills together are the ledger and the shared costs; a sealed statement stays as it was."""
    body = {"split": "requests", "from_month": "2026-10", "amount_usd": "0.000000010"}
    assert (await ask(home, "PUT", "/api/v1/shared-costs/gpu", json=body)).status_code == 200
    platform = {"split": "even", "from_month": "2026-09", "until_month": "2026-10", "team": "core"}
    assert (await ask(home, "PUT", "/api/v1/shared-costs/platform", json=platform)).status_code == 200
    told = (await ask(home, "GET", "/api/v1/months/2026-10/statement")).json()
    by_team = {team["team"]: team for team in told["teams"]}
    assert told["total"] == {
        "own_usd": "0.0022575",
        "shared_usd": "0.00000001",
        "adjustments_usd": "0",
        "total_usd": "0.00225751",
        "requests": sum(team["requests"] for team in told["teams"]),
        "net_saved_usd": "0.000213",
    }
    assert [part["amount_usd"] for part in by_team["acme"]["shared"]] == ["0.000000008", "0.00016125"]
    assert [part["amount_usd"] for part in by_team["beta"]["shared"]] == ["0.000000002", "0.00016125"]
    assert by_team["core"]["total_usd"] == "0"
    assert (by_team["acme"]["hits"], by_team["acme"]["net_saved_usd"]) == (1, "0.000213")
    assert [(line["project"], line["requests"], line["amount_usd"]) for line in by_team["acme"]["lines"]] == [
        ("app", 2, "0.000645"),
        ("web", 2, "0.000645"),
    ]
    await ask(home, "POST", "/api/v1/months/2026-10/close", json={})
    assert (await ask(home, "DELETE", "/api/v1/shared-costs/gpu")).status_code == 204
    after = (await ask(home, "GET", "/api/v1/months/2026-10/statement")).json()
    assert after["teams"] == told["teams"]
    sheet = await ask(home, "GET", "/api/v1/months/2026-10/statement?format=csv")
    rows = list(csv.DictReader(io.StringIO(sheet.text, newline="")))
    assert sum(Decimal(row["amount_usd"]) for row in rows) == Decimal(told["total"]["total_usd"])


async def test_a_teams_key_sees_its_own_statement_only(home: House) -> None:
    """What other teams spend is not its business."""
    key = await home.key("viewer", "beta")
    told = (await ask(home, "GET", "/api/v1/months/2026-10/statement", key)).json()
    assert [team["team"] for team in told["teams"]] == ["beta"]
    assert (await ask(home, "GET", "/api/v1/months/2026-10/statement?team=acme", key)).status_code == 403
    assert (await ask(home, "GET", "/api/v1/months/2026-10", key)).json()["spent_usd"] == "0.000645"
    assert (await ask(home, "GET", "/api/v1/shared-costs", await home.key("finance", "beta"))).status_code == 403


@pytest.mark.parametrize(
    "body",
    [
        {"split": "even", "from_month": "2026-10"},
        {"split": "even", "from_month": "2026-10", "amount_usd": "1", "team": "core"},
        {"split": "fixed", "from_month": "2026-10", "amount_usd": "1"},
        {"split": "even", "from_month": "2026-10", "amount_usd": "1", "shares": {"acme": 1}},
        {"split": "fixed", "from_month": "2026-10", "amount_usd": "1", "shares": {"acme": -1}},
        {"split": "even", "from_month": "2026-10", "until_month": "2026-09", "amount_usd": "1"},
        {"split": "even", "from_month": "soon", "amount_usd": "1"},
        {"split": "even", "from_month": "2026-10", "amount_usd": "1e3"},
        {"split": "by luck", "from_month": "2026-10", "amount_usd": "1"},
    ],
)
async def test_a_shared_cost_that_makes_no_sense_is_refused(home: House, body: dict[str, Any]) -> None:
    """A statement must never have to guess what was meant."""
    assert (await ask(home, "PUT", "/api/v1/shared-costs/gpu", json=body)).status_code == 400


async def test_corrections_after_the_close_stand_in_the_next_month(home: House) -> None:
    """A sealed statement does not change; the correction is a line of the open one."""
    await ask(home, "POST", "/api/v1/months/2026-10/close", json={})
    body = {"entry_id": "r000000.1", "delta_usd": "-0.0001", "reason": "credit note 7"}
    finance = await home.key("finance", "")
    made = await ask(home, "POST", "/api/v1/ledger/adjust", finance, json=body)
    assert (made.status_code, made.json()["month"]) == (201, "2026-11")
    told = (await ask(home, "GET", "/api/v1/months/2026-11/statement")).json()
    assert [team["adjustments"] for team in told["teams"] if team["team"] == "acme"] == [
        [{"belongs": "2026-10", "project": "web", "model": "gpt-5-mini", "amount_usd": "-0.0001"}]
    ]
    assert (await ask(home, "GET", "/api/v1/months/2026-10")).json()["spent_usd"] == "0.0022575"
    rows = await focus_rows(home, "2026-11")
    assert [(row["ChargeCategory"], row["ChargeClass"], row["BilledCost"]) for row in rows] == [
        ("Adjustment", "Correction", "-0.000100000000")
    ]
    assert rows[0]["ChargePeriodStart"] == "2026-10-15T00:00:00Z"
    for wrong in ({"delta_usd": "0"}, {"delta_usd": "-5"}, {"reason": " "}, {"entry_id": "nobody"}, {"delta_usd": "x"}):
        assert (await ask(home, "POST", "/api/v1/ledger/adjust", finance, json={**body, **wrong})).status_code == 400
    viewer = await home.key("viewer", "")
    assert (await ask(home, "POST", "/api/v1/ledger/adjust", viewer, json=body)).status_code == 403


async def test_a_correction_is_no_attempt(home: House) -> None:
    """A line that was corrected twice told of two attempts more than the team made, and so did its part of FOCUS."""

    async def attempts() -> list[int]:
        told = (await ask(home, "GET", "/api/v1/months/2026-10/statement")).json()
        lines = [line["requests"] for team in told["teams"] for line in team["lines"]]
        return [sum(lines), sum(int(row["x_RequestCount"]) for row in await focus_rows(home, "2026-10"))]

    before = await attempts()
    for cents in ("0.01", "-0.002"):
        body = {"entry_id": "r000000.1", "delta_usd": cents, "reason": "credit note 7"}
        assert (await ask(home, "POST", "/api/v1/ledger/adjust", json=body)).status_code == 201
    assert await attempts() == before


async def test_who_is_closing_a_month_is_told(home: House) -> None:
    """Whoever looked while another was closing it read that the close broke off, began anew and stopped theirs."""
    async with home.services.database.begin() as connection:
        await connection.exec_driver_sql(
            "INSERT INTO month_seal (month, began, actor, entries, amount_nano, estimated_nano, adjustments_nano) "
            f"VALUES ('2026-10', {NOVEMBER}, 'ann', 0, 0, 0, 0)"
        )
    told = (await ask(home, "GET", "/api/v1/months/2026-10")).json()
    assert (told["state"], told["closing_by"], told["closing_since"]) == ("closing", "ann", "2026-11-05T00:00:00Z")
    async with home.client(None) as visitor:
        await sign_in(visitor)
        shown = (await visitor.get("/ui/statements/2026-10")).text
    assert "ann is closing it since" in shown
    assert "Close the month" in shown


async def focus_rows(home: House, month: str) -> list[dict[str, str]]:
    answer = await ask(home, "GET", f"/api/v1/export/focus?month={month}")
    assert answer.headers["content-type"].startswith("text/csv")
    return list(csv.DictReader(io.StringIO(answer.text, newline="")))


async def test_exports_are_files_for_finance(home: House) -> None:
    """Named, of the right kind, closed to other roles, limited to a key's team."""
    rows = await focus_rows(home, "2026-10")
    assert sum(Decimal(row["BilledCost"]) for row in rows) == Decimal("0.0022575")
    parquet = await ask(home, "GET", "/api/v1/export/focus?month=2026-10&format=parquet&version=1.3")
    assert parquet.content[:4] == parquet.content[-4:] == b"PAR1"
    assert parquet.headers["content-disposition"] == 'attachment; filename="nearhit-focus-2026-10.parquet"'
    entries = await ask(home, "GET", "/api/v1/export/entries?month=2026-10")
    lines = list(csv.DictReader(io.StringIO(entries.text, newline="")))
    assert (len(lines), sum(Decimal(line["amount_usd"]) for line in lines)) == (7, Decimal("0.0022575"))
    told = await ask(
        home, "GET", "/api/v1/export/entries?from=2026-10-01&format=jsonl", await home.key("finance", "beta")
    )
    assert [b'"team":"beta"' in line for line in told.content.splitlines()] == [True, True]
    assert (await ask(home, "GET", "/api/v1/export/entries?month=2026-10&from=7d")).status_code == 400
    for path in ("focus?month=2026-10", "entries"):
        assert (await ask(home, "GET", f"/api/v1/export/{path}", await home.key("viewer", ""))).status_code == 403


OPENAI = (
    "start_time,end_time,start_time_iso,end_time_iso,amount_value,amount_currency,line_item\n"
    "1791936000,1792022400,2026-10-14T00:00:00+00:00,2026-10-15T00:00:00+00:00,,,\n"
    "1792022400,1792108800,2026-10-15T00:00:00+00:00,2026-10-16T00:00:00+00:00,0.0016125,usd,"
    '"gpt-5-mini-2025-08-07, input"\n'
    '1792022400,1792108800,2026-10-15T00:00:00+00:00,2026-10-16T00:00:00+00:00,0.000715,usd,"gpt-5, output"\n'
)


async def test_an_invoice_is_compared_by_model_and_day(home: House) -> None:
    """What agrees, what differs and by how much: in USD and as a share."""
    told = (await ask(home, "POST", "/api/v1/ledger/invoice?provider=openai&shape=openai", content=OPENAI)).json()
    rows = {row["model"]: row for row in told["rows"]}
    assert (rows["gpt-5-mini"]["why"], rows["gpt-5-mini"]["difference_usd"]) == ("agrees", "0")
    assert (rows["gpt-5"]["why"], rows["gpt-5"]["difference_usd"]) == ("unexplained", "-0.00007")
    assert rows["gpt-5"]["share"] == pytest.approx(-7 / 71.5)
    assert (told["agrees"], told["unexplained"], told["difference_usd"]) == (False, 1, "-0.00007")
    assert (told["first_day"], told["last_day"]) == (
        "2026-10-14",
        "2026-10-15",
    )  # else half a month would be taken for a whole one
    near = await ask(home, "POST", "/api/v1/ledger/invoice?provider=openai&shape=openai&tolerance=0.2", content=OPENAI)
    assert near.json()["agrees"]
    wrong = await ask(home, "POST", "/api/v1/ledger/invoice?provider=openai&shape=openai", content="a,b\n1,2\n")
    assert "no column amount_value" in wrong.json()["error"]["message"]
    viewer = await home.key("viewer", "")
    assert (await ask(home, "POST", "/api/v1/ledger/invoice?provider=x", viewer, content="x")).status_code == 403


async def unread_journal(database: Database) -> None:
    """A process that died on another host a week ago."""
    from sqlalchemy import insert

    from gateway.db.models import Boot

    boot = {"id": "gone", "host": "elsewhere", "journalled": True, "started": OCTOBER, "seen": OCTOBER + 60}
    async with database.begin() as connection:
        await connection.execute(insert(Boot), [boot])


async def test_what_no_team_spent_has_lines_too(home: House) -> None:
    """The administrator's own requests stand on the statement; a line that cannot be opened cannot be explained."""
    await post(home.services.database, [entry(40, OCTOBER, USAGE, team="", project="")])
    async with home.client(None) as visitor:
        await visitor.post("/ui/login", data={"key": ADMIN_KEY, "next": "/ui"})
        whole = (await visitor.get("/ui/statements/2026-10")).text
        (link,) = re.findall(r'<a href="([^"]*)">\(none\)</a>', whole)
        page = (await visitor.get(link)).text
        assert "Statement 2026-10, no team" in page
        assert "acme" not in page
        assert '<th scope="row">To pay</th>' in page
        (sheet,) = re.findall(r'<a class="csv" href="([^"]*)">', page)
        lines = list(csv.DictReader(io.StringIO((await visitor.get(sheet)).text)))
        assert [(line["team"], line["amount_usd"]) for line in lines] == [("", "0.0003225")]
        assert len((await visitor.get("/ui/statements/2026-10/sheet.csv")).text.splitlines()) > 2
