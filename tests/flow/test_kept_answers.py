"""Kept answers as clients and operators meet them: whose they are, whether they can be told, what they are worth."""

import asyncio
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from cache.codec import Codec
from cache.folded import FRESH_FOR
from gateway.keeping import is_answer
from gateway.rereading import Rereading
from gateway.scripted_calls import Options
from gateway.scripted_server import ScriptedServer
from gateway.settings import Settings
from gateway.web.why import sentence
from tests.empty_database import empty_postgres
from tests.flow.hash_encoder import hash_encoder
from tests.flow.two_gateways import cache_of, gateways
from tests.live import PROMPT, Live, Told, live, settings
from tests.waiting import until

ADMIN = "sk-test-admin-key-of-some-length"
SQLITE = {"store": "sqlite", "mode": "exact"}


async def control(gateway: Live, method: str, path: str, key: str = ADMIN, body: object = None) -> Any:
    headers = {"authorization": f"Bearer {key}", "content-type": "application/json"}
    data = None if body is None else msgspec.json.encode(body)
    async with gateway.client.request(method, gateway.url + path, headers=headers, data=data) as told:
        assert told.status == 200, await told.text()
        return await told.json()


async def test_a_text_that_spells_a_list_gets_a_vector_of_its_own(tmp_path: Path) -> None:
    """An index that was built from lists and asked with texts got vectors of other texts from the exact tier."""
    async with live(settings(tmp_path)) as gateway:
        marks = [
            (await gateway.post("/v1/embeddings", {"model": "up/scripted", "input": text})).headers["x-nearhit-cache"]
            for text in (["a"], '["a"]', ["a"], '["a"]')
        ]
        assert marks == ["miss", "miss", "hit-exact", "hit-exact"]


async def test_no_team_is_called_what_those_without_one_are(tmp_path: Path) -> None:
    """An operator of a team called "admin" read, and could purge, what keys of no team had asked."""
    async with live(settings(tmp_path)) as gateway:
        await gateway.chat(key=ADMIN)
        theirs = await gateway.new_key("admin", role="operator")
        assert (await control(gateway, "GET", "/api/v1/cache/entries", theirs))["data"] == []
        assert (await control(gateway, "GET", "/api/v1/cache/stats", theirs))["data"] == []
        assert await control(gateway, "DELETE", "/api/v1/cache", theirs) == {"purged": 0}
        (own,) = (await control(gateway, "GET", "/api/v1/cache/stats"))["data"]
        assert (own["team"], own["entries"], own["lookups"]) == ("", 1, 1)
        assert (await gateway.chat(key=ADMIN)).headers["x-nearhit-cache"] == "hit-exact"


async def test_a_repeat_goes_where_its_model_leads_now(tmp_path: Path) -> None:
    """A request that was remembered byte for byte got the old model's answers however its route was changed, and even
    when there was no such model any more."""
    values: dict[str, Any] = {"providers": {"up": {"kind": "scripted"}, "new": {"kind": "scripted"}}}

    def read() -> Settings:
        return settings(tmp_path, **values)

    values["models"] = {"smart": {"route": ["up/scripted"], "free": True}}
    async with live(read(), Rereading(read)) as gateway:
        marks = [(await gateway.chat(model="smart")).headers["x-nearhit-cache"] for _ in range(3)]
        assert marks == ["miss", "hit-exact", "hit-exact"]
        values["models"] = {"smart": {"route": ["new/scripted"], "free": True}}
        await control(gateway, "POST", "/api/v1/config/reload")
        now = await gateway.chat(model="smart")
        assert (now.headers["x-nearhit-cache"], now.headers["x-nearhit-provider"]) == ("miss", "new")
        values["models"] = {}
        await control(gateway, "POST", "/api/v1/config/reload")
        assert (await gateway.chat(model="smart")).status == 404


async def test_a_verdict_said_twice_at_once_counts_once(tmp_path: Path) -> None:
    """A double click took the saving back twice, and two reports of one wrong hit can raise an alarm."""
    async with live(settings(tmp_path)) as gateway:
        await gateway.chat()
        hit = await gateway.chat()
        await gateway.settled()
        said = {"request_id": hit.headers["x-request-id"], "verdict": "wrong"}
        told = await asyncio.gather(*(control(gateway, "POST", "/api/v1/cache/feedback", body=said) for _ in range(4)))
        assert sum(one["evicted"] for one in told) == 1
        money = (await control(gateway, "GET", "/api/v1/cache/stats"))["total"]["money"]
        assert float(money["saved_usd"]) == -float(money["corrected_usd"]) == float(hit.headers["x-nearhit-saved-usd"])


async def test_an_answer_is_judged_by_its_own_id_as_soon_as_it_is_read(tmp_path: Path) -> None:
    """An undo without a header: a body's id was unknown, and a verdict right after the answer met no request."""
    async with live(settings(tmp_path)) as gateway:
        await gateway.chat()
        for path, form in (
            ("/v1/chat/completions", {}),
            ("/v1/chat/completions", {"stream": True}),
            ("/v1/responses", {"input": "What is a KV block?", "store": False}),
            ("/v1/messages", {"max_tokens": 50}),
        ):
            asked = {"model": "up/scripted", **form}
            asked |= {} if "input" in asked else {"messages": PROMPT}
            await gateway.post(path, asked)
            hit = await gateway.post(path, asked)
            assert hit.headers["x-nearhit-cache"] == "hit-exact"
            (name,) = set(re.findall(rb'"id":"((?:chatcmpl-|resp_|msg_)[0-9a-f]{32})"', hit.raw))
            said = {"request_id": name.decode(), "verdict": "wrong"}
            told = await control(gateway, "POST", "/api/v1/cache/feedback", body=said)
            assert (told["request_id"], told["evicted"]) == (hit.headers["x-request-id"], True)
            await control(gateway, "GET", f"/api/v1/requests/{name.decode()}")


async def test_a_verdict_reaches_a_worker_that_did_not_answer(
    tmp_path: Path, redis_url: str, postgres_url: str
) -> None:
    """Who judged at once at another worker was told that there was no such request."""
    shared = {"database": await empty_postgres(postgres_url)}
    async with gateways(tmp_path, redis_url, {}, {}, more=shared) as (first, second):
        key = first.key
        await first.chat(key=key)
        hit = await first.chat(key=key)
        assert hit.headers["x-nearhit-cache"] == "hit-exact"
        said = {"request_id": hit.headers["x-request-id"], "verdict": "wrong"}
        assert (await control(second, "POST", "/api/v1/cache/feedback", body=said))["evicted"]


async def _have_kept(gateway: Live) -> bool:
    return any(group.kept for group in await cache_of(gateway).stats())


async def test_a_verdict_said_at_two_workers_at_once_is_learned_once(
    tmp_path: Path, redis_url: str, postgres_url: str
) -> None:
    """The two connections of a double click reach two workers: one wrong hit was two reports, and reports alarm."""
    shared = {"database": await empty_postgres(postgres_url)}
    meaning = {"mode": "semantic", "policy": "guarded", "embed_timeout": "10s", "audit_share": 0.0}
    async with (
        hash_encoder(tmp_path / "0"),
        hash_encoder(tmp_path / "1"),
        gateways(tmp_path, redis_url, {}, {}, more=shared, **meaning) as (first, second),
    ):
        for gateway in (first, second):
            await until(lambda gateway=gateway: not cache_of(gateway).status())
        asked = ("how do i bake bread at home", "how do i bake good bread at home")
        told: list[Told] = []
        for text in asked:
            told.append(await first.chat(key=first.key, messages=[{"role": "user", "content": text}]))
            # An answer is kept after its end, on Redis by a round trip: who asks in other words before that misses.
            await until(lambda: _have_kept(first))
        assert told[1].headers["x-nearhit-cache"] == "hit-semantic"
        await first.settled()
        said = {"request_id": told[1].headers["x-request-id"], "verdict": "wrong"}
        both = (first, second, first, second)
        await asyncio.gather(*(control(gateway, "POST", "/api/v1/cache/feedback", body=said) for gateway in both))
        for gateway in both[:2]:
            await cache_of(gateway)._verifier.flush()
        await asyncio.sleep(FRESH_FOR + 0.1)
        for gateway in both[:2]:
            # The second kept nothing and was asked nothing: what was measured is told all the same.
            (row,) = (await control(gateway, "GET", "/api/v1/cache/stats"))["data"]
            assert (row["trust"]["reported_wrong"], row["trust"]["quarantined"]) == (1, 1)


async def test_why_nothing_kept_was_served_is_told_truly(tmp_path: Path) -> None:
    """An answer older than the client wanted was "far", one that was not to be kept "not asked for" in the cache."""
    async with live(settings(tmp_path, cache={"ttl": "1h", "mode": "exact"})) as gateway:
        for control_said, status, words in (
            ("max-age=9", "fwd=miss; detail=not-kept", "Nothing was kept for exactly this request"),
            ("max-age=0", "fwd=request; detail=expired", "older than the client allows"),
            ("no-cache", "fwd=request", "The client asked for a fresh answer"),
            ("no-store, max-age=0", "fwd=request; detail=expired", "The client asked that nothing be kept"),
            ("no-store, no-cache", "fwd=request", "The client asked that nothing be kept"),
        ):
            told = await gateway.chat(headers={"cache-control": control_said})
            assert told.headers["cache-status"] == f"nearhit; {status}", control_said
            await gateway.settled()
            name = told.headers["x-request-id"]
            found = await control(gateway, "GET", f"/api/v1/requests/{name}")
            assert words in sentence(found["request"]["cache"], found["why"].get("reason"), None, known=True)


SPOILT = (
    *(b"", b"not json", b"[]", b"{}", b'{"choices":null}', b'{"choices":[{"finish_reason":5}]}', b'{"choices":[1]}'),
    *(b"\xff", b'{"choices":[{"message":3}]}', b'{"choices":[{}]}', b'{"choices":[{"message":{}}]', b"[" * 100_000),
)


@pytest.mark.parametrize("spoilt", SPOILT, ids=lambda raw: raw[:40].decode("latin-1"))
def test_what_cannot_be_told_is_no_answer(spoilt: bytes) -> None:
    """Bytes that pass the checksum may still be of another version, or of whoever can write to Redis."""
    assert not is_answer(spoilt)


async def test_a_kept_answer_that_cannot_be_told_is_a_miss(tmp_path: Path) -> None:
    """It was a 500 for everybody who asked the same until its time was over."""
    async with live(settings(tmp_path, cache=SQLITE)) as gateway:
        await gateway.chat()
        await gateway.settled()
        cache: Any = gateway.services.cache
        (entry,) = await cache.entries(10)

        def spoil() -> None:
            body = Codec().encode(msgspec.structs.replace(entry, answer=b'{"choices":[1]}'))
            cache._store._file.db.execute("UPDATE entry SET body = ?", (body,))

        await cache._store._run(spoil)
        cache._front.clear()
        for mark in ("miss", "hit-exact"):
            told = await gateway.chat()
            assert (told.status, told.headers["x-nearhit-cache"]) == (200, mark)
            await gateway.settled()


async def test_what_broke_off_for_all_who_shared_it_saved_nothing(tmp_path: Path) -> None:
    """Everyone who waited for a broken answer counted as having saved its cost: the more failed, the more was saved."""
    upstream = ScriptedServer(Options(tokens=20, tpot_ms=10, cut_rate=1.0))
    url = f"http://127.0.0.1:{await upstream.start()}/v1"
    try:
        providers = {"up": {"kind": "openai", "base_url": url, "api_key": "none"}}
        async with live(settings(tmp_path, providers=providers)) as gateway:
            await asyncio.gather(*(gateway.chat(stream=True) for _ in range(3)))
            rows: list[dict[str, Any]] = []

            async def written() -> bool:
                rows[:] = await gateway.rows()
                return len(rows) == 3

            await until(written)
            assert [row["source"] for row in rows].count("shared") == 2
            assert [row["saved_nano"] for row in rows] == [0, 0, 0]
    finally:
        await upstream.close()


async def test_a_dry_run_is_no_hit(tmp_path: Path) -> None:
    """It says that nothing is recorded, and each one made the hit rate better or worse."""
    async with live(settings(tmp_path)) as gateway:
        await gateway.chat()
        for temperature, mark in ((None, "hit-exact"), (0.5, "miss")):
            told = await gateway.chat(headers={"x-nearhit-dry-run": "1"}, temperature=temperature)
            assert told.json["cache"] == mark
        total = (await control(gateway, "GET", "/api/v1/cache/stats"))["total"]
        assert (total["lookups"], total["hits_exact"], total["misses"]) == (1, 0, {"not-kept": 1})
