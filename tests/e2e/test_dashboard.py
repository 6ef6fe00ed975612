"""The dashboard in a real Chromium against a real gateway process: what an administrator sees and clicks."""

import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import httpx
import pytest
from playwright.sync_api import Browser, Dialog, Page, StorageState, ViewportSize, expect, sync_playwright

from tests import empty_database, proofs
from tests.services import program

ADMIN_KEY = "an-admin-key-for-the-browser-test"
FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
PATIENCE = 60.0
LAPTOP: ViewportSize = {"width": 1280, "height": 900}
PHONE: ViewportSize = {"width": 390, "height": 800}
PAGES = ("/ui/requests", "/ui/cache", "/ui/keys", "/docs")
OTHER_PAGES = ("/ui?period=24h", "/ui/budgets")  # which test_finance opens in every run

pytestmark = pytest.mark.browser


class Site:
    """A running gateway, its admin's API client and an application's key."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.api = httpx.Client(
            base_url=url, headers={"authorization": f"Bearer {ADMIN_KEY}"}, timeout=30, trust_env=False
        )
        self.key = str(self.api.post("/api/v1/keys", json={"name": "browser", "team": "acme"}).json()["key"])
        self.session: StorageState | None = None  # an administrator's who is signed in

    def ask(self, text: str, model: str = "local/sim", key: str | None = None) -> httpx.Response:
        body = {"model": model, "messages": [{"role": "user", "content": text}]}
        return self.api.post("/v1/chat/completions", json=body, headers={"authorization": f"Bearer {key or self.key}"})

    def total(self) -> dict[str, Any]:
        return self.api.get("/api/v1/usage?from=24h").json()["total"]


@contextmanager
def worker(home: Path) -> Generator[str, None, None]:
    """One gateway worker with a simulated engine and the exact cache: a process, without encoder and engine ones."""
    home.mkdir(parents=True, exist_ok=True)
    if not (home / "nearhit.db").exists():
        empty_database.put(home / "nearhit.db")
    variables = {
        **os.environ,
        "NEARHIT_HOME": str(home),
        "NEARHIT_ADMIN_KEY": ADMIN_KEY,
        "NEARHIT_ENGINES__LOCAL__MODEL": "sim",
        "NEARHIT_CACHE__MODE": "exact",
        "NEARHIT_CACHE__STORE": "memory",
        "NEARHIT_LEDGER__DURABILITY": "write",
        "NEARHIT_PROVIDERS": '{"gone": {"kind": "openai", "base_url": "http://127.0.0.1:9/v1", "api_key": "none"}}',
        "NEARHIT_MODELS": '{"lost": {"route": ["gone/m"], "free": true}}',
    }
    with socket.create_server(("127.0.0.1", 0)) as listening, (home / "log").open("wb") as log:
        listening.set_inheritable(True)
        command = [sys.executable, "-m", "gateway.server", "--fd", str(listening.fileno())]
        child = subprocess.Popen(command, env=variables, pass_fds=[listening.fileno()], stdout=log, stderr=log)
        try:
            url = f"http://127.0.0.1:{listening.getsockname()[1]}"
            await_answer(url, child, home / "log")
            yield url
        finally:
            child.terminate()
            child.wait(60)


def await_answer(url: str, child: subprocess.Popen[bytes], log: Path) -> None:
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until and child.poll() is None:
        try:
            if httpx.get(f"{url}/health/live", timeout=2, trust_env=False).status_code == 200:
                return
        except httpx.HTTPError:
            time.sleep(0.1)
    raise AssertionError(f"the gateway did not start:\n{log.read_text()[-4000:]}")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Generator[Site, None, None]:
    with worker(tmp_path_factory.mktemp("dashboard") / "home") as url:
        found = Site(url)
        assert found.ask("what is a hit?").status_code == 200
        assert found.ask("what is a hit?").headers["x-nearhit-cache"] == "hit-exact"
        assert found.ask("what is a miss?").status_code == 200
        assert found.ask("who are you?", model="nobody/nothing").status_code == 404
        yield found
        found.api.close()


@pytest.fixture(scope="module")
def browser() -> Generator[Browser, None, None]:
    where = program("chromium")
    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=str(where), args=list(FLAGS))
        yield opened
        opened.close()


class Watch:
    """What a page must never do: log errors, ask another machine."""

    def __init__(self, page: Page, url: str) -> None:
        self.errors: list[str] = []
        self.outside: list[str] = []
        page.on("console", lambda message: self.errors.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("request", lambda request: self._asked(request.url, url))

    def _asked(self, asked: str, url: str) -> None:
        if not asked.startswith((f"{url}/", "data:", "blob:")):
            self.outside.append(asked)

    def clean(self) -> None:
        assert self.errors == []
        assert self.outside == []


@pytest.fixture
def visit(browser: Browser, site: Site) -> Generator[tuple[Page, Watch], None, None]:
    """A page of an administrator who signed in once, for all tests but those of the door."""
    with browser.new_context(base_url=site.url, viewport=LAPTOP, storage_state=site.session) as context:
        page = context.new_page()
        if site.session is None:
            sign_in(page)
            expect(page.get_by_role("heading", name="Overview")).to_be_visible()
            site.session = context.storage_state()
        yield page, Watch(page, site.url)


@pytest.fixture
def stranger(browser: Browser, site: Site) -> Generator[Page, None, None]:
    """A page of somebody who is not signed in."""
    with browser.new_context(base_url=site.url, viewport=LAPTOP) as context:
        yield context.new_page()


def sign_in(page: Page, key: str = ADMIN_KEY) -> None:
    page.goto("/ui/login")
    page.get_by_label("Key").fill(key)
    page.get_by_role("button", name="Sign in").click()


def test_the_first_page_shows_the_numbers_of_the_api_and_charts_of_its_tables(
    visit: tuple[Page, Watch], site: Site
) -> None:
    """One look must give the right numbers, drawn, without an error or an outside request."""
    page, watch = visit
    page.goto("/ui?period=24h")
    total = site.total()
    expect(page.locator("#tile-spend .money").first).to_have_attribute("title", f"exactly ${total['cost_usd']} USD")
    saved = page.locator("#tile-saved .money")
    expect(saved.first).to_have_attribute("title", f"exactly ${total['net_saved_usd']} USD")
    expect(saved.last).to_have_attribute("title", f"exactly ${total['saved_usd']} USD")
    expect(page.locator("#tile-hits .value")).to_have_text(f"{total['hit_rate'] * 100:.1f} %")
    expect(page.locator("#tile-errors .value")).to_have_text(f"{total['error_rate'] * 100:.1f} %")
    charts = page.locator("figure[data-chart] svg")
    expect(charts).to_have_count(2)
    expect(charts.first.locator("path").first).to_be_attached()
    rows = page.locator("#recent tr")
    assert rows.count() == min(12, total["requests"])
    expect(page.locator("#recent .badge").first).to_be_visible()
    watch.clean()


def test_a_link_on_another_site_opens_the_very_view(visit: tuple[Page, Watch], site: Site) -> None:
    """A view is sent as an address, mostly through a page of another site, to which browsers give no strict cookie."""
    page, _ = visit
    view = f"{site.url}/ui/spend?by=model&from=2026-01-01&to=2026-01-31"
    link = f'<a href="{view.replace("&", "&amp;")}">the view</a>'
    page.route("http://chat.example/**", lambda route: route.fulfill(content_type="text/html", body=link))
    page.goto("http://chat.example/")
    page.get_by_role("link", name="the view").click()
    expect(page.get_by_role("heading", name="Spend", exact=True)).to_be_visible()
    assert page.url == view
    page.context.clear_cookies()
    page.goto("http://chat.example/")
    page.get_by_role("link", name="the view").click()
    page.get_by_label("Key").fill(ADMIN_KEY)
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("heading", name="Spend", exact=True)).to_be_visible()
    assert page.url == view


def test_the_open_page_shows_a_new_request_by_itself(visit: tuple[Page, Watch], site: Site) -> None:
    """An operator leaves the page open; it must not tell an old story."""
    page, watch = visit
    page.goto("/ui?period=24h")
    newest = page.locator("#recent tr a.rowlink").first
    before = newest.get_attribute("href")
    assert before is not None
    assert site.ask(f"something new {time.monotonic()}").status_code == 200
    expect(newest).not_to_have_attribute("href", before, timeout=30_000)
    watch.clean()


def test_a_part_that_cannot_be_renewed_stays_and_the_page_says_so(visit: tuple[Page, Watch]) -> None:
    """The answer of a database that was away, or of a proxy, stood in the place of every number."""
    page, _ = visit
    page.goto("/ui/live")
    expect(page.get_by_text("Requests per second").first).to_be_visible()
    page.route("**/ui/parts/**", lambda route: route.fulfill(status=502, content_type="text/html", body="<b>Bad</b>"))
    expect(page.locator("#stale")).to_be_visible(timeout=30_000)
    expect(page.get_by_text("Requests per second").first).to_be_visible()
    page.unroute("**/ui/parts/**")
    expect(page.locator("#stale")).to_be_hidden(timeout=30_000)


def test_the_live_page_renews_itself_keeps_the_focus_and_stands_still_when_asked(
    visit: tuple[Page, Watch], site: Site
) -> None:
    """It is left open on a wall and read with a keyboard: new numbers come, the place of the reader stays."""
    page, watch = visit
    page.goto("/ui/live")
    more = page.get_by_role("link", name="More")
    more.focus()
    before = page.locator("#tile-rps .extra").inner_text()
    assert site.ask(f"live {time.monotonic()}").status_code == 200
    expect(page.locator("#tile-rps .extra")).not_to_have_text(before, timeout=15_000)
    expect(more).to_be_focused()
    page.get_by_role("button", name="Pause").press("Enter")
    expect(page.get_by_role("button", name="Go on")).to_have_attribute("aria-pressed", "true")
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.wait_for_timeout(2_500)
    assert asked == []
    watch.clean()


def test_the_upstreams_page_tells_of_a_place_that_is_left_alone_by_itself(
    visit: tuple[Page, Watch], site: Site
) -> None:
    """Whoever is on call has it open: the circuit is told where it opens, aloud, and the reader's place stays."""
    page, watch = visit
    page.goto("/ui/upstreams")
    row = page.locator("#places tr", has_text="local/sim")
    expect(row).to_contain_text("closed")
    expect(row.locator("td").nth(3)).to_have_text(re.compile(r"ms|s$"))
    pause = page.get_by_role("button", name="Pause")
    pause.focus()
    made = site.api.post("/api/v1/keys", json={"name": "on call", "team": "ops"}).json()["key"]
    while (answer := site.ask(f"anyone? {time.monotonic()}", model="lost", key=made)).status_code != 503:
        assert answer.status_code == 502, answer.text
    failed = page.locator("#places tr", has_text="gone/m")
    expect(failed.locator(".status")).to_have_text(re.compile("open"), timeout=30_000)
    expect(failed).to_contain_text("lost: weight 1")
    expect(page.get_by_role("status")).to_contain_text("gone/m")
    expect(pause).to_be_focused()
    watch.clean()


def test_the_audit_page_tells_and_verifies(visit: tuple[Page, Watch], site: Site) -> None:
    """Who changed what can be found by its beginning, and the chain is checked with one click."""
    page, watch = visit
    page.goto("/ui/audit?action=key.create")
    expect(page.locator("tbody tr").first).to_contain_text("key.create")
    page.get_by_role("button", name="Verify the chain").click()
    expect(page.get_by_role("status")).to_contain_text("follow from one another")
    watch.clean()


def test_why_leads_to_everything_about_one_request(visit: tuple[Page, Watch], site: Site) -> None:
    """From a line on the first page to the reason, the attempts and the cost lines in one click."""
    page, watch = visit
    page.goto("/ui/requests?cache=hit-exact")
    page.get_by_role("link", name="why?").first.click()
    expect(page).to_have_url(re.compile(r"/ui/requests/[0-9a-f-]{36}#why$"))
    expect(page.locator("#why")).to_contain_text("The very same request was answered before")
    request_id = page.url.split("/")[-1].removesuffix("#why")
    told = site.api.get(f"/api/v1/requests/{request_id}").json()["request"]
    expect(page.locator(".tile .money").nth(1)).to_have_attribute("title", f"exactly ${told['saved_usd']} USD")
    page.goto("/ui/requests?cache=miss")
    page.get_by_role("link", name="why?").last.click()
    expect(page.locator("h2", has_text="Cost lines")).to_be_visible()
    expect(page.locator("#waterfall th", has_text="ledger.hold")).to_be_visible()
    assert page.locator("#waterfall svg.span").count() >= 5
    watch.clean()


def test_a_hit_called_wrong_is_gone_and_counts_on_the_cache_page(visit: tuple[Page, Watch], site: Site) -> None:
    """Feedback is one click from the hit, and the page that tells how far the cache is trusted draws what it lists."""
    page, watch = visit
    question = f"is this right? {time.monotonic()}"
    assert site.ask(question).status_code == 200
    hit = site.ask(question).headers
    assert hit["x-nearhit-cache"] == "hit-exact"
    until = time.monotonic() + PATIENCE
    while site.api.get("/api/v1/requests?cache=hit-exact").json()["data"][0]["id"] != hit["x-request-id"]:
        assert time.monotonic() < until  # the list is written a moment after the answer
        time.sleep(0.05)
    page.goto("/ui/requests?cache=hit-exact")
    page.get_by_role("link", name="why?").first.click()
    expect(page.get_by_role("button", name="It was right")).to_be_visible()
    page.get_by_role("button", name="It was wrong").click()
    expect(page.get_by_role("status")).to_contain_text("out of the cache")
    assert site.ask(question).headers["x-nearhit-cache"] == "miss"
    page.goto("/ui/cache")
    figures = page.locator("figure[data-chart]")
    expect(figures.locator("svg")).to_have_count(4)
    for name in ("trust-table", "hits-table", "found-table", "audits-table"):
        expect(page.locator(f"figure[data-chart={name}] svg path").first).to_be_attached()
        expect(page.locator(f"#{name} tbody tr").first).to_be_visible()
    row = page.locator("#trust-table tbody tr", has_text="acme")
    expect(row).to_contain_text("100.0 %")
    expect(page.get_by_role("alert")).to_contain_text("1 of 1 judged hits were wrong")
    told = next(one for one in site.api.get("/api/v1/cache/stats").json()["data"] if one["team"] == "acme")
    expect(row.locator("td").nth(1)).to_have_attribute("data-v", f"{told['wrong_hits']['low'] * 100:.6f}")
    watch.clean()


def test_the_tables_of_the_cache_page_fit_a_laptop(visit: tuple[Page, Watch], site: Site) -> None:
    """A column that is cut at the right edge is a figure nobody reads; long names give way."""
    page, watch = visit
    wanted = {"name": "long names", "team": "platform-engineering", "project": "customer-support-assistant"}
    headers = {"authorization": f"Bearer {site.api.post('/api/v1/keys', json=wanted).json()['key']}"}
    question = "how is the weather today in the north of the country, and what will it be like in the south tomorrow?"
    body = {"model": "local/sim", "messages": [{"role": "user", "content": question}]}
    assert site.api.post("/v1/chat/completions", json=body, headers=headers).status_code == 200
    page.set_viewport_size({"width": 1280, "height": 900})
    page.goto("/ui/cache")
    expect(page.locator("#entries tbody tr").first).to_be_visible()
    tables = page.locator(".scroll")
    assert tables.count() == 7
    for table in tables.all():
        cut = table.evaluate("one => one.scrollWidth - one.clientWidth")
        assert cut <= 0, (cut, table.inner_text()[:200])
    expect(page.locator("th.clip", has_text="platform").first).to_have_attribute(
        "title", re.compile("support-assistant")
    )
    days = [page.locator(f"#{name} tbody time").all_inner_texts() for name in ("hits-table", "audits-table")]
    assert days[0] == days[1]
    watch.clean()


def test_a_key_is_made_used_and_revoked_with_the_keyboard(visit: tuple[Page, Watch], site: Site) -> None:
    """The whole life of a key on one page; the form takes the Enter key, the question before revoking is asked."""
    page, watch = visit
    page.goto("/ui/keys")
    page.locator("input[name=name]").fill("made in the browser")
    page.locator("input[name=team]").fill("browser")
    page.keyboard.press("Enter")
    key = page.locator("#fresh-key").inner_text()
    body = {"model": "local/sim", "messages": [{"role": "user", "content": "hello"}]}
    headers = {"authorization": f"Bearer {key}"}
    assert site.api.post("/v1/chat/completions", json=body, headers=headers).status_code == 200
    page.goto("/ui/keys")
    assert key not in page.content()
    line = page.locator("tr", has_text="made in the browser")
    asked: list[str] = []

    def agree(dialog: Dialog) -> None:
        asked.append(dialog.message)
        dialog.accept()

    page.once("dialog", agree)
    line.get_by_role("button", name="Revoke").click()
    expect(page.get_by_role("status")).to_contain_text("is revoked")
    assert "made in the browser" in asked[0]
    assert site.api.post("/v1/chat/completions", json=body, headers=headers).status_code == 401
    watch.clean()


def test_a_budget_is_set_and_shown(visit: tuple[Page, Watch], site: Site) -> None:
    """What the page says must be what the API holds."""
    page, watch = visit
    page.goto("/ui/budgets")
    page.get_by_label("Scope").fill("team:acme")
    page.get_by_label("Limit in USD").fill("7.25")
    page.get_by_role("button", name="Set budget").click()
    expect(page.get_by_role("status")).to_contain_text("team:acme is set")
    (found,) = site.api.get("/api/v1/budgets").json()["data"]
    assert (found["scope"], found["limit_usd"]) == ("team:acme", "7.25")
    expect(page.locator("tr", has_text="team:acme")).to_contain_text("$7.25")
    watch.clean()


def test_a_wrong_key_is_refused_and_signing_out_ends_it(stranger: Page) -> None:
    """The two ways in which the door must hold."""
    page = stranger
    sign_in(page, "sk-nh-wrong")
    expect(page.get_by_role("alert")).to_be_visible()
    expect(page.get_by_label("Key")).to_have_value("")
    sign_in(page)
    expect(page.get_by_role("heading", name="Overview")).to_be_visible()
    page.get_by_role("button", name="Sign out").click()
    expect(page.get_by_role("button", name="Sign in")).to_be_visible()
    answer = page.goto("/ui/keys")
    assert answer is not None
    assert answer.status == 401


def test_signing_out_is_within_reach_on_a_low_screen(stranger: Page) -> None:
    """The menu is longer than most laptops' screens are high: what stood below could not be reached at all."""
    stranger.set_viewport_size({"width": 1280, "height": 600})
    sign_in(stranger)
    stranger.goto("/ui/requests")
    stranger.get_by_role("button", name="Sign out").click(timeout=10_000)
    expect(stranger.get_by_label("Key")).to_be_visible()


@pytest.mark.reduced
def test_every_page_stands_in_light_in_dark_and_on_a_phone(visit: tuple[Page, Watch]) -> None:
    """No error, nothing outside, nothing wider than the screen, a heading and a way past the menu on each."""
    page, watch = visit
    looks: list[tuple[Literal["light", "dark"], ViewportSize]] = [("light", LAPTOP), ("dark", PHONE)]
    others: list[tuple[Literal["light", "dark"], ViewportSize]] = [("dark", LAPTOP), ("light", PHONE)]
    for scheme, size in (*looks, *others) if proofs.wanted() else looks:
        page.emulate_media(color_scheme=scheme)
        page.set_viewport_size(size)
        for path in (*PAGES, *OTHER_PAGES) if proofs.wanted() else PAGES:
            page.goto(path)
            stands(page)
    watch.clean()


def stands(page: Page) -> None:
    """It has a heading and a way past the menu, and nothing of it is wider than the screen."""
    expect(page.locator("h1")).to_have_count(1)
    expect(page.locator("a.skip")).to_have_attribute("href", "#main")
    wide = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
    assert wide <= 0, (page.url, page.viewport_size, wide)
