"""Anomalies without a browser: which days, keys and models are told, with what, and to whom."""

import re
from collections.abc import AsyncGenerator
from html import unescape
from pathlib import Path

import pytest

from policies.anomalies import flags
from tests.clock import FrozenClock
from tests.unit.control.house import House, happened, house, request_row
from tests.unit.control.test_finance_pages import DAY, csv_of, filled, page_of


@pytest.fixture
async def home(tmp_path: Path, clock: FrozenClock) -> AsyncGenerator[House, None]:
    async with house(tmp_path, clock) as found:
        yield found


async def test_what_was_before_the_first_request_is_no_usual_day(home: House) -> None:
    """A new gateway's first weeks would all be out of line with nothing."""
    rows = [request_row(home.clock, number=day * DAY + 5, cost_nano=200_000_000) for day in range(25)]
    await happened(home.services.database, rows)
    assert "Nothing out of line" in (await page_of(home, "/ui/anomalies")).text


async def test_a_day_out_of_line_is_named_with_what_moved(home: House) -> None:
    """A flag without a cause sends somebody searching."""
    await filled(home)
    text = (await page_of(home, "/ui/anomalies")).text
    assert "Days out of line" in text
    assert "model smart" in text
    days = csv_of((await page_of(home, "/ui/anomalies.csv")).text)
    out = [(day["cost_usd"], day["expected_usd"]) for day in days if day["out_of_line"] == "true"]
    assert out == [("2.12", "0.32")]
    assert len(days) == 40


async def test_a_small_key_out_of_line_is_named_where_the_day_is_not(home: House) -> None:
    """The day hides it; the page says who, what was expected, what came, and leads to that key's day."""
    rows = [
        request_row(home.clock, number=day * DAY + 5 + which, key_id=key, model=model, cost_nano=cost)
        for day in range(40)
        for which, (key, model, cost) in enumerate(
            [
                ("bigone00", "smart", 1_000_000_000),
                ("leaked00", "chat", 200_000_000 if day == 3 else 10_000_000),
                ("", "chat", 500_000_000),
            ]
        )
    ]
    await happened(home.services.database, rows)
    text = (await page_of(home, "/ui/anomalies")).text
    assert "<h2>Days out of line</h2>" not in text
    assert "Nothing out of line" not in text
    (line,) = csv_of((await page_of(home, "/ui/anomalies/parts.csv")).text)
    assert (line["dimension"], line["name"], line["cost_usd"], line["expected_usd"]) == (
        "key",
        "leaked00",
        "0.2",
        "0.01",
    )
    link = re.search(r'href="(/ui/spend[^"]*)">key leaked00</a>', text)
    assert link is not None
    day = (await page_of(home, unescape(link[1]))).text
    assert "leaked00" in day
    assert "exactly $0.2 USD" in day[day.index("<h3>Spent</h3>") :][:200]
    other = await home.key("viewer", team="beta")
    assert "leaked00" not in (await page_of(home, "/ui/anomalies", other)).text
    assert csv_of((await page_of(home, "/ui/anomalies/parts.csv", other)).text) == []


async def test_a_day_is_explained_by_a_key_that_was_never_dear_before(home: House) -> None:
    """With more keys than are judged, the one that made the day would be missing among the dearest of all days."""
    rows = [
        request_row(home.clock, number=day * DAY + 5 + key, key_id=f"k{key:07}", cost_nano=10_000_000)
        for day in range(40)
        for key in range(60)
    ]
    rows.append(request_row(home.clock, number=6, id="new", key_id="newcomer", cost_nano=390_000_000))
    await happened(home.services.database, rows)
    text = (await page_of(home, "/ui/anomalies")).text
    assert re.search(r'key newcomer</a> \+<span class="money" title="exactly \$0.39 USD"', text)


async def test_nothing_out_of_line_says_so(home: House) -> None:
    """An empty page says what it would show."""
    assert "Nothing out of line" in (await page_of(home, "/ui/anomalies")).text


async def test_a_day_that_runs_is_not_out_of_line_for_what_it_has_not_spent_yet(home: House) -> None:
    """Each morning would be an alarm; a day that is dearer already is one before it is over."""
    first = 5 + DAY
    rows = [request_row(home.clock, number=first + day * DAY, cost_nano=500_000_000) for day in range(60)]
    await happened(home.services.database, rows)
    assert "Nothing out of line" in (await page_of(home, "/ui/anomalies")).text
    assert "true" not in (await page_of(home, "/ui/anomalies.csv")).text
    home.clock.advance(86_400)  # a whole day without any: now it is over
    text = (await page_of(home, "/ui/anomalies")).text
    assert text.count('<td class="n"><span class="down">') == 1
    await happened(home.services.database, [request_row(home.clock, number=1, cost_nano=900_000_000)])
    assert (await page_of(home, "/ui/anomalies")).text.count('<span class="up">+') == 1


async def test_what_the_page_says_of_the_least_difference_is_what_counts(home: House) -> None:
    """Who reads ten percent and sees twenty pass looks for a fault in the gateway."""
    assert [flag.score for flag in flags([1_000_000_000] * 28 + [1_340_000_000], 0)] == []
    assert [flag.day for flag in flags([1_000_000_000] * 28 + [1_360_000_000], 0)] == [28]
    text = (await page_of(home, "/ui/anomalies")).text
    assert "at least 35 % and a cent" in " ".join(text.split())
