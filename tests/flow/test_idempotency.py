"""`Idempotency-Key` over real sockets: one key is answered and charged once, whoever asks again and whenever."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.flow.dialect_upstream import scripted
from tests.live import Live, live, settings

ASKED = {"model": "lab/m", "messages": [{"role": "user", "content": "How is bread baked?"}]}
NO_CACHE = {"store": "memory", "mode": "off"}
KEY = {"idempotency-key": "order-66"}


def behind(home: Path, url: str, **values: Any) -> Any:
    lab = {"kind": "openai", "base_url": url, "api_key": "none", "billing": "stops-on-close"}
    return settings(home, providers={"up": {"kind": "scripted"}, "lab": lab}, cache=NO_CACHE, **values)


async def priced(gateway: Live) -> Live:
    await gateway.services.prices.set("lab/m", input_usd="1.00", output_usd="2.00", actor="test", effective_from=0.0)
    return gateway


@pytest.mark.parametrize("stream", [False, True])
async def test_the_same_answer_comes_again_and_costs_nothing(tmp_path: Path, stream: bool) -> None:
    """A client that repeats itself after a lost connection must not pay twice, also after a restart."""
    body = {**ASKED, "stream": stream, "stream_options": {"include_usage": True}} if stream else ASKED
    async with scripted() as (script, upstream):
        async with live(behind(tmp_path, upstream.url)) as gateway:
            key = (await priced(gateway)).key
            first = await gateway.post("/v1/chat/completions", body, headers=KEY)
            second = await gateway.post("/v1/chat/completions", dict(reversed(body.items())), headers=KEY)
            assert (first.status, second.status) == (200, 200), first.raw
        async with live(behind(tmp_path, upstream.url)) as gateway:
            third = await gateway.post("/v1/chat/completions", body, key, KEY)
            assert len(await gateway.entries()) == 1
            rows = {row["id"]: row for row in await gateway.rows()}
        assert first.raw == second.raw == third.raw
        assert len(script.sent) == 1
        assert "idempotent-replayed" not in first.headers
        for told in (second, third):
            assert told.headers["idempotent-replayed"] == "true"
            assert told.headers["x-nearhit-cost-usd"] == "0"
            assert told.headers["content-type"] == first.headers["content-type"]
            assert told.headers["x-request-id"] != first.headers["x-request-id"]
            row = rows[told.headers["x-request-id"]]
            assert (row["source"], row["cache"], row["status"]) == ("replayed", "replayed", 200)
            assert (row["cost_nano"], row["saved_nano"], row["attempts"], row["prompt"]) == (0, 0, 0, 0)
        assert len(rows) == 3


async def test_who_comes_while_it_is_being_made_joins(tmp_path: Path) -> None:
    """An impatient client repeats itself while the first request still runs: that is one upstream call too."""
    async with scripted() as (script, upstream), live(behind(tmp_path, upstream.url)) as gateway:
        await priced(gateway)
        script.stalls = True
        asked = [
            asyncio.get_running_loop().create_task(
                gateway.post("/v1/chat/completions", {**ASKED, "stream": True}, headers=KEY)
            )
            for _ in range(3)
        ]
        while not script.sent:  # noqa: ASYNC110 - the upstream counts, it does not tell
            await asyncio.sleep(0.01)
        asked[0].cancel()  # the first client leaves; the others must still get the whole answer
        await asyncio.sleep(0.05)
        script.stalls = False
        told = await asyncio.gather(*asked[1:])
        assert [one.status for one in told] == [200, 200]
        assert told[0].raw == told[1].raw
        assert told[0].events[-1] == "[DONE]"
        assert len(script.sent) == 1
        assert len(await gateway.entries()) == 1


async def test_who_leaves_while_the_key_is_claimed_can_ask_again(tmp_path: Path) -> None:
    """A client that gave up at once and repeated itself was told for a day that its answer is lost."""
    async with scripted() as (script, upstream), live(behind(tmp_path, upstream.url)) as gateway:
        await priced(gateway)
        for number in range(16):
            named = {"idempotency-key": f"order-{number}"}
            first = asyncio.get_running_loop().create_task(gateway.post("/v1/chat/completions", ASKED, headers=named))
            await asyncio.sleep(number / 2_000)
            first.cancel()
            await asyncio.wait([first])
            again = await gateway.post("/v1/chat/completions", ASKED, headers=named)
            assert again.status == 200, again.raw
        assert len(script.sent) == len(await gateway.entries()) == 16


async def test_a_key_belongs_to_one_request_of_one_caller(tmp_path: Path) -> None:
    """Another body under the same key is a mistake of the client; another caller's same key is another key."""
    async with scripted() as (script, upstream), live(behind(tmp_path, upstream.url)) as gateway:
        await priced(gateway)
        await gateway.post("/v1/chat/completions", ASKED, headers=KEY)
        other = await gateway.post("/v1/chat/completions", {**ASKED, "seed": 1}, headers=KEY)
        assert (other.status, other.json["error"]["code"]) == (409, "idempotency_key_reused")
        assert other.headers["x-should-retry"] == "false"
        elsewhere = await gateway.post("/v1/chat/completions", ASKED, await gateway.new_key("rivals"), KEY)
        assert elsewhere.status == 200
        assert "idempotent-replayed" not in elsewhere.headers
        assert len(script.sent) == 2


async def test_what_cost_nothing_is_not_kept(tmp_path: Path) -> None:
    """A refusal must not stick to the key: clients repeat requests under the same key until they succeed."""
    async with scripted() as (script, upstream), live(behind(tmp_path, upstream.url)) as gateway:
        refused = await gateway.post("/v1/chat/completions", ASKED, headers=KEY)
        assert refused.status == 402
        await priced(gateway)
        script.refuses = ("422 Unprocessable Entity", {"message": "not like this", "type": "invalid_request_error"})
        assert (await gateway.post("/v1/chat/completions", ASKED, headers=KEY)).status == 422
        script.refuses = None
        assert (await gateway.post("/v1/chat/completions", ASKED, headers=KEY)).status == 200


async def test_a_key_is_held_where_an_attempt_on_the_way_is_in_doubt(tmp_path: Path) -> None:
    """The first place may bill what it read before it hung up, however cleanly the next one refuses."""
    heard = 0

    async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal heard
        await reader.readuntil(b"\r\n\r\n")
        heard += 1
        writer.close()

    lost = await asyncio.start_server(hang_up, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{lost.sockets[0].getsockname()[1]}/v1"
    async with lost, scripted() as (script, upstream):
        chosen = behind(tmp_path, upstream.url, models={"smart": {"route": ["lost/m", "lab/m"]}})
        providers = {**chosen.providers, "lost": chosen.providers["lab"].model_copy(update={"base_url": url})}
        async with live(chosen.model_copy(update={"providers": providers})) as gateway:
            await priced(gateway)
            await gateway.services.prices.set(
                "lost/m", input_usd="1.00", output_usd="2.00", actor="test", effective_from=0.0
            )
            script.refuses = ("422 Unprocessable Entity", {"message": "no", "type": "invalid_request_error"})
            first = await gateway.post("/v1/chat/completions", {**ASKED, "model": "smart"}, headers=KEY)
            asked, script.refuses = heard, None
            second = await gateway.post("/v1/chat/completions", {**ASKED, "model": "smart"}, headers=KEY)
            assert (first.status, second.status, second.raw) == (422, 422, first.raw)
            assert second.headers["idempotent-replayed"] == "true"
            assert (heard, len(script.sent)) == (asked, 1)
            assert any(entry["source"] == "upper_bound" for entry in await gateway.entries())


async def test_an_answer_that_broke_off_is_not_asked_for_twice(tmp_path: Path) -> None:
    """What was delivered of it has been paid for."""
    async with scripted() as (script, upstream), live(behind(tmp_path, upstream.url)) as gateway:
        await priced(gateway)
        script.breaks = True
        first = await gateway.post("/v1/chat/completions", {**ASKED, "stream": True}, headers=KEY)
        script.breaks = False
        second = await gateway.post("/v1/chat/completions", {**ASKED, "stream": True}, headers=KEY)
        assert first.raw == second.raw
        assert "error" in first.events[-1]
        assert len(script.sent) == 1


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/responses"])
async def test_every_dialect_has_it(tmp_path: Path, path: str) -> None:
    """The guarantee is the gateway's, whatever language the client speaks."""
    body: dict[str, Any] = {"model": "lab/m", "max_tokens": 64, "messages": ASKED["messages"]}
    if path.endswith("responses"):
        body = {"model": "lab/m", "input": "How is bread baked?"}
    async with scripted() as (script, upstream), live(behind(tmp_path, upstream.url)) as gateway:
        await priced(gateway)
        first, second = [await gateway.post(path, body, headers=KEY) for _ in range(2)]
        assert first.status == 200, first.raw
        assert first.raw == second.raw
        assert len(script.sent) == 1
