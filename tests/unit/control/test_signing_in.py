"""Sessions and the secrets that opened them, and what the sign-in page says to whom it cannot keep signed in."""

import hashlib
from collections.abc import AsyncGenerator
from html import unescape
from pathlib import Path

import httpx
import pytest

from gateway.auth import ADMIN, Keyring, NewKey
from gateway.db.session import Database
from tests.clock import FrozenClock
from tests.unit.control.house import ADMIN_KEY, House, house
from tests.unit.control.test_pages import csrf, sign_in


@pytest.fixture
async def home(tmp_path: Path, clock: FrozenClock) -> AsyncGenerator[House, None]:
    async with house(tmp_path, clock) as found:
        yield found


async def _opens(visitor: httpx.AsyncClient) -> bool:
    return (await visitor.get("/ui/keys")).status_code == 200


async def _key(home: House) -> tuple[str, str]:
    made = await home.services.keyring.create(ADMIN, NewKey(name="leaked", team="", project="", role="operator"))
    return made.row.id, made.key


async def test_a_session_ends_with_the_secret_that_opened_it(home: House) -> None:
    """A key is rotated because somebody else has it: they must not stay signed in for the rest of the day."""
    key_id, key = await _key(home)
    async with home.client(None) as thief, home.client(None) as owner, home.client() as admin:
        await sign_in(thief, key)
        assert await _opens(thief)
        fresh = (await admin.post(f"/api/v1/keys/{key_id}/rotate")).json()["key"]
        assert not await _opens(thief)
        await sign_in(owner, fresh)
        assert await _opens(owner)


async def test_a_session_lasts_as_long_as_its_secret_works_on(home: House, clock: FrozenClock) -> None:
    """An overlap is asked for so that nobody is interrupted; afterwards the old secret opens no page either."""
    key_id, key = await _key(home)
    async with home.client(None) as before, home.client(None) as during, home.client() as admin:
        await sign_in(before, key)
        await admin.post(f"/api/v1/keys/{key_id}/rotate?overlap=10m")
        await sign_in(during, key)
        assert (await _opens(before), await _opens(during)) == (True, True)
        clock.advance(601)
        assert (await _opens(before), await _opens(during)) == (False, False)


async def test_the_admin_keys_sessions_end_when_it_is_replaced(database: Database, clock: FrozenClock) -> None:
    """Whoever changes NEARHIT_ADMIN_KEY and starts again has no other way to put out who had the old one."""

    def keyring(key: str) -> Keyring:
        digest = hashlib.sha256(key.encode()).digest()
        return Keyring(database, b"p" * 32, now=clock.now, monotonic=clock.monotonic, admin_key=lambda: digest)

    signed = await keyring(ADMIN_KEY).sign_in(ADMIN_KEY)
    assert await keyring(ADMIN_KEY).still_good("admin", signed.mark) == ADMIN
    assert await keyring("another-admin-key-altogether").still_good("admin", signed.mark) is None
    assert hashlib.sha256(ADMIN_KEY.encode()).hexdigest() not in signed.mark  # nothing to try guesses on at rest


@pytest.mark.parametrize(
    ("host", "headers", "warned"),
    [
        ("192.168.1.4:8080", {}, True),
        ("nearhit.example.com", {"sec-fetch-site": "none"}, False),
        ("127.0.0.1:8080", {}, False),
    ],
)
async def test_who_comes_over_plain_http_is_told_why_the_sign_in_does_not_last(
    home: House, host: str, headers: dict[str, str], warned: bool
) -> None:
    """The browser drops the cookie, and the same form would come back for ever without a word."""
    async with home.client(None) as visitor:
        page = await visitor.get("/ui/login", headers={"host": host, **headers})
    assert ("over plain HTTP" in page.text) == warned


async def test_an_empty_form_is_not_told_about_headers(home: House) -> None:
    """`Authorization: Bearer` is nothing that can be typed into a form."""
    async with home.client(None) as visitor:
        answer = await visitor.post("/ui/login", data={"key": " "})
    assert answer.status_code == 401
    assert "paste a key" in answer.text
    assert "Bearer" not in answer.text


@pytest.mark.parametrize(
    "sheet", ["csv/requests", "csv/keys", "spend.csv", "prices.csv", "statements/2026-09/sheet.csv"]
)
async def test_no_cache_on_the_way_keeps_a_sheet(home: House, sheet: str) -> None:
    """There are proxies that keep whatever is called `.csv` and give it to whoever asks next, signed in or not."""
    async with home.client(None) as visitor:
        await sign_in(visitor)
        answer = await visitor.get(f"/ui/{sheet}")
        static = await visitor.get("/ui/static/app.css")
    assert answer.status_code == 200
    assert answer.headers["cache-control"] == "no-store"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert static.headers["cache-control"].endswith("immutable")


async def test_a_key_may_be_named_in_any_language(home: House) -> None:
    """Persian words and many emoji hold joiners, which Python does not call printable."""
    async with home.client() as admin:
        for name in ("می\u200cروم", "👩\u200d🚀 crew"):
            assert (await admin.post("/api/v1/keys", json={"name": name, "team": "acme"})).json()["name"] == name
        reversed_ = await admin.post("/api/v1/keys", json={"name": "a\u202eb", "team": "acme"})
        assert reversed_.status_code == 400


@pytest.mark.parametrize(
    ("host", "headers", "base"),
    [
        ("nearhit.example.com", {"sec-fetch-site": "same-origin"}, "https://nearhit.example.com/v1"),
        ("192.168.1.4:8080", {}, "http://192.168.1.4:8080/v1"),
        ("127.0.0.1:8080", {"sec-fetch-site": "same-origin"}, "http://127.0.0.1:8080/v1"),
    ],
)
async def test_the_example_to_copy_goes_the_way_the_page_came(
    home: House, host: str, headers: dict[str, str], base: str
) -> None:
    """Behind a proxy with TLS it said http://, and whoever copied it sent the new key in the clear."""
    told = {"host": host, **headers}
    async with home.client(None) as visitor:
        signed = await visitor.post("/ui/login", data={"key": ADMIN_KEY}, headers=told)
        told["cookie"] = signed.headers["set-cookie"].partition(";")[0]
        page = (await visitor.get("/ui/keys", headers=told)).text
        form = {"csrf": csrf(page), "name": "copied", "team": "acme"}
        assert f'base_url="{base}"' in unescape((await visitor.post("/ui/keys", data=form, headers=told)).text)


async def test_an_address_that_there_is_not_is_a_page_to_a_person(home: House) -> None:
    """Whoever mistypes one was shown JSON; programs still are, there and elsewhere."""
    async with home.client(None) as visitor:
        for method, path, status in (("GET", "/ui/key", 404), ("GET", "/ui/logout", 405)):
            page = await visitor.request(method, path, headers={"accept": "text/html,*/*"})
            assert (page.status_code, "There is no page" in page.text) == (status, True)
            assert page.headers["x-frame-options"] == "DENY"
            told = await visitor.request(method, path)
            assert (told.status_code, "error" in told.json()) == (status, True)
        answer = await visitor.get("/api/v1/nothing", headers={"accept": "text/html"})
        assert answer.json()["error"]["code"] == "not_found"
