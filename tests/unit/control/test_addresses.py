"""Every view is an address: what somebody without a session is led to, by a link, a form or an open page."""

from collections.abc import AsyncGenerator
from html import unescape
from pathlib import Path
from re import search

import pytest

from gateway.routes.visitor import within_pages
from tests.clock import FrozenClock
from tests.unit.control.house import ADMIN_KEY, House, house
from tests.unit.control.test_pages import csrf, sign_in

VIEW = "/ui/spend?by=model&then=user&from=2026-09-01&to=2026-09-21&zone=Europe%2FBerlin&tag%3Aa=b%26c"


@pytest.fixture
async def home(tmp_path: Path, clock: FrozenClock) -> AsyncGenerator[House, None]:
    async with house(tmp_path, clock) as found:
        yield found


def _next(page: str) -> str:
    found = search(r'name="next" value="([^"]*)"', page)
    assert found is not None
    return unescape(found[1])


async def test_a_colleague_who_must_sign_in_first_sees_the_view_that_was_sent(home: House) -> None:
    """The address is the view: signing in on the way must not turn it into another one."""
    async with home.client(None) as visitor:
        page = await visitor.get(VIEW)
        assert (page.status_code, _next(page.text)) == (401, VIEW)
        wrong = await visitor.post("/ui/login", data={"key": "wrong", "next": VIEW})
        assert _next(wrong.text) == VIEW
        answer = await visitor.post("/ui/login", data={"key": ADMIN_KEY, "next": _next(page.text)})
        assert (answer.status_code, answer.headers["location"]) == (303, VIEW)


async def test_a_form_or_an_open_page_without_a_session_leads_back_to_where_it_stood(home: House) -> None:
    """Half an hour over a form must not end on another page."""
    form = "/ui/budgets?edit=team%3Aacme"
    async with home.client(None) as visitor:
        here = {"referer": f"{visitor.base_url}{form}"}
        assert _next((await visitor.post("/ui/budgets", data={"scope": "org"}, headers=here)).text) == form
        part = await visitor.get("/ui/parts/tiles", headers={"hx-request": "true", **here})
        assert (part.status_code, part.headers["hx-redirect"]) == (401, form)
        elsewhere = {"referer": f"https://evil.example{form}"}
        assert _next((await visitor.post("/ui/budgets", data={"scope": "org"}, headers=elsewhere)).text) == "/ui"


async def test_a_link_on_another_site_opens_the_view_of_who_is_signed_in(home: House) -> None:
    """Browsers keep a strict cookie back when a link on another site is followed: the page asks for itself again."""
    followed = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}
    async with home.client(None) as visitor:
        onward = await visitor.get(VIEW, headers=followed)
        assert onward.status_code == 401
        assert 'name="key"' not in onward.text
        found = search(r'http-equiv="refresh" content="0; url=([^"]*)"', onward.text)
        assert found is not None
        assert unescape(found[1]) == VIEW
        again = await visitor.get(VIEW, headers={**followed, "sec-fetch-site": "same-origin"})
        assert _next(again.text) == VIEW  # who has no session is asked for a key
        await sign_in(visitor)
        assert "<h1>Spend</h1>" in (await visitor.get(VIEW, headers=followed)).text


async def test_a_change_from_another_site_is_not_asked_for_once_more(home: House) -> None:
    """Leading on is for looking: a form of another site still finds nobody signed in."""
    followed = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}
    async with home.client(None) as visitor:
        await sign_in(visitor)
        token = csrf((await visitor.get("/ui/budgets")).text)
        visitor.cookies.clear()
        answer = await visitor.post("/ui/budgets", data={"csrf": token, "scope": "org"}, headers=followed)
        assert answer.status_code == 401
        assert "http-equiv" not in answer.text


@pytest.mark.parametrize(
    ("asked", "led"),
    [
        ("//evil.example", "/ui"),
        ("/ui/\r\nset-cookie: a=b", "/ui"),
        ("/ui/spend?by=\n", "/ui"),
        ("/ui/a b", "/ui"),
        ("/ui/spend?at=http://evil.example", "/ui/spend?at=http://evil.example"),
        ("/ui?period=7d", "/ui?period=7d"),
        ("/ui/spend?user=" + "x" * 3_000, "/ui/spend"),
    ],
)
def test_where_to_go_is_one_line_within_the_pages(asked: str, led: str) -> None:
    """It becomes a header, and with a sign-in provider a cookie, which browsers drop when it is long."""
    assert within_pages(asked) == led
