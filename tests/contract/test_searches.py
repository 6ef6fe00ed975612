"""Searches that services made, counted of the ledger by both databases alike."""

from gateway.db.searches import searches
from gateway.db.session import Database
from policies.money import Usage
from tests.unit.exports.books import at, entry, post


async def test_searches_are_counted_alike_by_both_databases(url: str) -> None:
    """Each reads the list of an entry by words of its own; rows of before have shorter ones."""
    database = Database(url)
    await database.start()
    day, usages = at(2026, 10, 5), (Usage(prompt=5, web_searches=3), Usage(prompt=5, file_searches=2, web_searches=1))
    rows = [entry(n, day + 3_600 * n, usage) for n, usage in enumerate((*usages, Usage(prompt=9, audio_in=3)))]
    rows += [entry(7, day + 90_000, usages[0], team="beta", user="ann", request_id="r000000")]
    await post(database, rows)
    found = await searches(database, int(day), int(day) + 2 * 86_400, seconds=86_400)
    told = sorted(
        (one.bucket, one.group["team"], one.web, one.files, one.web_requests, one.file_requests) for one in found
    )
    assert told == [(0, "acme", 4, 2, 2, 1), (1, "beta", 3, 0, 1, 0)]
    assert {one.group["user"] for one in found} == {"", "ann"}
    (theirs,) = await searches(database, int(day), int(day) + 2 * 86_400, seconds=3_600, team="beta")
    assert (theirs.bucket, theirs.group["model_used"]) == (25, "gpt-5-mini")
    await database.close()
