"""The control plane over HTTP: who may call what, every answer's shape, nothing of another team."""

from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest
from litestar.handlers import HTTPRouteHandler

from cache.semantic import SemanticCache
from cache.store.memory import MemoryStore
from cache.types import CacheConfig, Kept, Query
from gateway.auth import ROLES
from gateway.routes.access import admin_socket
from gateway.routes.admin import undeclared
from gateway.routes.cache_stats import interval
from policies.reuse import load as load_policy
from tests.clock import FrozenClock
from tests.unit.control.house import House, charged, explained, happened, hit_row, house, request_row


@pytest.fixture
async def cached(clock: FrozenClock) -> AsyncGenerator[SemanticCache, None]:
    """An exact-only cache in memory with one kept answer of acme's and one of zeta's."""
    found = SemanticCache(
        MemoryStore(),
        None,
        load_policy("guarded").Policy(),
        config=CacheConfig(mode="exact"),
        now=clock.now,
        monotonic=clock.monotonic,
    )
    await found.start()
    for team in ("acme", "zeta"):
        query = Query(
            scope=team.encode() * 8,
            exact=team.encode() * 8,
            text=f"what does {team} sell?",
            team=team,
            project="web",
            model="local/demo",
        )
        await found.keep(query, Kept(answer=b"{}", cost_nano=213_000, origin="r1"))
    yield found
    await found.close()


@pytest.fixture
async def home(tmp_path: Path, clock: FrozenClock, cached: SemanticCache) -> AsyncGenerator[House, None]:
    async with house(tmp_path, clock, cache=cached) as found:
        yield found


def handlers(home: House) -> list[HTTPRouteHandler]:
    found: list[HTTPRouteHandler] = []
    for route in home.app.router.routes:
        found += [handler for handler in getattr(route, "route_handlers", []) if isinstance(handler, HTTPRouteHandler)]
    return found


def addresses(home: House) -> list[tuple[str, str, str]]:
    """(method, path with placeholders filled, role) of every guarded JSON route."""
    found: set[tuple[str, str, str]] = set()
    for route in home.app.router.routes:
        for handler in getattr(route, "route_handlers", []):
            path = route.path
            if isinstance(handler, HTTPRouteHandler) and path.startswith(("/api/", "/v1/organization")):
                for part in ("{key_id:str}", "{request_id:str}", "{budget:path}", "{model:path}"):
                    path = path.replace(part, "x")
                for method in handler.http_methods:
                    if method != "OPTIONS":
                        found.add((str(method), path, str(handler.opt.get("role"))))
    return sorted(found)


async def test_every_route_declares_a_role(home: House) -> None:
    """A route without a guard is how peers were taken over: the forgotten mark must be found here, not outside."""
    assert undeclared(handlers(home)) == []
    assert len(addresses(home)) >= 25
    assert all(role in ROLES and role != "app" for _, _, role in addresses(home))


async def test_every_route_refuses_no_key_a_wrong_key_and_a_lower_role(home: House) -> None:
    """Role by route, all of them: what is not allowed is refused before anything is read."""
    keys = {role: await home.key(role) for role in ROLES}
    for method, path, needed in addresses(home):
        async with home.client(None) as nobody:
            answer = await nobody.request(method, path)
            assert answer.status_code == 401, (method, path)
            assert set(answer.json()["error"]) == {"message", "type", "param", "code"}
        async with home.client("sk-nh-wrong") as stranger:
            assert (await stranger.request(method, path)).status_code == 401, (method, path)
        for role in ROLES[: ROLES.index(needed)]:
            async with home.client(keys[role]) as lower:
                answer = await lower.request(method, path)
                assert (answer.status_code, answer.json()["error"]["code"]) == (403, "insufficient_role"), (path, role)


async def test_the_admin_socket_needs_no_key_and_nobody_else_can_claim_it(home: House) -> None:
    """The file's permissions are the key; a header that says so is not."""
    async with home.client(None, app=admin_socket(home.app)) as local:
        assert (await local.get("/api/v1/whoami")).json()["role"] == "admin"
    async with home.client(None) as remote:
        claims = {"nearhit.admin_socket": "1", "x-nearhit-admin-socket": "1", "x-forwarded-for": "127.0.0.1"}
        assert (await remote.get("/api/v1/whoami", headers=claims)).status_code == 401


async def test_a_key_lives_from_making_to_revoking(home: House) -> None:
    """The four calls a team's administrator makes, in order."""
    async with home.client() as admin:
        made = await admin.post(
            "/api/v1/keys", json={"name": "bot", "team": "acme", "project": "web", "models": ["chat"], "expires": "30d"}
        )
        assert made.status_code == 201
        key = made.json()
        assert key["key"].startswith(f"sk-nh-{key['id']}-")
        assert key["expires"] > key["created"]
        listed = (await admin.get("/api/v1/keys")).json()["data"]
        assert [row["id"] for row in listed] == [key["id"]]
        assert key["key"] not in str(listed)
        rotated = (await admin.post(f"/api/v1/keys/{key['id']}/rotate")).json()
        assert (rotated["id"], rotated["key"] == key["key"]) == (key["id"], False)
        gone = (await admin.delete(f"/api/v1/keys/{key['id']}")).json()
        assert gone["state"] == "revoked"
    assert (await home.services.keyring.still_good(key["id"])) is None


WRONG_KEYS: list[tuple[dict[str, Any], str]] = [
    ({"name": "a"}, "team"),
    ({"team": "a"}, "name"),
    ({"name": "", "team": "a"}, "name"),
    ({"name": "x" * 101, "team": "a"}, "name"),
    ({"name": "a", "team": "a/b"}, "team"),
    ({"name": "a", "team": "a", "project": "b:c"}, "project"),
    ({"name": "a", "team": "a", "rolle": "x"}, "rolle"),
    ({"name": "a", "team": "a", "role": "root"}, "role"),
    ({"name": "a", "team": "a", "models": []}, "models"),
    ({"name": "a", "team": "a", "models": "chat"}, "models"),
    *(({"name": "a", "team": "a", "expires": end}, "expires") for end in ("soon", 1, 1e300, 10**400, "999999w")),
    ({"name": "a", "team": "a", "expires": "9999-12-31T23:59:59-12:00"}, "expires"),
    ({"name": 7, "team": "a"}, "name"),
]


async def test_a_wrong_key_request_names_the_field(home: House) -> None:
    """Whoever writes the script must see which field to mend."""
    async with home.client() as admin:
        for body, param in WRONG_KEYS:
            answer = await admin.post("/api/v1/keys", json=body)
            assert (answer.status_code, answer.json()["error"]["param"]) == (400, param), body


@pytest.mark.parametrize(
    ("asked", "param"),
    [
        ("export/focus?month=2026-11&format=xml", "format"),
        ("export/focus?format=csv", "month"),
        ("usage?format=xml", "format"),
        (f"usage?from={'9' * 65}", "from"),
        ("usage?from=400000w", "from"),
        ("cache/stats?days=0", "days"),
    ],
)
async def test_a_wrong_parameter_is_named_as_it_was_written(home: House, asked: str, param: str) -> None:
    """`form` and `start` are what we call them inside; a missing one was not named at all."""
    async with home.client() as admin:
        refused = await admin.get(f"/api/v1/{asked}")
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, param)


async def test_another_method_is_told_which_ones_there_are(home: House) -> None:
    """RFC 9110 wants `Allow` with every 405; only the endpoints of models had it."""
    async with home.client() as admin:
        for path, methods in (("usage", "GET"), ("budgets/team:acme", "GET PUT DELETE"), ("keys/", "GET POST")):
            refused = await admin.patch(f"/api/v1/{path}")
            assert refused.status_code == 405
            assert set(refused.headers["allow"].split(", ")) == {*methods.split(), "OPTIONS"}


async def test_malformed_json_and_unknown_addresses_keep_the_error_shape(home: House) -> None:
    """Litestar's own errors must not leak another shape."""
    async with home.client() as admin:
        for answer, status in (
            (await admin.post("/api/v1/keys", content=b"{"), 400),
            (await admin.put("/api/v1/keys", json={}), 405),
            (await admin.get("/api/v1/nothing"), 404),
        ):
            assert answer.status_code == status
            assert set(answer.json()["error"]) == {"message", "type", "param", "code"}


async def test_a_teams_administrator_stays_inside_the_team(home: House, clock: FrozenClock) -> None:
    """Object by object: another team's keys, requests, budgets, usage and cached prompts look as if there were none."""
    await happened(home.services.database, [request_row(clock, 1), request_row(clock, 2, team="zeta")])
    theirs = request_row(clock, 2, team="zeta")["id"]
    async with home.client() as admin:
        other = (await admin.post("/api/v1/keys", json={"name": "z", "team": "zeta"})).json()["id"]
        await admin.put("/api/v1/budgets/team:zeta", json={"limit_usd": "1"})
    async with home.client(await home.key("admin", "acme")) as acme:
        assert (await acme.delete(f"/api/v1/keys/{other}")).status_code == 404
        assert (await acme.post("/api/v1/keys", json={"name": "n", "team": "zeta"})).status_code == 403
        assert (await acme.post("/api/v1/keys", json={"name": "n", "role": "viewer"})).status_code == 403
        assert (await acme.get(f"/api/v1/requests/{theirs}")).status_code == 404
        assert {row["team"] for row in (await acme.get("/api/v1/requests")).json()["data"]} == {"acme"}
        assert (await acme.get("/api/v1/requests?team=zeta")).json()["data"] == []
        usage = (await acme.get("/api/v1/usage?group_by=team")).json()
        assert [row["team"] for row in usage["data"]] == ["acme"]
        assert (await acme.get("/api/v1/usage?group_by=team&team=zeta")).json()["total"]["requests"] == 0
        assert (await acme.get("/api/v1/budgets")).json()["data"] == []
        assert (await acme.put("/api/v1/budgets/team:zeta", json={"limit_usd": "9"})).status_code == 403
        assert (await acme.put("/api/v1/budgets/org", json={"limit_usd": "9"})).status_code == 403
        assert (await acme.delete("/api/v1/budgets/team:zeta")).status_code == 404
        assert (await acme.put("/api/v1/budgets/project:acme/web", json={"limit_usd": "9"})).status_code == 200
        assert {row["team"] for row in (await acme.get("/api/v1/cache/entries")).json()["data"]} == {"acme"}
        assert (await acme.delete("/api/v1/cache?team=zeta")).status_code == 403
        assert (await acme.delete("/api/v1/cache")).json()["purged"] == 1
        assert (
            await acme.put("/api/v1/prices/openai/x", json={"input_usd": "1", "output_usd": "1"})
        ).status_code == 403
        assert (await acme.get("/api/v1/audit")).status_code == 403
        assert (await acme.post("/api/v1/keys/admin/rotate")).status_code == 400
    async with home.client() as admin:
        assert {row["team"] for row in (await admin.get("/api/v1/cache/entries")).json()["data"]} == {"zeta"}


async def test_a_budget_is_set_read_changed_and_retired(home: House) -> None:
    """Amounts are exact decimal strings on the way in and out."""
    async with home.client() as admin:
        wanted = {"limit_usd": "10.000000001", "window": "day", "timezone": "Europe/Berlin", "alerts": [0.9, 0.5]}
        made = (await admin.put("/api/v1/budgets/project:acme/web", json=wanted)).json()
        assert made["scope"] == "project:acme/web"
        assert (made["limit_usd"], made["remaining_usd"], made["spent_usd"]) == ("10.000000001",) * 2 + ("0",)
        assert made["alerts"] == [0.5, 0.9]
        assert made["window_start"] < made["window_end"]
        again = (await admin.put("/api/v1/budgets/project:acme/web", json={"limit_usd": 5})).json()
        assert (again["version"], again["limit_usd"]) == (made["version"] + 1, "5")
        assert len((await admin.get("/api/v1/budgets")).json()["data"]) == 1
        assert (await admin.get("/api/v1/budgets/project:acme/web")).json()["limit_usd"] == "5"
        assert (await admin.delete("/api/v1/budgets/project:acme/web")).status_code == 204
        assert (await admin.get("/api/v1/budgets/project:acme/web")).status_code == 404


WRONG_BUDGETS: list[tuple[str, dict[str, Any], str]] = [
    ("team:acme", {"limit_usd": "ten"}, "limit_usd"),
    ("team:acme", {"limit_usd": "-1"}, "limit_usd"),
    ("team:acme", {}, "limit_usd"),
    ("team:acme", {"limit_usd": "1", "window": "fortnight"}, "window"),
    ("team:acme", {"limit_usd": "1", "mode": "medium"}, "mode"),
    ("team:acme", {"limit_usd": "1", "timezone": "Mars/Olympus"}, "timezone"),
    ("team:acme", {"limit_usd": "1", "alerts": [99]}, "alerts"),
    ("planet:earth", {"limit_usd": "1"}, "scope"),
]


async def test_a_wrong_budget_names_the_field(home: House) -> None:
    """A limit that was misread would be worse than none."""
    async with home.client() as admin:
        for scope, body, param in WRONG_BUDGETS:
            answer = await admin.put(f"/api/v1/budgets/{scope}", json=body)
            assert (answer.status_code, answer.json()["error"]["param"]) == (400, param), (scope, body)


async def test_usage_adds_up_and_comes_as_csv_that_a_spreadsheet_can_open(home: House, clock: FrozenClock) -> None:
    """Finance reads this: groups sum to the total, amounts stay exact, no cell is a formula."""
    rows = [
        request_row(clock, 1, team="=cmd()"),
        request_row(clock, 2),
        hit_row(clock, 3),
        request_row(clock, 4, status=500),
    ]
    await happened(home.services.database, rows)
    async with home.client() as admin:
        found = (await admin.get("/api/v1/usage?group_by=team,model&from=1d")).json()
        sheet = await admin.get("/api/v1/usage?group_by=team&from=1d&format=csv")
        same = await admin.get("/api/v1/export/usage?group_by=team&from=1d")
    assert found["total"]["requests"] == sum(row["requests"] for row in found["data"]) == 4
    assert found["total"]["cost_usd"] == "0.000639"
    assert found["total"]["saved_usd"] == found["total"]["net_saved_usd"] == "0.000213"
    assert (found["total"]["hit_rate"], found["total"]["error_rate"]) == (0.25, 0.25)
    assert sheet.headers["content-type"].startswith("text/csv")
    assert sheet.content == same.content
    lines = sheet.text.split("\r\n")
    assert any(line.startswith("'=cmd(),1,") for line in lines)
    assert any(",0.000426," in line for line in lines)


async def test_usage_refuses_what_it_cannot_group_or_read(home: House) -> None:
    """A misspelt dimension must not become a column of nothing."""
    async with home.client() as admin:
        for query, param in (
            ("group_by=colour", "group_by"),
            ("from=yesterday", "from"),
            ("from=2027-01-01&to=2026-01-01", "from"),
            ("by=team", "by"),
            ("tag:=x", "tag:"),
        ):
            answer = await admin.get(f"/api/v1/usage?{query}")
            assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


async def test_one_request_shows_its_route_lines_price_and_reason(home: House, clock: FrozenClock) -> None:
    """The question a person has about a bill or a miss is answered by this one call."""
    row = request_row(clock, 1)
    await happened(home.services.database, [row])
    await charged(home.services.database, row["id"], row["at"], 213_000)
    looked = [{"entry": 9, "similarity": 0.95, "confidence": 0.6, "guard": "numbers"}]
    attempt = {"id": f"{row['id']}.1", "provider": "local", "model": "demo", "result": "ok"}
    attempt |= {"start_ms": 1.0, "first_chunk_ms": 2.0, "end_ms": 3.0, "cost_nano": 213_000}
    told: dict[str, object] = {"route": ["local/demo"], "reason": "guard", "looked": looked, "attempts": [attempt]}
    await explained(home.services.database, row["id"], row["at"], told)
    async with home.client() as admin:
        found = (await admin.get(f"/api/v1/requests/{row['id']}")).json()
        missing = await admin.get("/api/v1/requests/nope")
    assert found["request"]["cost_usd"] == found["lines"][0]["amount_usd"] == found["attempts"][0]["cost_usd"]
    assert found["lines"][0]["price"]["input_usd_per_million"] == "0.15"
    assert found["lines"][0]["price"]["id"] == "p1"
    assert found["route"] == ["local/demo"]
    assert (found["why"]["reason"], found["why"]["candidates"][0]["guard"]) == ("guard", "numbers")
    assert (missing.status_code, missing.json()["error"]["code"]) == (404, "request_not_found")


async def test_requests_page_by_page_and_as_csv(home: House, clock: FrozenClock) -> None:
    """`next` must lead to the older ones without a gap or a repeat."""
    await happened(home.services.database, [request_row(clock, number) for number in range(7)])
    seen: list[str] = []
    async with home.client() as admin:
        before = ""
        while True:
            found = (await admin.get(f"/api/v1/requests?limit=3{before}")).json()
            seen += [row["id"] for row in found["data"]]
            if found["next"] is None:
                break
            before = f"&before={found['next']}"
        sheet = (await admin.get("/api/v1/requests?format=csv")).text
        failed = (await admin.get("/api/v1/requests?failed=true")).json()["data"]
    assert seen == sorted(set(seen), reverse=True)
    assert len(seen) == 7
    assert len(sheet.strip().split("\r\n")) == 8
    assert failed == []


async def test_wrong_feedback_takes_the_answer_out_and_is_counted(home: House, clock: FrozenClock) -> None:
    """The measured wrong-hit rate rests on these verdicts; the last one on a request counts."""
    entry = (await home.services.cache.entries(10))[0]  # pyright: ignore[reportOptionalMemberAccess]
    hit, miss = hit_row(clock, 1, team=entry.team), request_row(clock, 2)
    await happened(home.services.database, [hit, miss])
    await explained(home.services.database, hit["id"], hit["at"], {"entry": entry.id})
    async with home.client() as admin:
        right = await admin.post("/api/v1/cache/feedback", json={"request_id": hit["id"], "verdict": "right"})
        assert right.json() == {"request_id": hit["id"], "verdict": "right", "entry": entry.id, "evicted": False}
        wrong = await admin.post("/api/v1/cache/feedback", json={"request_id": hit["id"], "verdict": "wrong"})
        assert wrong.json()["evicted"] is True
        nothing = await admin.post("/api/v1/cache/feedback", json={"request_id": miss["id"], "verdict": "wrong"})
        assert (nothing.status_code, nothing.json()["error"]["code"]) == (400, "not_a_hit")
        stats = (await admin.get("/api/v1/cache/stats")).json()
    assert entry.id not in [left.id for left in await home.services.cache.entries(10)]  # pyright: ignore[reportOptionalMemberAccess]
    scope = next(row for row in stats["data"] if row["team"] == entry.team)
    assert (scope["wrong_hits"]["judged"], scope["wrong_hits"]["wrong"]) == (1, 1)
    assert stats["total"]["entries"] == 1


async def test_a_hit_whose_explanation_is_gone_is_not_called_a_miss(home: House, clock: FrozenClock) -> None:
    """After `telemetry.explain_days` feedback said that no kept answer had served the request."""
    hit = hit_row(clock, 1)
    await happened(home.services.database, [hit])
    async with home.client() as admin:
        told = await admin.post("/api/v1/cache/feedback", json={"request_id": hit["id"], "verdict": "wrong"})
    assert (told.status_code, told.json()["error"]["code"]) == (400, "explanation_gone")


async def test_purge_takes_only_what_matches(home: House) -> None:
    """An operator who purges one team's answers must not empty the cache."""
    async with home.client(await home.key("operator", "")) as operator:
        assert (await operator.delete("/api/v1/cache?contains=nothing like it")).json() == {"purged": 0}
        assert (await operator.delete("/api/v1/cache?contains=ZETA")).json() == {"purged": 1}
        assert [row["team"] for row in (await operator.get("/api/v1/cache/entries")).json()["data"]] == ["acme"]


@pytest.mark.parametrize("asked", ["teams=acme", "Team=acme", "contains=", "team=acme&contains="])
async def test_purge_refuses_a_filter_it_does_not_read(home: House, asked: str) -> None:
    """A misspelt or empty filter was left out of account, so every tenant's answers were taken out."""
    async with home.client() as admin:
        refused = await admin.delete(f"/api/v1/cache?{asked}")
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, asked.rpartition("&")[2].split("=")[0])
        assert len((await admin.get("/api/v1/cache/entries")).json()["data"]) == 2


@pytest.mark.parametrize(("wrong", "judged"), [(0, 1), (0, 50), (1, 3), (25, 50), (50, 50)])
def test_the_interval_holds_the_share_and_narrows(wrong: int, judged: int) -> None:
    """A rate without its uncertainty would promise what was not measured."""
    found = interval(wrong, judged)
    assert found.rate is not None
    assert found.low is not None
    assert found.high is not None
    assert 0 <= found.low <= found.rate <= found.high <= 1
    more = interval(wrong * 10, judged * 10)
    assert more.high is not None
    assert more.low is not None
    assert more.high - more.low < found.high - found.low
