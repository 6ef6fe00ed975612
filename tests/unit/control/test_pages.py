"""The dashboard without a browser: the door, the forms, what a page may contain, tables as CSV."""

import hashlib
import re
from collections.abc import AsyncGenerator
from pathlib import Path

import httpx
import msgspec
import pytest

from gateway.auth import ROLES
from gateway.routes.visitor import NAVIGATION
from gateway.web import words
from gateway.web.pages import assets
from gateway.web.sessions import ABSOLUTE, IDLE
from gateway.web.sheet import csv_bytes
from gateway.web.why import sentence
from tests.clock import FrozenClock
from tests.unit.control.house import ADMIN_KEY, House, charged, explained, happened, hit_row, house, request_row

STATIC = Path(__file__).parents[3] / "gateway" / "web" / "static"
PAGES = tuple(path for path, _, _ in NAVIGATION if path.startswith("/ui"))
NASTY = "<script>alert(1)</script>\"'><img src=x onerror=alert(1)>"


@pytest.fixture
async def home(tmp_path: Path, clock: FrozenClock) -> AsyncGenerator[House, None]:
    async with house(tmp_path, clock) as found:
        yield found


async def sign_in(client: httpx.AsyncClient, key: str = ADMIN_KEY) -> httpx.Response:
    return await client.post("/ui/login", data={"key": key, "next": "/ui"})


def csrf(page: str) -> str:
    found = re.search(r'name="csrf" value="([0-9a-f]{64})"', page)
    assert found is not None
    return found[1]


async def test_signing_in_sets_a_cookie_that_scripts_and_other_sites_cannot_use(home: House) -> None:
    """The session is the whole dashboard: its cookie must be out of reach of scripts and of other sites."""
    async with home.client(None) as visitor:
        answer = await sign_in(visitor)
        assert (answer.status_code, answer.headers["location"]) == (303, "/ui")
        cookie = answer.headers["set-cookie"]
        assert "HttpOnly" in cookie
        assert "samesite=strict" in cookie.lower()
        assert "secure" not in cookie.lower()  # plain HTTP to this very machine
        assert (await visitor.get("/ui")).status_code == 200


async def test_beyond_this_machine_the_cookie_needs_tls(home: House) -> None:
    """A cookie that travels in the clear over a network is a stolen session."""
    async with home.client(None) as visitor:
        answer = await visitor.post("/ui/login", data={"key": ADMIN_KEY}, headers={"host": "nearhit.example.com"})
    cookie = answer.headers["set-cookie"]
    assert cookie.startswith("__Host-nearhit=")
    assert "secure" in cookie.lower()


async def test_a_wrong_key_and_an_applications_key_are_refused(home: House) -> None:
    """The form says why, and never repeats what was typed."""
    app = await home.key("app")
    async with home.client(None) as visitor:
        wrong = await sign_in(visitor, "not-the-admin-key-at-all")
        assert wrong.status_code == 401
        assert "not-the-admin-key" not in wrong.text
        assert 'role="alert"' in wrong.text
        assert (await sign_in(visitor, app)).status_code == 403
        assert (await visitor.get("/ui")).status_code == 401
        assert not visitor.cookies


async def test_nothing_is_shown_without_a_session(home: House) -> None:
    """Every page, part and table answers with the sign-in form and 401."""
    async with home.client(ADMIN_KEY) as visitor:  # a key in a header is no session
        for path in (*PAGES, "/ui/parts/tiles", "/ui/parts/recent", "/ui/csv/requests", "/ui/requests/x"):
            answer = await visitor.get(path)
            assert answer.status_code == 401, path
            assert 'name="key"' in answer.text
        part = await visitor.get("/ui/parts/tiles", headers={"hx-request": "true"})
        assert (part.status_code, part.headers["hx-redirect"]) == (401, "/ui")


async def test_a_session_ends_by_signing_out_by_idling_and_by_age(home: House, clock: FrozenClock) -> None:
    """A laptop left open overnight must not be signed in the next morning."""
    async with home.client(None) as visitor:
        await sign_in(visitor)
        token = csrf((await visitor.get("/ui")).text)
        kept = dict(visitor.cookies)
        out = await visitor.post("/ui/logout", data={"csrf": token})
        assert (out.status_code, out.headers["location"]) == (303, "/ui/login")
        visitor.cookies.update(kept)  # a copied cookie is worth nothing after that
        assert (await visitor.get("/ui")).status_code == 401
        visitor.cookies.clear()
        await sign_in(visitor)
        clock.advance(IDLE - 1)
        assert (await visitor.get("/ui")).status_code == 200
        clock.advance(IDLE + 1)
        assert (await visitor.get("/ui")).status_code == 401
        await sign_in(visitor)
        for _ in range(int(ABSOLUTE // (IDLE / 2))):  # of a page that is made quickly; the door is one for all
            assert (await visitor.get("/ui/keys")).status_code == 200
            clock.advance(IDLE / 2)
        assert (await visitor.get("/ui/keys")).status_code == 401


async def test_a_session_dies_with_its_key(home: House) -> None:
    """Revoking a key must also close the pages that were opened with it."""
    key = await home.key("viewer", "acme")
    async with home.client(None) as visitor, home.client() as admin:
        await sign_in(visitor, key)
        assert (await visitor.get("/ui")).status_code == 200
        (only,) = (await admin.get("/api/v1/keys")).json()["data"]
        await admin.delete(f"/api/v1/keys/{only['id']}")
        assert (await visitor.get("/ui")).status_code == 401


async def test_changes_need_the_token_and_our_own_origin(home: House) -> None:
    """Another site's form, sent with the reader's cookie, must change nothing."""
    async with home.client(None) as visitor:
        await sign_in(visitor)
        good = {"csrf": csrf((await visitor.get("/ui/keys")).text), "name": "x", "team": "acme"}
        for fields, headers in (
            ({**good, "csrf": ""}, {}),
            ({**good, "csrf": "0" * 64}, {}),
            (good, {"origin": "https://evil.example"}),
            (good, {"origin": "null"}),
            (good, {"sec-fetch-site": "cross-site"}),
            (good, {"sec-fetch-site": "same-site"}),
        ):
            answer = await visitor.post("/ui/keys", data=fields, headers=headers)
            assert answer.status_code == 403, (fields, headers)
        assert (await home.services.keyring.any()) is False
        ours = {"origin": "http://127.0.0.1:8080", "sec-fetch-site": "same-origin"}
        assert (await visitor.post("/ui/keys", data=good, headers=ours)).status_code == 200


async def test_the_token_of_another_session_does_not_count(home: House) -> None:
    """A token must be bound to its session, else any reader could forge for any other."""
    async with home.client(None) as one, home.client(None) as two:
        await sign_in(one)
        await sign_in(two)
        stolen = csrf((await two.get("/ui/keys")).text)
        assert (await one.post("/ui/keys", data={"csrf": stolen, "name": "x", "team": "t"})).status_code == 403


async def test_a_key_is_shown_once_and_can_be_rotated_and_revoked(home: House) -> None:
    """The page is where most keys are made; a reload must not show it again."""
    async with home.client(None) as visitor:
        await sign_in(visitor)
        token = csrf((await visitor.get("/ui/keys")).text)
        wanted = {"name": "bot", "team": "acme", "models": "chat, embed"}
        made = await visitor.post("/ui/keys", data={**wanted, "csrf": token})
        found = re.search(r'id="fresh-key">(sk-nh-[^<]+)<', made.text)
        assert found is not None
        assert (await home.services.keyring.identify_key(found[1])).models == frozenset({"chat", "embed"})
        again = (await visitor.get("/ui/keys")).text
        assert found[1] not in again
        key_id = found[1].split("-")[2]
        rotated = await visitor.post(f"/ui/keys/{key_id}/rotate", data={"csrf": token})
        assert found[1] not in rotated.text
        assert "fresh-key" in rotated.text
        gone = await visitor.post(f"/ui/keys/{key_id}/revoke", data={"csrf": token})
        assert gone.headers["location"] == f"/ui/keys?revoked={key_id}"
        assert "revoked" in (await visitor.get("/ui/keys")).text


async def test_a_wrong_form_says_so_and_keeps_what_was_typed(home: House) -> None:
    """Nobody types a form twice."""
    async with home.client(None) as visitor:
        await sign_in(visitor)
        token = csrf((await visitor.get("/ui/budgets")).text)
        bad = await visitor.post("/ui/budgets", data={"csrf": token, "scope": "team:acme", "limit_usd": "lots"})
        assert bad.status_code == 400
        assert 'value="team:acme"' in bad.text
        assert "limit_usd" in bad.text
        fields = {
            "csrf": token,
            "scope": "team:acme",
            "limit_usd": "12.50",
            "window": "day",
            "timezone": "Europe/Berlin",
        }
        done = await visitor.post("/ui/budgets", data=fields)
        assert done.status_code == 303
        page = (await visitor.get(done.headers["location"])).text
        assert "exactly $12.5 USD" in page
        await visitor.post("/ui/budgets/retire", data={"csrf": token, "scope": "team:acme"})
        assert "No limit is set" in (await visitor.get("/ui/budgets")).text


async def test_roles_see_their_pages_and_no_more(home: House) -> None:
    """A viewer must not find keys by typing the address."""
    for role in ("viewer", "finance", "operator"):
        async with home.client(None) as visitor:
            await sign_in(visitor, await home.key(role, ""))
            page = (await visitor.get("/ui")).text
            for path, name, needed in NAVIGATION:
                allowed = ROLES.index(role) >= ROLES.index(needed)
                assert (f'href="{path}"' in page) == allowed or path == "/ui", (role, path, name)
            assert (await visitor.get("/ui/keys")).status_code == (200 if role == "operator" else 403)
            assert (await visitor.get("/ui/csv/keys")).status_code == (200 if role == "operator" else 403)
            token = csrf(page)
            assert (await visitor.post("/ui/keys", data={"csrf": token, "name": "x", "team": "t"})).status_code == 403
            assert (await visitor.post("/ui/budgets", data={"csrf": token})).status_code == 403


async def test_whatever_clients_send_stays_text(home: House, clock: FrozenClock) -> None:
    """Team names, models, tags and errors come from outside and are shown to an administrator."""
    row = request_row(clock, 1, model=NASTY, error=NASTY, user=NASTY, tags={NASTY: NASTY}, provider=NASTY, team=NASTY)
    await happened(home.services.database, [row])
    told: dict[str, object] = {"route": [NASTY], "reason": NASTY, "looked": [{"entry": 1, "guard": NASTY}]}
    await explained(home.services.database, row["id"], row["at"], told)
    async with home.client(None) as visitor:
        await sign_in(visitor)
        for path in (
            "/ui",
            "/ui/requests",
            f"/ui/requests/{row['id']}",
            f"/ui/requests?model={NASTY}",
            "/ui?period=24h",
        ):
            page = await visitor.get(path)
            assert page.status_code == 200
            assert "<script>alert" not in page.text
            assert "<img src=x" not in page.text
            assert "&lt;script&gt;" in page.text


async def test_pages_hold_nothing_that_the_policy_forbids(home: House, clock: FrozenClock) -> None:
    """No inline script, style or handler and no address elsewhere: the strict policy would break the page silently."""
    row = hit_row(clock, 1)
    await happened(home.services.database, [row, request_row(clock, 2)])
    await charged(home.services.database, row["id"], row["at"], 0)
    async with home.client(None) as visitor:
        await sign_in(visitor)
        for path in (*PAGES, f"/ui/requests/{row['id']}", "/ui/login", "/docs", "/ui/requests/unknown"):
            page = await visitor.get(path)
            policy = page.headers["content-security-policy"]
            assert "default-src 'none'" in policy
            assert "unsafe" not in policy
            assert "frame-ancestors 'none'" in policy
            assert page.headers["x-content-type-options"] == "nosniff"
            assert not re.search(r"\sstyle=|\son[a-z]+=", page.text), path
            assert not re.search(r"<script(?![^>]*\ssrc=)", page.text), path
            assert not re.findall(r'(?:src|href|action)="(?:https?:)?//[^"]*"', page.text), path
            for name, tag in re.findall(r'"/ui/static/([^"?]+)\?v=([0-9a-f]+)"', page.text):
                assert assets()[name].tag == tag


async def test_the_first_page_shows_the_same_numbers_as_the_api(home: House, clock: FrozenClock) -> None:
    """Two sources for one number would sooner or later tell two stories."""
    await happened(
        home.services.database,
        [request_row(clock, 1), hit_row(clock, 2), hit_row(clock, 3), request_row(clock, 4, status=500)],
    )
    async with home.client(None) as visitor, home.client() as admin:
        await sign_in(visitor)
        page = (await visitor.get("/ui?period=24h")).text
        total = (await admin.get("/api/v1/usage?from=24h")).json()["total"]
    tiles: dict[str, str] = dict(re.findall(r'id="tile-(\w+)">(.*?)</section>', page, re.DOTALL))
    assert f"exactly ${total['cost_usd']} USD" in tiles["spend"]
    assert f"exactly ${total['saved_usd']} USD" in tiles["saved"]
    assert words.percent(total["hit_rate"]) in tiles["hits"]
    assert f"{total['hits']} of {total['requests']} requests" in tiles["hits"]
    assert words.percent(total["error_rate"]) in tiles["errors"]
    assert words.millis(total["p50_ms"]) in tiles["total"]
    assert (
        sum(
            map(int, re.findall(r'<td class="n">(\d+)</td>', page.split('id="requests-table"')[1].split("</table>")[0]))
        )
        == 4
    )


async def test_empty_pages_say_what_to_do(home: House) -> None:
    """The first thing a newcomer sees is an empty dashboard."""
    async with home.client(None) as visitor:
        await sign_in(visitor)
        first = (await visitor.get("/ui")).text
        assert "curl http://127.0.0.1:8080/v1/chat/completions" in first
        assert "No key yet" in (await visitor.get("/ui/keys")).text
        assert "Set the first limit" in (await visitor.get("/ui/budgets")).text
        assert "No request has come in yet" in (await visitor.get("/ui/requests")).text
        assert "No request matches" in (await visitor.get("/ui/requests?model=none")).text


async def test_every_table_comes_as_csv(home: House, clock: FrozenClock) -> None:
    """What is on the page can be taken into a spreadsheet, by the same people."""
    await happened(home.services.database, [request_row(clock, 1), hit_row(clock, 2)])
    await home.key()
    async with home.client(None) as visitor:
        await sign_in(visitor)
        for table, lines in (("requests", 3), ("keys", 2), ("budgets", 1), ("cache", 1), ("model", 2), ("team", 2)):
            answer = await visitor.get(f"/ui/csv/{table}")
            assert answer.headers["content-type"].startswith("text/csv"), table
            assert "attachment" in answer.headers["content-disposition"]
            assert len(answer.text.strip().split("\r\n")) == lines, table
        series = (await visitor.get("/ui/csv/series?period=24h")).text.strip().split("\r\n")
        assert sum(int(line.split(",")[4]) for line in series[1:]) == 1
        assert (await visitor.get("/ui/csv/secrets")).status_code == 404


async def test_another_teams_request_is_not_found(home: House, clock: FrozenClock) -> None:
    """The pages use the same reach as the API."""
    ours, theirs = request_row(clock, 1), request_row(clock, 2, team="zeta")
    await happened(home.services.database, [ours, theirs])
    async with home.client(None) as visitor:
        await sign_in(visitor, await home.key("operator", "acme"))
        assert (await visitor.get(f"/ui/requests/{ours['id']}")).status_code == 200
        assert (await visitor.get(f"/ui/requests/{theirs['id']}")).status_code == 404
        assert "zeta" not in (await visitor.get("/ui?period=24h")).text


async def test_files_are_packed_kept_for_a_year_and_nothing_else_is_served(home: House) -> None:
    """Only the package's own files, never a path outside of them."""
    async with home.client(None) as visitor:
        script = await visitor.get("/ui/static/vendor/htmx-4.0.1.min.js", headers={"accept-encoding": "gzip"})
        assert script.headers["content-encoding"] == "gzip"
        assert "immutable" in script.headers["cache-control"]
        assert hashlib.sha256(script.content).hexdigest()[:16] == assets()["vendor/htmx-4.0.1.min.js"].tag
        for path in (
            "../pages.py",
            "%2e%2e/pages.py",
            "vendor/manifest.json",
            "nothing.js",
            "vendor/htmx-4.0.1.LICENSE",
        ):
            assert (await visitor.get(f"/ui/static/{path}")).status_code in (401, 404)


def test_vendored_files_are_what_their_makers_published() -> None:
    """A changed byte in a vendored script would run in every administrator's browser."""
    listed = msgspec.json.decode((STATIC / "vendor" / "manifest.json").read_bytes())
    for one in listed:
        assert hashlib.sha256((STATIC / one["file"]).read_bytes()).hexdigest() == one["sha256"]
        assert all((STATIC / licence).stat().st_size > 100 for licence in one["licence_files"])
    scripts = {path.relative_to(STATIC).as_posix() for path in (STATIC / "vendor").glob("*.js")}
    assert scripts == {one["file"] for one in listed}


def test_where_to_go_after_signing_in_stays_here() -> None:
    """An address in a link must not turn our sign-in into somebody else's page."""
    from gateway.routes.visitor import within_pages

    for path in ("//evil.example", "https://evil.example", "/ui//evil", "/ui/\\evil", "", "/other", "/uix"):
        assert within_pages(path) == "/ui"
    assert within_pages("/ui/requests/abc") == "/ui/requests/abc"


@pytest.mark.parametrize("start", ["=", "+", "-", "@", "\t", "\r"])
def test_no_cell_is_a_formula(start: str) -> None:
    """A team called `=HYPERLINK(…)` must not run in finance's spreadsheet; a negative number stays a number."""
    from decimal import Decimal

    lines = csv_bytes(["a", "b", "c"], [[f"{start}cmd", Decimal("-0.000000001"), -1.5]]).decode()
    assert lines.split("\r\n", 1)[1].lstrip('"').startswith("'")
    assert ",-0.000000001,-1.5" in lines


@pytest.mark.parametrize(
    ("nano", "shown"),
    [
        (0, "$0"),
        (1, "$0.000000001000"),
        (213_000, "$0.0002130"),
        (999_999_999, "$1.0000"),
        (1_234_567_890_123, "$1,234.57"),
        (-213_000, "-$0.0002130"),
    ],
)
def test_money_has_four_digits_and_never_an_exponent(nano: int, shown: str) -> None:
    """`1e-09` is no amount a person can read."""
    assert words.money_text(nano) == shown


@pytest.mark.parametrize(
    ("value", "shown"),
    [(None, words.DASH), (0.42, "0.4 ms"), (812.4, "812 ms"), (1_240, "1.24 s"), (150_000, "2.5 min")],
)
def test_durations_read_well(value: float | None, shown: str) -> None:
    """Six digits of milliseconds are not a duration."""
    assert words.millis(value) == shown


def test_every_reason_is_a_sentence_and_an_unknown_one_is_shown() -> None:
    """A new reason word must never vanish behind a vague sentence."""
    assert "close enough" in sentence("miss", "far", None, known=True)
    assert "brand-new" in sentence("miss", "brand-new", None, known=True)
    assert "gone" in sentence("miss", None, None, known=False)
    assert "same" in sentence("hit-semantic", None, None, known=True)
    assert "tools" in sentence("miss", "not-kept", "tools", known=True)
