"""Finance's pages in a real Chromium on a gateway with weeks of traffic: numbers, addresses, sheets, access, paper."""

import asyncio
import csv
import hashlib
import io
import re
import time
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from html import unescape
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import msgspec
import pytest
from _pytest.mark import ParameterSet
from playwright.sync_api import Browser, Page, StorageState, expect, sync_playwright

from gateway.bench.pages import fill
from gateway.bench.traffic import Shape
from gateway.db.session import Database
from gateway.ledger import sums
from tests import proofs
from tests.e2e.test_dashboard import ADMIN_KEY, FLAGS, PATIENCE, Watch, sign_in, stands, worker
from tests.services import program

AXE = Path(__file__).parents[1] / "data" / "axe-core"
MARKER = "quixotic-porcupine"  # in every prompt, and nowhere else
MONTH = time.strftime("%Y-%m", time.gmtime())
PAGES = (
    "/ui?period=30d",
    "/ui/spend?by=team&then=model",
    "/ui/savings",
    "/ui/budgets?edit=team:search",
    f"/ui/statements/{MONTH}",
    "/ui/prices",
    "/ui/requests/A_HIT",
    "/ui/live",
    "/ui/login",
)
"""One of each kind: charts, pivots, forms, paper, long tables, one request, nobody signed in."""
OTHER_PAGES = (
    "/ui/requests",
    f"/ui/savings/whatif?month={MONTH}&model=local/sim&instead=openai/gpt-5&cache=off",
    "/ui/statements",
    "/ui/statements/shared",
    f"/ui/statements/{MONTH}?team=search",
    "/ui/anomalies",
    "/ui/calculator",
    "/ui/exports",
    "/ui/cache",
    "/ui/cache/tune",
    "/ui/keys",
    "/ui/upstreams",
    "/ui/engine",
    "/ui/policies",
    "/ui/audit",
    "/ui/requests/A_MISS",
    "/docs",
)
CHARTS = ("/ui?period=30d", "/ui/spend")
OTHER_CHARTS = ("/ui/savings", "/ui/anomalies", "/ui/calculator")


def in_proof(paths: tuple[str, ...]) -> list[ParameterSet]:
    """Built of the same parts as those of every run; `make proof` opens them all."""
    return [pytest.param(path, marks=pytest.mark.proof) for path in paths]


# With three times as many requests under `make proof`.
pytestmark = [pytest.mark.browser, pytest.mark.reduced]


class House:
    """A running gateway with a past, clients for its API, and an administrator's open session."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.admin = self.client(ADMIN_KEY)
        self.finance_key = str(self.api("POST", "/api/v1/keys", {"name": "finance", "role": "finance"})["key"])
        self.session: StorageState | None = None

    def client(self, key: str) -> httpx.Client:
        headers = {"authorization": f"Bearer {key}"}
        return httpx.Client(base_url=self.url, headers=headers, timeout=60, trust_env=False)

    def api(self, method: str, path: str, body: object = None) -> dict[str, Any]:
        answer = self.admin.request(method, path, json=body)
        assert answer.is_success, answer.text
        return answer.json()

    def live(self) -> None:
        """Real requests, so that the ledger has entries, the cache kept answers and a budget something refused."""
        for team in ("search", "support"):
            key = self.api("POST", "/api/v1/keys", {"name": f"{team} bot", "team": team})["key"]
            headers = {"authorization": f"Bearer {key}", "x-nearhit-tags": "feature=faq"}
            for text in ("what is a hit?", "what is a hit?", f"who asks for {team}?"):
                body = {"model": "local/sim", "messages": [{"role": "user", "content": f"{text} {MARKER}"}]}
                answer = self.admin.post("/v1/chat/completions", json=body, headers=headers)
                assert answer.status_code == 200, answer.text
        self.api("PUT", "/api/v1/budgets/team:support", {"limit_usd": "0.000000001"})
        body = {"model": "local/sim", "messages": [{"role": "user", "content": f"one more {MARKER}"}]}
        assert self.admin.post("/v1/chat/completions", json=body, headers=headers).status_code == 429
        self.api("PUT", "/api/v1/budgets/team:search", {"limit_usd": "25", "rpm": 600})
        self.api("PUT", "/api/v1/shared-costs/gpu", {"amount_usd": "300", "split": "even", "from_month": MONTH})


async def _past(home: Path) -> None:
    database, now = Database(f"sqlite:///{home / 'nearhit.db'}"), time.time()
    await database.start()
    await fill(database, Shape(requests=3_000 if proofs.wanted() else 1_000, days=50, keys=12, users=60, end=now))
    await sums.make_days(database, now)
    await database.close()


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Generator[House, None, None]:
    home = tmp_path_factory.mktemp("finance") / "home"
    home.mkdir()
    with ThreadPoolExecutor(1) as apart:  # this thread may already run the browser's loop
        apart.submit(asyncio.run, _past(home)).result()
    with worker(home) as url:
        found = House(url)
        found.live()
        yield found
        found.admin.close()


@pytest.fixture(scope="module")
def browser() -> Generator[Browser, None, None]:
    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=str(program("chromium")), args=list(FLAGS))
        yield opened
        opened.close()


@pytest.fixture
def visit(browser: Browser, house: House) -> Generator[tuple[Page, Watch], None, None]:
    """A page of an administrator who signed in once."""
    look: dict[str, Any] = {
        "base_url": house.url,
        "viewport": {"width": 1280, "height": 900},
        "reduced_motion": "reduce",
    }
    context = browser.new_context(**look, storage_state=house.session)
    page = context.new_page()
    if house.session is None:
        sign_in(page)
        house.session = context.storage_state()
    yield page, Watch(page, house.url)
    context.close()


def axe() -> str:
    (told,) = msgspec.json.decode((AXE / "manifest.json").read_bytes())
    script = (AXE / told["file"]).read_bytes()
    assert hashlib.sha256(script).hexdigest() == told["sha256"]
    return script.decode()


RUN_AXE = """async rules => {
  const chosen = rules ? {runOnly: {type: "rule", values: rules}} : {};
  const found = await axe.run(document, {resultTypes: ["violations"], ...chosen});
  return found.violations.filter(one => ["serious", "critical"].includes(one.impact))
    .map(one => `${one.id}: ${one.nodes.map(node => node.html.slice(0, 140)).slice(0, 3).join(" | ")}`);
}"""
TOO_WIDE = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
LONG_NAMES = """() => {
  for (const cell of document.querySelectorAll("tbody th, tbody td:not(.n)"))
    if (cell.firstChild && !cell.querySelector("form, .csv")) cell.append("accounts/fireworks/models/llama-v3p1-405b");
}"""
CUT = """boxes => boxes.filter(one => one.scrollWidth > one.clientWidth + 1)
  .map(one => [one.scrollWidth - one.clientWidth, one.innerText.slice(0, 80)])"""


@pytest.mark.parametrize("path", [*PAGES, *in_proof(OTHER_PAGES)])
def test_every_page_is_accessible_whole_and_quiet(visit: tuple[Page, Watch], house: House, path: str) -> None:
    """In light and dark on a laptop and on a phone: nothing cut, nothing serious for axe, no error, nobody asked."""
    page, watch = visit
    for name, mark in (("A_HIT", "hit-exact"), ("A_MISS", "miss")):
        if name in path:
            path = path.replace(name, house.api("GET", f"/api/v1/requests?cache={mark}")["data"][0]["id"])
    answer = page.goto(path)
    assert answer is not None
    assert answer.status == 200
    if path == "/ui/login":
        expect(page.locator("h1")).to_have_count(1)  # there is no menu to get past
    else:
        stands(page)
    assert page.locator(".scroll").evaluate_all(CUT) == []
    page.evaluate(axe())
    assert page.evaluate(RUN_AXE, None) == []
    page.emulate_media(color_scheme="dark")
    assert page.evaluate(RUN_AXE, ["color-contrast", "link-in-text-block"]) == []
    page.set_viewport_size({"width": 390, "height": 800})
    rules = ["scrollable-region-focusable", "color-contrast", "target-size", "aria-allowed-role"]
    # Charts and the reach of tables follow the window in their own time; the page's policy forbids waiting in the page.
    end = time.monotonic() + PATIENCE
    while (found := (page.evaluate(TOO_WIDE) <= 0, page.evaluate(RUN_AXE, rules))) != (True, []):
        assert time.monotonic() < end, found
        page.wait_for_timeout(50)
    watch.clean()


def test_a_page_that_says_no_is_accessible_too(visit: tuple[Page, Watch]) -> None:
    """Whoever mistypes an address must be able to read what was wrong with it."""
    page, _ = visit
    for path, status in (("/ui/spend?by=colour", 400), ("/ui/csv/nothing", 404)):
        answer = page.goto(path)
        assert answer is not None
        assert answer.status == status
        page.evaluate(axe())
        assert page.evaluate(RUN_AXE, None) == []


SERIES = """figure => {
  const table = document.getElementById(figure.dataset.chart);
  const heads = [...table.tHead.rows[0].cells].filter(one => one.dataset.series);
  const number = cell => Number(cell.dataset.v ?? cell.textContent);
  const rows = [...table.tBodies[0].rows];
  return {
    role: figure.getAttribute("role"), said: figure.getAttribute("aria-label"),
    paths: figure.querySelectorAll("svg path").length,
    drawn: echarts.getInstanceByDom(figure).getOption().series.map(one => [one.name, one.data]),
    listed: heads.map(head => [head.textContent.trim(), rows.map(row => number(row.cells[head.cellIndex]))]),
  };
}"""


@pytest.mark.parametrize("path", [*CHARTS, *in_proof(OTHER_CHARTS)])
def test_a_chart_is_drawn_from_the_table_beside_it(visit: tuple[Page, Watch], path: str) -> None:
    """Two sources of one number differ some day; and who cannot see the picture is told what it shows."""
    page, watch = visit
    page.goto(path)
    figures = page.locator("figure[data-chart]")
    expect(figures.locator("svg").first).to_be_attached()
    for figure in figures.all():
        found = figure.evaluate(SERIES)
        assert found["drawn"] == found["listed"]
        assert any(value for _, values in found["listed"] for value in values)
        assert found["paths"] > 3
        assert found["role"] == "img"
        for name, values in found["listed"]:
            assert name in found["said"]
            if found["said"].startswith("Requests"):
                assert f"{name} {round(sum(values))}" in found["said"]
    watch.clean()


def exactly(page: Page, selector: str) -> Decimal:
    """The amount that an element tells when it is pointed at."""
    title = page.locator(f"{selector} .money").first.get_attribute("title") or ""
    return Decimal(title.removeprefix("exactly $").removesuffix(" USD"))


def test_a_view_is_an_address(visit: tuple[Page, Watch]) -> None:
    """What is sent to a colleague must show the colleague the same; and every filter can be taken away again."""
    page, watch = visit
    page.goto("/ui/spend")
    everything = exactly(page, "tfoot td.n:nth-of-type(4)")
    page.get_by_label(re.compile("^By")).select_option("tag:feature")
    page.get_by_label("then by").select_option("team")
    page.get_by_label("Only where").fill("team")
    page.get_by_label("is", exact=True).fill("search")
    page.get_by_role("button", name="Show").click()
    expect(page.locator(".chip")).to_contain_text("team = search")
    rows = page.locator("main tbody").last.locator("tr").all_inner_texts()
    assert len(rows) > 2
    assert all("search" in row for row in rows)
    second = page.context.new_page()
    second.goto(page.url)
    assert second.locator("main tbody").last.locator("tr").all_inner_texts() == rows
    assert second.locator("figure").get_attribute("aria-label") == page.locator("figure").get_attribute("aria-label")
    narrowed = exactly(page, "tfoot td.n:nth-of-type(5)")
    assert 0 < narrowed < everything
    page.locator(".chip").click()
    expect(page.locator(".chip")).to_have_count(0)
    assert exactly(page, "tfoot td.n:nth-of-type(5)") == everything
    watch.clean()


def test_a_sheet_adds_up_to_the_page_it_came_from(visit: tuple[Page, Watch], house: House) -> None:
    """Finance copies the sum from the page and the lines from the sheet."""
    page, watch = visit
    page.goto("/ui/spend?by=team&then=provider")
    with page.expect_download() as downloading:
        page.locator("a.csv[href*='spend.csv']").click()
    lines = list(csv.DictReader(io.StringIO(Path(downloading.value.path()).read_text())))
    assert sum(Decimal(line["cost_usd"]) for line in lines) == exactly(page, "tfoot td.n:nth-of-type(5)")
    requests = page.locator("tfoot td.n").first.inner_text().replace("\u202f", "")
    assert sum(int(line["requests"]) for line in lines) == int(requests)
    total = house.api("GET", f"/api/v1/usage?from={MONTH}-01T00:00:00Z")["total"]
    assert exactly(page, "tfoot td.n:nth-of-type(5)") == Decimal(total["cost_usd"])
    page.goto("/ui/savings")
    with page.expect_download() as downloading:
        page.locator("a.csv").click()
    days = list(csv.DictReader(io.StringIO(Path(downloading.value.path()).read_text())))
    parts = [exactly(page, f"main section:nth-of-type(1) tbody tr:nth-child({n})") for n in (1, 2, 3)]
    for part, name in zip(parts, ("exact_usd", "semantic_usd", "shared_usd"), strict=True):
        assert sum(Decimal(day[name]) for day in days) == part
    watch.clean()


def test_the_keyboard_reaches_everything_in_order(visit: tuple[Page, Watch]) -> None:
    """The first key leads past the menu; from there on focus goes down the page, is seen, and skips nothing."""
    page, watch = visit
    page.goto("/ui/spend?by=team")
    page.keyboard.press("Tab")
    expect(page.locator(":focus")).to_have_text("Skip to content")
    page.keyboard.press("Enter")
    expect(page.locator("#main")).to_be_focused()
    wanted = page.locator(
        "main a[href], main select, main input:not([type=hidden]), main button, main [tabindex='0']"
    ).count()
    page.evaluate("window.seen = [document.activeElement]")
    note = """() => {
      const now = document.activeElement, last = window.seen.at(-1), style = getComputedStyle(now);
      window.seen.push(now);
      return [now !== last && !(last.compareDocumentPosition(now) & Node.DOCUMENT_POSITION_FOLLOWING),
              style.outlineStyle === "none" && style.boxShadow === "none" ? now.outerHTML : "",
              now.closest("main") !== null];
    }"""
    reached: set[int] = set()
    for _ in range(wanted + 6):  # a date has three places to stop at
        page.keyboard.press("Tab")
        backwards, unseen, inside = page.evaluate(note)
        if not inside:
            break
        assert not backwards
        assert unseen == ""
        reached.add(page.evaluate("[...document.querySelectorAll('*')].indexOf(document.activeElement)"))
    assert len(reached) == wanted
    watch.clean()


def test_a_budget_is_changed_where_it_stands(visit: tuple[Page, Watch], house: House) -> None:
    """The form holds what is in force; what is typed is what the API says then; the log has before and after."""
    page, watch = visit
    page.goto("/ui/budgets")
    page.get_by_role("link", name="Change team:search").click()
    expect(page.get_by_label("Limit in USD")).to_have_value("25")
    expect(page.get_by_label("Requests per minute")).to_have_value("600")
    page.get_by_label("Limit in USD").fill("30")
    page.get_by_label("Requests per minute").fill("")
    page.get_by_label("Tokens per minute").fill("90000")
    page.get_by_label("When exhausted, ask").fill("local/sim")
    page.get_by_label("From so much used on").fill("90")
    page.get_by_role("button", name="Change budget").click()
    expect(page.get_by_role("status")).to_contain_text("team:search is set")
    told = house.api("GET", "/api/v1/budgets/team:search")
    assert (told["limit_usd"], told["rpm"], told["tpm"]) == ("30", None, 90_000)
    assert (told["on_exhausted"], told["degrade_at"]) == ("degrade:local/sim", 0.9)
    line = next(one for one in house.api("GET", "/api/v1/audit")["data"] if one["target"] == "team:search")
    assert (line["before"]["rpm"], line["after"]["tpm"]) == (600, 90_000)
    expect(page.locator("#budgets-table tr", has_text="team:search")).to_contain_text("$30.00")
    expect(page.locator("#budgets-table tr", has_text="team:support")).to_contain_text("reached")
    expect(page.locator("#refused-table")).to_contain_text("a budget was exhausted")
    house.api("PUT", "/api/v1/budgets/team:search", {"limit_usd": "25", "rpm": 600, "on_exhausted": "refuse"})
    watch.clean()


def test_a_statement_on_paper_is_the_statement_alone(visit: tuple[Page, Watch], house: House) -> None:
    """Printed from a dark screen: black on white, without menu and buttons, nothing beyond the edge of the sheet."""
    page, watch = visit
    page.emulate_media(color_scheme="dark")
    page.goto(f"/ui/statements/{MONTH}?team=search")
    page.emulate_media(media="print", color_scheme="dark")
    page.set_viewport_size({"width": 690, "height": 980})  # A4 within its margins
    for hidden in (".side", ".screen", "form", "a.csv"):
        for one in page.locator(hidden).all():
            expect(one).to_be_hidden()
    assert page.evaluate("getComputedStyle(document.body).color") == "rgb(0, 0, 0)"
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert page.evaluate(TOO_WIDE) <= 0
    owed = house.api("GET", f"/api/v1/months/{MONTH}/statement?team=search")["teams"][0]["total_usd"]
    assert exactly(page, "tfoot td") >= 0
    assert exactly(page, ".sheet tfoot") == Decimal(owed)
    watch.clean()


def test_a_long_statement_on_paper_is_read_to_its_end(visit: tuple[Page, Watch], house: House) -> None:
    """Long names ran over the edge of the sheet, and the sum of all sheets stood at the end of each."""
    page, watch = visit
    for path in (f"/ui/statements/{MONTH}?team=search", "/ui/spend?by=team&then=model", "/ui/prices", "/ui/statements"):
        page.emulate_media(media="screen")
        page.set_viewport_size({"width": 1280, "height": 900})
        page.goto(path)
        page.evaluate(LONG_NAMES)
        page.emulate_media(media="print")
        page.set_viewport_size({"width": 690, "height": 980})
        assert page.evaluate(TOO_WIDE) <= 0, path
        foot = page.evaluate("[...document.querySelectorAll('tfoot')].map(one => getComputedStyle(one).display)")
        assert set(foot) <= {"table-row-group"}, path  # of a footer group each sheet gets one
        stuck = page.evaluate("[...document.querySelectorAll('th')].map(one => getComputedStyle(one).position)")
        assert set(stuck) <= {"static"}, path  # held at the edge it covers what stands beside it
        for form in page.locator("form[method=post]").all():
            expect(form).to_be_hidden()
    watch.clean()


def _walk(client: httpx.Client) -> dict[str, str]:
    """Every page that links lead to, a few views of each; address -> text."""
    waiting, found, views = ["/ui", "/docs", "/docs/openapi.json"], dict[str, str](), dict[str, int]()
    while waiting and len(found) < 250:
        address = waiting.pop(0)
        path = re.sub(r"[0-9a-f-]{36}", "ID", urlsplit(address).path)
        if address in found or views.get(path, 0) >= (4 if proofs.wanted() else 2) or "/static/" in path:
            continue
        views[path] = views.get(path, 0) + 1
        answer = client.get(address)
        assert answer.status_code in (200, 400, 403), (address, answer.status_code)
        found[address] = answer.text if answer.status_code == 200 else ""
        if answer.headers.get("content-type", "").startswith("text/html"):
            waiting += [unescape(link) for link in re.findall(r'href="(/(?:ui|docs)[^"#]*)', answer.text)]
    return found


def test_finance_reads_no_prompt_anywhere(house: House) -> None:
    """Whoever pays the bill need not know what was asked: no page, sheet, file or answer of the API says it."""
    with httpx.Client(base_url=house.url, timeout=60, trust_env=False) as visitor:
        assert visitor.post("/ui/login", data={"key": house.finance_key}).status_code == 303
        pages = _walk(visitor)
    read = [path for path, text in pages.items() if text]
    assert {urlsplit(path).path for path in read} >= {"/ui/spend", "/ui/exports", "/ui/cache", "/ui/spend.csv"}
    assert [path for path, text in pages.items() if MARKER in text] == []
    finance, opened = house.client(finance_key := house.finance_key), 0
    assert finance_key
    listed = finance.get("/api/v1/requests").json()["data"]
    known = {"request_id": listed[0]["id"], "month_name": MONTH, "budget": "org", "key_id": "none", "name": "gpu"}
    for path, verbs in finance.get("/docs/openapi.json").json()["paths"].items():
        address = re.sub(r"\{(\w+)[^}]*\}", lambda part: known.get(part[1], "none"), path)
        for verb in {"get", "post"} & set(verbs):
            if verb == "post" and not address.startswith(("/api/v1/cache", "/api/v1/usage", "/api/v1/whatif")):
                continue  # nothing is made or changed here
            answer = finance.request(verb.upper(), address, json={} if verb == "post" else None)
            assert MARKER not in answer.text, (verb, address)
            opened += answer.status_code == 200
    for one in listed:
        if one["model"] == "local/sim":
            assert MARKER not in finance.get(f"/api/v1/requests/{one['id']}").text
    finance.close()
    assert opened > 12
    with httpx.Client(base_url=house.url, timeout=60, trust_env=False) as admin:
        admin.post("/ui/login", data={"key": ADMIN_KEY})
        assert MARKER in admin.get("/ui/cache").text  # it is there to be found
