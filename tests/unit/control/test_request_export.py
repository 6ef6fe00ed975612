"""Every request as CSV, and making sums anew, asked through the control plane."""

import csv
import io
from pathlib import Path

from tests.clock import FrozenClock
from tests.unit.control.house import happened, hit_row, house, request_row
from tests.unit.control.test_pages import sign_in


async def test_every_request_is_streamed_once(tmp_path: Path, clock: FrozenClock) -> None:
    """A spreadsheet of a quarter: more rows than a page of the database has, all of the caller's team, none else."""
    async with house(tmp_path, clock) as home:
        mine = [request_row(clock, number, total_ms=number / 3) for number in range(700)]
        await happened(home.services.database, [*mine, hit_row(clock, 800, team="zeta", user="=1+1")])
        async with home.client() as client:
            answer = await client.get("/api/v1/export/requests", params={"from": "2d"})
            mended = await client.post("/api/v1/usage/rebuild")
            refused = await client.get("/api/v1/export/requests", params={"from": "2d", "to": "3d"})
        assert answer.headers["content-type"].startswith("text/csv")
        lines = list(csv.DictReader(io.StringIO(answer.text)))
        assert [line["id"] for line in lines][1:] == [row["id"] for row in reversed(mine)]
        assert (lines[0]["user"], lines[1]["cost_usd"], lines[1]["tags"]) == ("'=1+1", "0.000213", '{"feature":"faq"}')
        assert refused.status_code == 400
        assert mended.json()["days"] >= 1
        async with home.client(await home.key("viewer", "zeta")) as client:
            theirs = await client.get("/api/v1/export/requests", params={"from": "2d"})
            assert (await client.post("/api/v1/usage/rebuild")).status_code == 403
        assert [line["team"] for line in csv.DictReader(io.StringIO(theirs.text))] == ["zeta"]


async def test_a_tag_filters_wherever_requests_are_told(tmp_path: Path, clock: FrozenClock) -> None:
    """What applications say of a request is what finance splits by; a filter that is not heard tells all of it."""
    async with house(tmp_path, clock) as home:
        tagged = [request_row(clock, number, tags={"feature": name}) for number, name in enumerate(("faq", "faq", "x"))]
        await happened(home.services.database, tagged)
        only = {"tag:feature": "faq", "from": "2d"}
        async with home.client() as client:
            sums = (await client.get("/api/v1/usage", params=only)).json()["total"]["requests"]
            rows = (await client.get("/api/v1/requests", params={"tag:feature": "faq"})).json()["data"]
            sheet = list(csv.DictReader(io.StringIO((await client.get("/api/v1/export/requests", params=only)).text)))
            for path in ("/api/v1/usage", "/api/v1/requests", "/api/v1/export/requests"):
                wrong = await client.get(path, params={"feature": "faq"})
                assert (wrong.status_code, wrong.json()["error"]["param"]) == (400, "feature")
        assert (sums, len(rows), len(sheet)) == (2, 2, 2)


async def test_the_sheet_of_the_page_has_everything_that_the_page_leads_to(tmp_path: Path, clock: FrozenClock) -> None:
    """It ended after a thousand rows and did not say so: whoever added it up had a wrong sum."""
    async with house(tmp_path, clock) as home:
        rows = [request_row(clock, number // 3, id=f"r{number:05}") for number in range(1_203)]
        failed = [request_row(clock, number, id=f"f{number:05}", status=500) for number in range(520)]
        await happened(home.services.database, [*rows, *failed, hit_row(clock, 800, team="zeta")])
        async with home.client(None) as visitor:
            await sign_in(visitor)
            whole, some = [
                list(csv.DictReader(io.StringIO((await visitor.get(f"/ui/csv/requests{query}")).text)))
                for query in ("", "?failed=true")
            ]
        assert len({line["id"] for line in whole}) == len(whole) == 1_724
        assert [line["at"] for line in whole] == sorted((line["at"] for line in whole), reverse=True)
        assert (len(some), some[0]["tags"]) == (520, '{"feature":"faq"}')
        async with home.client(None) as visitor:
            await sign_in(visitor, await home.key("viewer", "zeta"))
            theirs = (await visitor.get("/ui/csv/requests")).text
        assert [line["team"] for line in csv.DictReader(io.StringIO(theirs))] == ["zeta"]
