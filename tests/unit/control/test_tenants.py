"""A key of one team on every address there is: nothing of another team may stand in any answer."""

import json
import re
from collections.abc import AsyncGenerator, Iterator
from html import unescape
from pathlib import Path

import pytest
from litestar.routes import HTTPRoute

from gateway.call import Role
from gateway.distilling import FOLDER, file_of
from gateway.settings import ExportSettings
from policies.budget import Budget
from policies.months import month_of
from tests.clock import FrozenClock
from tests.unit.control.house import ADMIN_KEY, House, charged, explained, happened, hit_row, house, request_row
from tests.unit.control.test_pages import sign_in

MARKS = ("hushteam", "hushproject", "hushkey", "hushuser", "hushmodel", "hushserved", "hushtag", "77.000000077")
_SPENT = 77_000_000_077
_HUSH = {
    "team": "hushteam",
    "project": "hushproject",
    "key_id": "hushkey1",
    "user": "hushuser",
    "model": "hushmodel",
    "provider": "openai",
    "model_used": "hushserved",
    "tags": {"hushtag": "v"},
    "cost_nano": _SPENT,
}
_POSTS: dict[str, tuple[object, dict[str, str]]] = {
    "/api/v1/usage/recompute": (None, {}),
    "/api/v1/whatif": ({"cache": {"mode": "off"}}, {}),
    "/api/v1/ledger/verify": (None, {}),
    "/api/v1/ledger/reconcile": ({"id": "chatcmpl-1", "model": "hushserved", "cost_usd": "1"}, {}),
    "/api/v1/ledger/invoice": ("day,model,amount\n2026-09-20,x,1\n", {"provider": "openai"}),
    "/api/v1/prices/calculate": (
        {"model": "local/demo", "prompt_tokens": 1, "completion_tokens": 1, "requests_per_day": 1},
        {},
    ),
}
_QUERIES = (
    "?start_time=1780000000&limit=7&group_by=project_id,user_id,api_key_id,model",
    "?start_time=1780000000&group_by=project_id,line_item,api_key_id",
    "?group_by=team,user,model,tag:hushtag",
    "?month={month}",
    "?format=jsonl",
    "?month={month}&team=hushteam",
    "?by=user&then=tag:hushtag&only=team&is=hushteam",
    "?key=hushkey1&model=hushmodel",
)


@pytest.fixture
async def home(tmp_path: Path, clock: FrozenClock) -> AsyncGenerator[House, None]:
    async with house(tmp_path, clock) as found:
        yield found


async def filled(home: House) -> None:
    """A little of acme's, and a lot of another team's: requests, hits, refusals, entries, limits, wrong balances."""
    services, clock = home.services, home.clock
    rows = [request_row(clock, number) for number in range(1, 4)]
    rows += [request_row(clock, number, **_HUSH, prompt=4_242, completion=2_424) for number in range(10, 30)]
    rows.append(hit_row(clock, 40, **{**_HUSH, "cost_nano": 0, "saved_nano": _SPENT}))
    rows.append(request_row(clock, 41, **{**_HUSH, "status": 402, "cost_nano": 0, "error": "no price"}))
    await happened(services.database, rows)
    hush = {name: _HUSH[name] for name in ("team", "project", "key_id", "user", "provider")}
    tags = {"model": "hushserved", "asked": "hushmodel", "tags": '["hushtag=v"]'}
    await charged(services.database, str(rows[5]["id"]), float(rows[5]["at"]), _SPENT, **hush, **tags)
    await explained(services.database, str(rows[5]["id"]), float(rows[5]["at"]), {"why": "hushproject"})
    services.prices.price("openai", "openai", "hushmodel-unpriced", clock.now())
    for scope in ("team:hushteam", "user:hushuser", "model:hushmodel", "tag:hushtag=v", "key:hushkey1"):
        await services.ledger.set_budget(Budget(scope=scope, limit_nano=90_000_000_000, alerts=(0.5,)), "hushkey1")
    async with services.database.begin() as connection:
        await connection.exec_driver_sql("UPDATE budget_window SET spent_nano = spent_nano + 1")


def reads(home: House) -> Iterator[str]:
    """Every path that answers GET, with another team's names in its parameters."""
    month = month_of(home.clock.now())
    for route in home.app.router.routes:
        if not isinstance(route, HTTPRoute) or "GET" not in route.methods or "/static" in route.path:
            continue
        path = route.path_format
        for name, value in {"month_name": month, "month": month, "budget": "team:hushteam", "name": month}.items():
            path = path.replace("{" + name + "}", value)
        yield path.replace("{request_id}", "0190c0de-" + f"{999_999 - 12:012x}")


async def test_a_key_of_one_team_reads_nothing_of_another(home: House) -> None:
    """Whatever the role within its team; addresses that are added later are walked by themselves."""
    await filled(home)
    month, seen, leaks = month_of(home.clock.now()), 0, list[object]()
    async with home.client(await home.key("admin", "acme")) as caller, home.client(None) as visitor:
        await sign_in(visitor, await home.key("admin", "acme"))
        for path in reads(home):
            for query in _QUERIES if "focus" not in path else _QUERIES[-4:-2]:
                asked = path + query.replace("{month}", month)
                answer = await (visitor if path.startswith("/ui") else caller).get(asked)
                said = answer.text.replace("hushteam&#39;", "").replace("team=hushteam", "")
                told = [mark for mark in MARKS if mark in said and mark not in asked]
                leaks += [(asked, told)] if told or answer.status_code >= 500 else []
                seen += answer.status_code == 200
        for path, (body, query) in _POSTS.items():
            sent = body.encode() if isinstance(body, str) else json.dumps(body).encode()
            answer = await caller.post(path, params=query, content=sent, headers={"content-type": "application/json"})
            leaks += [(path, mark) for mark in MARKS if mark in answer.text]
    assert leaks == []
    assert seen > 100


async def test_sums_over_every_team_are_not_told_to_one(home: House) -> None:
    """What another team uses on average, or was refused, is its own business too."""
    await filled(home)
    async with home.client(await home.key("viewer", "acme")) as caller:
        even = (await caller.get("/api/v1/prices/break-even")).json()
        assert (even["prompt_tokens"], even["completion_tokens"]) == (120, 80)
        assert (await caller.get("/api/v1/prices/check")).json()["unpriced"] == []
    async with home.client() as everybody:
        even = (await everybody.get("/api/v1/prices/break-even")).json()
        assert even["prompt_tokens"] > 3_000
        assert "openai/hushmodel-unpriced" in (await everybody.get("/api/v1/prices")).json()["unpriced"]


async def test_scheduled_exports_are_not_one_teams_business(home: House) -> None:
    """They hold every team's figures, and say where on this machine these lie."""
    folder = home.services.settings.home / "hushfolder"
    job = {"name": "all", "what": "entries", "format": "csv", "every": "day", "folder": str(folder)}
    home.services.settings = home.services.settings.model_copy(update={"exports": [ExportSettings.model_validate(job)]})
    async with home.client(await home.key("finance", "acme")) as caller, home.client(None) as visitor:
        await sign_in(visitor, await home.key("finance", "acme"))
        assert (await caller.get("/api/v1/exports")).status_code == 403
        assert "hushfolder" not in (await visitor.get("/ui/exports")).text
    async with home.client() as everybody:
        assert "hushfolder" in (await everybody.get("/api/v1/exports")).text


async def test_training_lines_are_given_to_their_own_team_only(home: House) -> None:
    """They are prompts and answers word for word; an administrator of any team could name any project."""
    settings = home.services.settings
    consent = settings.distillation.model_copy(update={"projects": ["hushteam/hushproject"]})
    home.services.settings = settings.model_copy(update={"distillation": consent})
    path = file_of(settings.home / FOLDER, "hushteam/hushproject")
    path.parent.mkdir()
    path.write_text('{"messages": "hushprompt"}\n')
    asked = "/api/v1/export/distillation?project=hushteam/hushproject"
    async with home.client(await home.key("admin", "acme")) as caller:
        answer = await caller.get(asked)
        assert (answer.status_code, answer.json()["error"]["code"]) == (403, "beyond_team")
        assert (await caller.get(asked.replace("hushproject", "other"))).text == answer.text
    for key in (ADMIN_KEY, await home.key("admin", "hushteam")):
        async with home.client(key) as theirs:
            assert "hushprompt" in (await theirs.get(asked)).text


async def test_one_teams_administrator_does_not_make_everyones_sums_anew(home: House) -> None:
    """It reads and writes every team's rows."""
    async with home.client(await home.key("admin", "acme")) as caller:
        assert (await caller.post("/api/v1/usage/rebuild")).status_code == 403


async def test_a_team_does_not_raise_what_it_may_spend_in_all(home: House) -> None:
    """Whoever set the limit for the team would be overruled by the one who is limited; what lies within is theirs."""
    async with home.client() as admin, home.client(await home.key("admin", "acme")) as caller:
        assert (await admin.put("/api/v1/budgets/team:acme", json={"limit_usd": "10"})).status_code == 200
        assert (await caller.get("/api/v1/budgets/team:acme")).json()["limit_usd"] == "10"
        for refused in (
            await caller.put("/api/v1/budgets/team:acme", json={"limit_usd": "10000"}),
            await caller.put("/api/v1/budgets/team:acme", json={"rpm": 9}),
            await caller.delete("/api/v1/budgets/team:acme"),
        ):
            assert refused.status_code == 403
            assert refused.json()["error"]["code"] == "beyond_team"
        assert (await caller.put("/api/v1/budgets/project:acme/app", json={"limit_usd": "5"})).status_code == 200
        assert (await caller.delete("/api/v1/budgets/project:acme/app")).status_code == 204
        await sign_in(caller, await home.key("admin", "acme"))
        page = (await caller.get("/ui/budgets")).text
        assert "set for your team" in page
        assert "Change team:acme" not in page
        assert (await admin.get("/api/v1/budgets/team:acme")).json()["limit_usd"] == "10"


async def test_no_page_leads_to_one_that_is_closed(home: House) -> None:
    """An operator of a team was led to pages that are for those of every team."""
    whose: tuple[tuple[Role, str], ...] = (("operator", "acme"), ("admin", "acme"), ("admin", ""))
    for role, team in whose:
        async with home.client(None) as visitor:
            await sign_in(visitor, await home.key(role, team))
            page = (await visitor.get("/ui/keys")).text
            for path in set(re.findall(r'<a href="(/ui[^"]*)"', page)):
                assert (await visitor.get(unescape(path))).status_code == 200, (role, team, path)


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("export/entries?month=2026-09&project=web", "project"),
        ("export/focus?month=2026-09&project=web", "project"),
        ("months/2026-09/statement?project=web", "project"),
        ("cache/entries?team=acme", "team"),
        ("audit?actr=somebody", "actr"),
    ],
)
async def test_a_filter_that_is_not_read_is_refused(home: House, path: str, name: str) -> None:
    """Everybody's charges, prompts or changes were answered as if they were those that were asked for."""
    async with home.client() as admin:
        answer = await admin.get(f"/api/v1/{path}")
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, name)
