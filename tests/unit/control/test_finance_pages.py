"""Spend and savings without a browser: what adds up, what is compared, who sees what."""

import re
from collections.abc import AsyncGenerator
from decimal import Decimal
from html import unescape
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import select

from gateway.auth import ADMIN
from gateway.db.models import Setting
from gateway.db.queries import Queries
from gateway.db.usage_cut import Asked
from gateway.routes import cache_stats
from gateway.routes.cache_stats import statistics
from policies.months import month_of
from tests.clock import FrozenClock
from tests.unit.control.house import House, charged, happened, house, request_row
from tests.unit.control.test_auth import statements
from tests.unit.control.test_pages import csrf, sign_in

DAY = 86_400 // 60  # in the minutes that `request_row` counts in


@pytest.fixture
async def home(tmp_path: Path, clock: FrozenClock) -> AsyncGenerator[House, None]:
    async with house(tmp_path, clock) as found:
        yield found


async def filled(home: House) -> None:
    """Two teams, two models, a hit, forty days; the last day of acme's `smart` is ten times the usual one."""
    rows = [
        request_row(home.clock, number=day * DAY + 5 + which, team=team, model=model, cost_nano=cost, **more)
        for day in range(40)
        for which, (team, model, cost, more) in enumerate(
            [
                ("acme", "smart", 2_000_000_000 if day == 0 else 200_000_000, {}),
                ("acme", "chat", 50_000_000, {}),
                ("beta", "chat", 70_000_000, {"key_id": "bbbbbbbb"}),
                ("acme", "chat", 0, {"source": "exact", "cache": "hit-exact", "saved_nano": 30_000_000}),
            ]
        )
    ]
    await happened(home.services.database, rows)


async def page_of(home: House, path: str, key: str | None = None) -> httpx.Response:
    async with home.client(None) as visitor:
        await (sign_in(visitor) if key is None else sign_in(visitor, key))
        return await visitor.get(path)


def _month(home: House) -> str:
    return month_of(home.clock.now())


def csv_of(text: str) -> list[dict[str, str]]:
    head, *lines = [line.split(",") for line in text.strip().splitlines()]
    return [dict(zip(head, line, strict=True)) for line in lines]


async def test_the_rows_of_a_view_add_up_to_its_total(home: House) -> None:
    """A pivot whose parts are not its whole is worse than none."""
    await filled(home)
    whole = csv_of((await page_of(home, "/ui/spend.csv?by=provider&from=2026-01-01")).text)
    parts = csv_of((await page_of(home, "/ui/spend.csv?by=team&then=model&from=2026-01-01")).text)
    assert len(parts) == 3
    assert round(sum(float(row["cost_usd"]) for row in parts), 9) == float(whole[0]["cost_usd"])
    assert {row["team"] for row in parts} == {"acme", "beta"}


async def test_a_view_by_place_says_where_vain_attempts_stand(home: House) -> None:
    """Whoever compares it with a provider's bill must know that this page puts a whole request at one place."""
    await filled(home)
    said = "stands whole at the one that answered"
    for by, told in (("provider", True), ("team&then=model_used", True), ("team&then=model", False)):
        assert (said in (await page_of(home, f"/ui/spend?by={by}&from=2026-01-01")).text) == told


async def test_a_period_is_compared_with_the_one_before(home: House) -> None:
    """Ten times the usual on the last day: the day before is what it is compared with."""
    await filled(home)
    today = (await page_of(home, "/ui/spend.csv?by=model&team=acme&from=2026-09-21&to=2026-09-21")).text
    rows = {row["model"]: row for row in csv_of(today)}
    assert rows, today
    assert all(float(row["cost_before_usd"]) > 0 for row in rows.values())


async def test_the_chart_stands_in_the_table_beside_it(home: House) -> None:
    """Numbers have one source: what is drawn can be read."""
    await filled(home)
    text = (await page_of(home, "/ui/spend?by=team&from=2026-09-01&to=2026-09-21")).text
    assert 'data-chart="days-table"' in text
    assert (
        len(re.findall(r'<tr><th scope="row"><time datetime="2026-09-\d\d" data-short="day" data-zone="UTC">', text))
        == 21
    )


async def test_a_filter_can_be_taken_away_and_a_name_opens_its_view(home: House) -> None:
    """Drilling down and up again are ordinary links."""
    await filled(home)
    text = (await page_of(home, "/ui/spend?by=model&team=acme&from=2026-09-01&to=2026-09-21")).text
    assert "team = acme" in text
    assert re.search(r'href="/ui/spend\?by=project[^"]*model=smart[^"]*"', text)
    (without,) = re.findall(r'class="chip" href="(/ui/spend[^"]*)"', text)
    assert "beta" in (await page_of(home, unescape(without).replace("by=model", "by=team"))).text


async def test_a_tag_is_a_dimension_and_a_filter_like_any_other(home: House) -> None:
    """Finance splits by what applications say of a request; the form offers the names that were seen."""
    await filled(home)
    text = (await page_of(home, "/ui/spend?only=tag:feature&is=faq&from=2026-09-01")).text
    assert "tag:feature = faq" in text
    assert "<option >tag:feature</option>" in text
    assert "Nothing was spent" in (await page_of(home, "/ui/spend?only=tag:feature&is=code&from=2026-09-01")).text
    by = (await page_of(home, "/ui/spend?by=tag:feature&from=2026-09-01")).text
    listed = re.search(r'href="(/ui/requests\?[^"]*)"', by)
    assert listed is not None
    requests = (await page_of(home, unescape(listed[1]))).text
    assert "tag:feature = faq" in requests
    assert "50 requests on this page" in requests
    assert (await page_of(home, "/ui/spend?only=colour&is=red")).status_code == 400


async def test_the_months_focus_file_stands_beside_its_view_for_finance_alone(home: House) -> None:
    """A link that a viewer may not follow is not shown; one that covers another month than the view would mislead."""
    await filled(home)
    link = "/ui/exports/focus/2026-09?format=parquet"
    assert link in (await page_of(home, "/ui/spend?from=2026-09-01&to=2026-09-21")).text
    assert link not in (await page_of(home, "/ui/spend?from=2026-08-01&to=2026-09-21")).text
    viewer = await home.key("viewer")
    assert link not in (await page_of(home, "/ui/spend?from=2026-09-01&to=2026-09-21", viewer)).text


async def test_a_teams_viewer_is_offered_no_tags_of_others(home: House) -> None:
    """The names of tags tell what other teams build."""
    await filled(home)
    assert "tag:feature<" not in (await page_of(home, "/ui/spend", await home.key("viewer", team="beta"))).text


async def test_a_month_is_replayed_as_the_form_asks(home: House) -> None:
    """The address keeps the question; a wrong one says what is wrong and keeps what was typed."""
    month = _month(home)
    await charged(home.services.database, "r1", home.clock.now() - 60, 66_000)
    whole = f"/ui/savings/whatif?month={month}"
    dearer = (await page_of(home, f"{whole}&model=local/demo&input_usd=100&output_usd=200")).text
    assert "exactly $0.000066 USD" in dearer  # what it cost
    assert "exactly $0.028 USD" in dearer  # 120 tokens at 100 a million, 80 at 200
    sheet = re.search(r'href="(/ui/savings/whatif.csv[^"]*)"', dearer)
    assert sheet is not None
    (line,) = csv_of((await page_of(home, unescape(sheet[1]))).text)
    assert (line["model"], line["actual_usd"], line["would_usd"]) == ("local/demo", "0.000066", "0.028")
    for wrong, says in (
        ("&instead=openai/gpt-5", "would have replaced"),
        ("&input_usd=1&output_usd=2", "which model the price is for"),
        ("&cache=rate&hits=many", "number of percent"),
        ("&cache=warm", "as-it-was, exact, off or rate"),
        ("&model=local/demo&instead=nobody/nothing", "There is no price for nobody/nothing"),
    ):
        answer = await page_of(home, whole + wrong)
        assert answer.status_code == 400, wrong
        assert says in answer.text, wrong


async def test_a_shared_cost_is_set_changed_and_taken_out_by_finance(home: House) -> None:
    """On the page as by the API: split to the last nano-dollar, noted with before and after, refused for one team."""
    await filled(home)
    month = _month(home)
    async with home.client(None) as visitor:
        await sign_in(visitor, await home.key("finance", team=""))
        token = csrf((await visitor.get("/ui/statements/shared")).text)
        form = {"csrf": token, "name": "gpu", "amount_usd": "90", "split": "fixed", "shares": "acme=2, beta=1"}
        form["from_month"] = month
        done = await visitor.post("/ui/statements/shared", data=form)
        assert (done.status_code, done.headers["location"]) == (303, "/ui/statements/shared?done=gpu")
        assert "acme 2, beta 1" in (await visitor.get(done.headers["location"])).text
        head, line = (await visitor.get("/ui/statements/shared.csv")).text.splitlines()
        assert head == "name,amount_usd,team,split,shares,from_month,until_month"
        assert line == f'gpu,90,,fixed,"acme=2, beta=1",{month},'
        assert "exactly $60 USD" in (await visitor.get(f"/ui/statements/{month}")).text
        prefilled = (await visitor.get("/ui/statements/shared?edit=gpu")).text
        assert 'value="acme=2, beta=1"' in prefilled
        for wrong in ({"shares": "acme"}, {"split": "by mood"}, {"team": "acme"}, {"from_month": "soon"}):
            answer = await visitor.post("/ui/statements/shared", data={**form, **wrong})
            assert answer.status_code == 400, wrong
            assert 'value="gpu"' in answer.text
        assert (await visitor.post("/ui/statements/shared/out", data=form)).status_code == 303
        assert "Nothing is shared yet" in (await visitor.get("/ui/statements/shared")).text
    async with home.client() as admin:
        noted = (await admin.get("/api/v1/audit")).json()["data"]
    assert [line["action"] for line in noted if line["target"] == "gpu"] == ["shared_cost.delete", "shared_cost.set"]
    assert (await page_of(home, "/ui/statements/shared", await home.key("finance", team="acme"))).status_code == 403


@pytest.mark.parametrize(
    ("query", "says"),
    [
        ("by=colour", "Spending cannot be shown by"),
        ("zone=Mars/Olympus", "no time zone"),
        ("from=yesterday", "must be a date"),
        ("from=2026-02-02&to=2026-01-01", "must not lie after"),
        ("from=2020-01-01&to=2026-01-01", "at most 400 days"),
    ],
)
async def test_a_broken_address_says_what_is_wrong_with_it(home: House, query: str, says: str) -> None:
    """Addresses are typed and shared by people."""
    answer = await page_of(home, f"/ui/spend?{query}")
    assert answer.status_code == 400
    assert says in answer.text


async def test_a_teams_viewer_sees_its_own_team_only(home: House) -> None:
    """Spending is the other teams' secret, by every page and every sheet."""
    await filled(home)
    key = await home.key("viewer", team="beta")
    for path in ("/ui/spend?by=team&from=2026-09-01", "/ui/savings", "/ui/anomalies", "/ui/spend.csv?from=2026-09-01"):
        answer = await page_of(home, path, key)
        assert answer.status_code == 200
        assert "acme" not in answer.text
    assert (await page_of(home, "/ui/spend?team=acme", key)).status_code == 400


@pytest.mark.parametrize("page", ["/ui/spend", "/ui/savings", "/ui/spend.csv", "/ui/savings.csv"])
async def test_a_page_asks_once_since_when_sums_are_kept(home: House, page: str) -> None:
    """It is one row, and was asked for three to five times per page."""
    await filled(home)
    async with statements(home.services.database) as seen:
        await page_of(home, page)
    one = select(Setting.value).where(Setting.name == "blocks_from")
    asked = str(one.compile(dialect=home.services.database._reader.sync_engine.dialect))
    assert seen.count(asked) == 1


async def test_what_the_cache_is_worth_is_one_reading_of_the_sums(home: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """Money and look-ups of the same requests were added up twice, by two statements of two moments."""
    await filled(home)
    asked: list[Asked] = []
    read = Queries._added_up

    async def noted(queries: Queries, wanted: Asked) -> Any:
        if "team" in wanted.group_by:
            asked.append(wanted)
        return await read(queries, wanted)

    monkeypatch.setattr(Queries, "_added_up", noted)
    told = await statistics(home.services, ADMIN)
    assert [one.group_by for one in asked] == [("team", "project", "model", "cache")]
    assert told.total.money.saved_usd == "0.24"
    monkeypatch.setattr(cache_stats, "MOST_GROUPS", 1)  # as where hits are among those that one answer does not hold
    assert (await statistics(home.services, ADMIN)).total == told.total
    assert len(asked) == 3


async def test_savings_are_the_sum_of_their_parts(home: House) -> None:
    """Net of what is taken off: the number finance quotes, the same on every page; providers' discounts beside it."""
    await filled(home)
    beside = {"discount_nano": 500_000_000, "routed_nano": 40_000_000, "embed_nano": 100_000_000}
    await happened(home.services.database, [request_row(home.clock, number=7, id="d", **beside)])
    text = (await page_of(home, "/ui/savings?from=2026-08-01&to=2026-09-30")).text
    parts = text[text.index("<tbody>") : text.index("<tfoot>")]
    assert sum(Decimal(amount) for amount in re.findall(r"exactly \$(-?[\d.]+) USD", parts)) == Decimal("1.1")
    assert re.search(r'id="net-saved"><span class="money" title="exactly \$1.1 USD"', text)
    assert re.search(r'id="saved-in-all"><span class="money" title="exactly \$1.64 USD"', text)
    assert re.search(r'id="saved-by-routing"><span class="money" title="exactly \$0.04 USD"', text)
    assert "exactly $-0.1 USD" in parts[parts.index("Embedding") :]
    days = csv_of((await page_of(home, "/ui/savings.csv?from=2026-08-01&to=2026-09-30")).text)
    assert sum(Decimal(day["routing_usd"]) for day in days) == Decimal("0.04")
    assert sum(Decimal(day["provider_cache_usd"]) for day in days) == Decimal("0.5")
    spend = (await page_of(home, "/ui/spend?from=2026-08-01&to=2026-09-30")).text
    assert "exactly $1.1 USD" in spend[spend.index("Saved, net") :][:200]


async def test_the_calculator_adds_up_and_scales(home: House) -> None:
    """The month is thirty of the days, and twice the requests cost twice as much."""
    once = csv_of((await page_of(home, "/ui/calculator.csv?prompt=1000&completion=300&requests=1000")).text)
    twice = csv_of((await page_of(home, "/ui/calculator.csv?prompt=1000&completion=300&requests=2000")).text)
    assert {row["model"] for row in once} >= {"openai/gpt-5-mini", "local/demo"}
    for one, two in zip(once, twice, strict=True):
        assert float(one["month_usd"]) == pytest.approx(30 * float(one["day_usd"]))
        assert float(two["day_usd"]) == pytest.approx(2 * float(one["day_usd"]), rel=1e-3)


async def test_the_calculator_says_what_it_cannot_price(home: House) -> None:
    """A model without a price is not free."""
    text = (await page_of(home, "/ui/calculator?model=openai/never-heard-of")).text
    assert "There is no price for openai/never-heard-of" in text


@pytest.mark.parametrize(
    ("query", "told"),
    [
        ("prompt=minus", "Prompt tokens per request is a whole number from 0 to"),
        ("requests=1.5", "Requests per day is a whole number from 0 to"),
        ("cached=nan", "Cached by the provider is a share from 0 to 100 %, not &#39;nan&#39;."),
        ("hits=101", "Answered by our cache is a share from 0 to 100 %"),
        (f"model={'x' * 201}", "Model is at most 200 characters"),
    ],
)
async def test_a_wrong_number_is_told_beside_the_form(home: House, query: str, told: str) -> None:
    """An address that somebody edited by hand: the form and what is right about it stay, in the words of the page."""
    page = await page_of(home, f"/ui/calculator?completion=77&{query}")
    assert page.status_code == 400
    assert told in page.text
    assert 'name="completion" type="number" min="0" value="77"' in page.text
    assert "$." not in page.text  # a path into a structure nobody sees
    assert (await page_of(home, f"/ui/calculator.csv?{query}")).status_code == 400


async def test_a_price_set_on_the_page_holds_and_is_audited(home: House) -> None:
    """Finance sets a contract's price without a terminal."""
    async with home.client(None) as visitor:
        await sign_in(visitor)
        token = csrf((await visitor.get("/ui/prices")).text)
        form = {"csrf": token, "model": "openai/gpt-5-mini", "input_usd": "0.11", "output_usd": "0.99"}
        answer = await visitor.post("/ui/prices", data=form)
        assert (answer.status_code, answer.headers["location"]) == (303, "/ui/prices?set=openai%2Fgpt-5-mini")
        page = (await visitor.get("/ui/prices")).text
        assert "contract" in page
        assert "0.11" in page
        wrong = await visitor.post("/ui/prices", data={**form, "input_usd": "cheap"})
        assert wrong.status_code == 400
        assert "cheap" in wrong.text
    async with home.client() as admin:
        assert "price.set" in (await admin.get("/api/v1/audit")).text


async def test_statements_show_months_and_close_only_what_is_over(home: House) -> None:
    """The month that runs cannot be sealed, and the page says why."""
    await filled(home)
    async with home.client(None) as visitor:
        await sign_in(visitor)
        assert "running" in (await visitor.get("/ui/statements")).text
        month = _month(home)
        page = (await visitor.get(f"/ui/statements/{month}")).text
        assert "It stays open because" in page
        answer = await visitor.post(f"/ui/statements/{month}/close", data={"csrf": csrf(page)})
        assert answer.status_code == 409
        assert "cannot be closed" in answer.text
        assert (await visitor.get("/ui/statements/2026-13")).status_code == 400


async def test_exports_are_finances_and_hold_the_month(home: House) -> None:
    """A session's cookie is enough for the file; a viewer's is not."""
    await filled(home)
    month = _month(home)
    assert "BilledCost" in (await page_of(home, f"/ui/exports/focus/{month}")).text
    assert (await page_of(home, f"/ui/exports/focus/{month}?format=parquet")).content[:4] == b"PAR1"
    assert (await page_of(home, f"/ui/exports/entries/{month}")).status_code == 200
    viewer = await home.key("viewer")
    assert (await page_of(home, "/ui/exports", viewer)).status_code == 403


async def test_a_teams_finance_is_not_told_that_nothing_is_exported(home: House) -> None:
    """Jobs hold every team's figures, so it may not see them; that there are none is another matter, and was untrue."""
    assert "Nothing is exported by itself" in (await page_of(home, "/ui/exports")).text
    theirs = (await page_of(home, "/ui/exports", await home.key("finance"))).text
    assert "Nothing is exported by itself" not in theirs
    assert "your key is of one team" in theirs


async def test_the_first_page_tells_what_the_month_will_have_cost(home: House) -> None:
    """With its range: one number alone would be believed."""
    assert 'id="forecast"' not in (await page_of(home, "/ui")).text
    await filled(home)
    text = (await page_of(home, "/ui")).text
    assert 'id="forecast"' in text
    assert "80 % between" in text


async def test_a_long_amount_is_written_smaller(home: House) -> None:
    """On a phone two tiles stand side by side; an amount that runs over its tile is read as another one."""
    await happened(home.services.database, [request_row(home.clock, 5, cost_nano=123_456_789_500_000_000)])
    for path in ("/ui/spend", "/ui/savings", "/ui"):
        text = (await page_of(home, path)).text
        assert re.search(r'<p class="value long"[^>]*><span class="money" title="exactly \$123456789.5 USD">', text), (
            path
        )
