"""Every view is an address: what somebody without a session is led to, by a link, a form or an open page."""

from collections.abc import AsyncGenerator
from html import unescape
from pathlib import Path
from re import findall, search

import pytest
from httpx import Response

from gateway.routes.visitor import within_pages
from tests.clock import FrozenClock
from tests.unit.control.house import ADMIN_KEY, House, happened, house, request_row
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


async def _numbers(home: House, view: str) -> list[tuple[str, str]]:
    """(number of requests, address of their list) of each row."""
    text = (await _seen(home, view)).text
    return [(number, unescape(link)) for link, number in findall(r'href="(/ui/requests\?[^"]*)">(\d+)</a>', text)]


async def _seen(home: House, address: str) -> Response:
    async with home.client(None) as visitor:
        await sign_in(visitor)
        return await visitor.get(address)


async def _asked_for(home: House) -> None:
    """Of each of ten days one request of a user, two of nobody's and one of no team."""
    kinds: list[dict[str, object]] = [{"user": "ada"}, {}, {"tags": None}, {"team": "", "project": ""}]
    minutes = [(day * 24 * 60 + n + 1, more) for day in range(10) for n, more in enumerate(kinds)]
    await happened(home.services.database, [request_row(home.clock, at, **more) for at, more in minutes])


@pytest.mark.parametrize(
    "by", ["by=user", "by=team", "by=tag:feature", "by=team&then=user", "by=team&zone=Asia/Kathmandu"]
)
async def test_a_number_of_requests_lists_so_many(home: House, by: str) -> None:
    """Who opens a number wants those very requests: not those of other days, nor of somebody where nobody is meant."""
    await _asked_for(home)
    numbers = await _numbers(home, f"/ui/spend?{by}&from=2026-09-14&to=2026-09-16")
    assert sum(int(number) for number, _ in numbers) == 12
    for number, link in numbers:
        page = (await _seen(home, link)).text
        assert f"{number} requests on this page" in page
        sheet = (await _seen(home, link.replace("/ui/requests?", "/ui/csv/requests?"))).text
        assert len(sheet.splitlines()) == int(number) + 1


async def test_the_list_of_requests_is_narrowed_to_days_and_leafed_through(home: House) -> None:
    """A list of a month is longer than a page; the next page must be of the same days."""
    rows = [request_row(home.clock, minute * 30) for minute in range(200)]
    await happened(home.services.database, rows)
    first = await _seen(home, "/ui/requests?model=&team=&key=&cache=&from=2026-09-19&to=2026-09-20")
    assert "50 requests on this page" in first.text
    older = search(r'href="(/ui/requests\?[^"]*before=[^"]*)">Older', first.text)
    assert older is not None
    second = (await _seen(home, unescape(older[1]))).text
    assert "46 requests on this page" in second  # two days of forty-eight
    assert 'name="from" value="2026-09-19"' in second
    none = await _seen(home, "/ui/requests?from=2026-01-01&to=2026-01-31")
    assert "kept for 90 days" in none.text
    for wrong in ("from=yesterday", "from=2026-09-20&to=2026-09-19", "from=2026-09-19&zone=Mars"):
        assert (await _seen(home, f"/ui/requests?{wrong}")).status_code == 400


async def test_the_api_lists_requests_of_a_span(home: House) -> None:
    """`from` and `to` were taken and left out of account, which answers another question."""
    await _asked_for(home)
    async with home.client() as client:
        found = (await client.get("/api/v1/requests?from=2026-09-14&to=2026-09-16&limit=100")).json()["data"]
        assert len(found) == 8
        assert {row["at"][:10] for row in found} == {"2026-09-14", "2026-09-15"}
        assert len((await client.get("/api/v1/requests?from=3d&limit=100&user=ada")).json()["data"]) == 3
        assert len((await client.get("/api/v1/requests?limit=100")).json()["data"]) == 40
        assert (await client.get("/api/v1/requests?from=2026-09-16&to=2026-09-14")).status_code == 400


@pytest.mark.parametrize("days", ["from=9999-12-01&to=9999-12-31", "from=0001-01-01&to=0001-01-02", "from=9999-12-31"])
async def test_days_at_the_ends_of_the_calendar_are_no_failure(home: House, days: str) -> None:
    """A slip of the keyboard in a date must be told as one."""
    for page in ("/ui/spend", "/ui/spend.csv", "/ui/savings", "/ui/requests"):
        assert (await _seen(home, f"{page}?{days}&zone=Asia/Tokyo")).status_code in (200, 400)
