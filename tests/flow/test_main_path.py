"""A request's whole life over a real socket: miss, hit, both forms, the headers and the row it ends as."""

import socket
from pathlib import Path
from typing import Any

import pytest

from gateway.call import Role
from policies.budget import Budget
from tests.live import Told, live, settings


def _content(events: list[Any]) -> str:
    return "".join(e["choices"][0]["delta"].get("content") or "" for e in events[:-1] if e["choices"])


async def test_a_miss_is_answered_charged_and_recorded_once(tmp_path: Path) -> None:
    """The main job: one request, one upstream call, one row, one ledger entry, and headers that agree with both."""
    async with live(settings(tmp_path)) as gateway:
        told = await gateway.chat()
        assert told.status == 200, told.raw
        assert told.json["object"] == "chat.completion"
        assert told.json["model"] == "up/scripted"
        assert told.headers["x-nearhit-cache"] == "miss"
        assert told.headers["x-nearhit-cost-status"] == "exact"
        (row,), (entry,) = await gateway.rows(), await gateway.entries()
        usage = told.json["usage"]
        expected = usage["prompt_tokens"] * 1_000 + usage["completion_tokens"] * 2_000
        assert row["cost_nano"] == entry["amount_nano"] == expected
        assert row["id"] == told.headers["x-request-id"]
        assert (row["status"], row["cache"], row["team"]) == (200, "miss", "acme")


async def test_the_second_identical_request_is_an_exact_hit_that_costs_nothing(tmp_path: Path) -> None:
    """Reuse is what users come for; the saved amount must be what the first call cost."""
    async with live(settings(tmp_path)) as gateway:
        first = await gateway.chat()
        await gateway.settled()
        second = await gateway.chat()
        assert second.headers["x-nearhit-cache"] == "hit-exact"
        assert second.headers["x-nearhit-cost-usd"] == "0"
        assert second.headers["x-nearhit-saved-usd"] == first.headers["x-nearhit-cost-usd"]
        assert second.headers["cache-status"].startswith("nearhit; hit; ttl=")
        assert second.text == first.text
        assert second.json["usage"] == first.json["usage"]
        assert second.json["id"] != first.json["id"]
        rows = await gateway.rows()
        assert [row["cost_nano"] for row in rows][1] == 0
        assert rows[1]["saved_nano"] == rows[0]["cost_nano"]
        assert len(await gateway.entries()) == 1


@pytest.mark.parametrize(("first", "second"), [(True, False), (False, True), (True, True)])
async def test_one_entry_serves_both_forms(tmp_path: Path, first: bool, second: bool) -> None:
    """An app that streams must profit from one that does not, and the reverse."""
    async with live(settings(tmp_path)) as gateway:
        a = await (gateway.chat(stream=True) if first else gateway.chat())
        await gateway.settled()
        b = await (gateway.chat(stream=True) if second else gateway.chat())
        assert b.headers["x-nearhit-cache"] == "hit-exact"
        assert (_content(a.events) if first else a.text) == (_content(b.events) if second else b.text)


@pytest.mark.parametrize("hit", [False, True])
async def test_a_stream_has_the_shape_real_clients_check(tmp_path: Path, hit: bool) -> None:
    """Role first, one finish per choice after all content, usage last with no choices, one identity throughout."""
    async with live(settings(tmp_path)) as gateway:
        if hit:
            await gateway.chat()
            await gateway.settled()
        told = await gateway.chat(stream=True, stream_options={"include_usage": True})
        assert told.headers["content-type"] == "text/event-stream; charset=utf-8"
        assert (told.headers["x-nearhit-cache"] == "hit-exact") is hit
        events = told.events
        assert events[-1] == "[DONE]"
        *before, usage = events[:-1]
        assert before[0]["choices"][0]["delta"]["role"] == "assistant"
        assert [e["choices"][0]["finish_reason"] for e in before][-1] == "stop"
        assert sum(e["choices"][0]["finish_reason"] is not None for e in before) == 1
        assert all(e["usage"] is None for e in before)
        assert usage["choices"] == []
        assert usage["usage"]["total_tokens"] > 0
        assert (usage["usage"]["cost"] > 0) is not hit
        assert len({(e["id"], e["created"], e["model"]) for e in events[:-1]}) == 1
        assert events[0]["model"] == "up/scripted"


async def test_an_engine_counts_along_for_those_who_ask(tmp_path: Path) -> None:
    """guidellm always does, and vLLM's dashboards; it was named as ignored at the bundled engine."""
    async with live(settings(tmp_path)) as gateway:
        options = {"include_usage": True, "continuous_usage_stats": True}
        told = await gateway.chat(model="local/sim", max_tokens=8, stream=True, stream_options=options)
        assert "stream_options" not in told.headers.get("x-nearhit-ignored", "")
        usages = [event["usage"] for event in told.events[:-1]]
        assert len({usage["prompt_tokens"] for usage in usages}) == 1
        completions = [usage["completion_tokens"] for usage in usages]
        assert completions == sorted(completions)
        assert completions[-3:] == [8, 8, 8]
        plain = await gateway.chat(model="local/sim", max_tokens=9, stream=True, stream_options={"include_usage": True})
        *earlier, last = [event["usage"] for event in plain.events[:-1]]
        assert last
        assert not any(earlier)


async def test_a_stream_without_include_usage_has_no_usage_chunk(tmp_path: Path) -> None:
    """We always ask upstream for usage; a client that did not ask must not meet a chunk without choices."""
    async with live(settings(tmp_path)) as gateway:
        told = await gateway.chat(stream=True)
        assert all(event["choices"] for event in told.events[:-1])
        assert all("usage" not in event for event in told.events[:-1])
        assert (await gateway.rows())[0]["cost_nano"] > 0


@pytest.mark.parametrize(
    ("headers", "marks"),
    [
        ({"cache-control": "no-store"}, ["bypass", "bypass"]),
        ({"cache-control": "no-cache"}, ["refresh", "refresh"]),
        ({"x-nearhit-cache": "off"}, ["bypass", "bypass"]),
        ({"cache-control": "max-age=0"}, ["miss", "miss"]),
    ],
)
async def test_a_client_can_only_make_reuse_stricter(tmp_path: Path, headers: dict[str, str], marks: list[str]) -> None:
    """Standard cache directives must mean here what they mean everywhere."""
    async with live(settings(tmp_path)) as gateway:
        seen: list[str] = []
        for _ in range(2):
            seen.append((await gateway.chat(headers=headers)).headers["x-nearhit-cache"])
            await gateway.settled()
        assert seen == marks


async def test_only_if_cached_never_calls_upstream(tmp_path: Path) -> None:
    """A client that wants a kept answer or nothing must not be charged for a fresh one."""
    async with live(settings(tmp_path)) as gateway:
        told = await gateway.chat(headers={"cache-control": "only-if-cached"})
        assert told.status == 504
        assert told.json["error"]["code"] == "cache_miss"
        assert told.headers["x-should-retry"] == "false", "clients repeat every other 504, in vain"
        assert await gateway.entries() == []


async def test_a_purge_takes_the_name_that_clients_ask_for(tmp_path: Path) -> None:
    """Answers are kept by the place that gave them; a purge by an alias found none of its answers and said 0."""
    models = {"smart": {"route": ["up/scripted"]}, "other": {"route": ["local/sim"]}}
    async with live(settings(tmp_path, models=models)) as gateway:
        for model in models:
            assert (await gateway.chat(model=model)).headers["x-nearhit-cache"] == "miss"
        headers = {"authorization": "Bearer sk-test-admin-key-of-some-length"}
        async with gateway.client.delete(f"{gateway.url}/api/v1/cache?model=smart", headers=headers) as purged:
            assert await purged.json() == {"purged": 1}
        assert (await gateway.chat(model="smart")).headers["x-nearhit-cache"] == "miss"
        assert (await gateway.chat(model="other")).headers["x-nearhit-cache"] == "hit-exact"


async def test_an_embedding_is_kept_as_a_whole_request(tmp_path: Path) -> None:
    """The same texts asked for alike cost nothing again; one more text, or another form, is another request."""
    async with live(settings(tmp_path)) as gateway:
        texts = [f"text {number}" for number in range(9)]
        asked: list[dict[str, Any]] = [
            {"input": texts},
            {"input": texts},
            {"input": [*texts, "one more"]},
            {"input": texts, "dimensions": 8},
            {"input": texts, "encoding_format": "base64"},
            {"input": texts, "encoding_format": "base64"},
        ]
        told = [await gateway.post("/v1/embeddings", {"model": "up/scripted", **body}) for body in asked]
        marks = [one.headers["x-nearhit-cache"] for one in told]
        assert marks == ["miss", "hit-exact", "miss", "miss", "miss", "hit-exact"]
        assert told[1].json == told[0].json
        assert [item["index"] for item in told[1].json["data"]] == list(range(9))
        assert [one.headers["x-nearhit-cost-usd"] == "0" for one in told] == [mark != "miss" for mark in marks]
        rows = await gateway.rows()
        assert rows[1]["saved_nano"] == rows[0]["cost_nano"] > 0
        assert len(await gateway.entries()) == 4


async def test_a_cache_that_is_away_is_gone_around(tmp_path: Path) -> None:
    """Requests must flow without Redis, and nobody may take that for a question that was new."""
    with socket.create_server(("127.0.0.1", 0)) as gone:
        nowhere = f"redis://127.0.0.1:{gone.getsockname()[1]}/0"
    chosen = settings(tmp_path, redis=nowhere, cache={"store": "redis", "mode": "exact"})
    async with live(chosen) as gateway:
        for _ in range(2):
            told = await gateway.chat()
            assert (told.status, told.headers["x-nearhit-cache"]) == (200, "bypass")
            assert told.headers["cache-status"] == "nearhit; fwd=bypass; detail=store-down"
        async with gateway.client.get(gateway.url + "/metrics") as shown:
            lines = (await shown.text()).splitlines()
        # As `bypass` alone it looked like requests that want no kept answer, and no alert could see it.
        assert 'nearhit_cache_impaired_total{reason="store-down"} 2.0' in lines
        assert 'nearhit_cache_impaired_total{reason="encoder-down"} 0.0' in lines


async def test_teams_never_share_an_answer(tmp_path: Path) -> None:
    """The tenant boundary is the first promise of the cache."""
    async with live(settings(tmp_path)) as gateway:
        await gateway.chat()
        await gateway.settled()
        other = await gateway.new_key("rival")
        assert (await gateway.chat(key=other)).headers["x-nearhit-cache"] == "miss"
        sibling = await gateway.new_key("acme", "website")
        assert (await gateway.chat(key=sibling)).headers["x-nearhit-cache"] == "miss"
        same = await gateway.new_key("acme", "app")
        assert (await gateway.chat(key=same)).headers["x-nearhit-cache"] == "hit-exact"


async def test_kept_answers_and_the_ledger_survive_a_restart(tmp_path: Path) -> None:
    """Stopping and starting must lose neither an answer nor a cent."""
    chosen = settings(tmp_path, cache={"store": "sqlite", "mode": "exact"})
    async with live(chosen) as gateway:
        await gateway.chat()
        key, before = gateway.key, await gateway.entries()
    async with live(chosen) as gateway:
        told = await gateway.chat(key=key)
        assert told.headers["x-nearhit-cache"] == "hit-exact"
        assert [e["amount_nano"] for e in await gateway.entries()] == [e["amount_nano"] for e in before]


@pytest.mark.parametrize(
    ("change", "status", "code"),
    [
        ({"model": "up/nothing"}, 404, "model_not_found"),
        ({"model": "nothing/at-all"}, 404, "model_not_found"),
        ({"messages": []}, 400, None),
        ({"temperature": 3}, 400, None),
        ({"stream": True, "model": "nothing/at-all"}, 404, "model_not_found"),
    ],
)
async def test_a_bad_request_is_refused_in_openais_shape_and_recorded_without_cost(
    tmp_path: Path, change: dict[str, Any], status: int, code: str | None
) -> None:
    """Clients branch on these fields; a refusal must be JSON also where a stream was asked for, and cost nothing."""
    async with live(settings(tmp_path)) as gateway:
        told = await gateway.chat(**change)
        assert told.status == status
        assert set(told.json["error"]) == {"message", "type", "param", "code"}
        assert code is None or told.json["error"]["code"] == code
        assert "x-request-id" in told.headers
        assert await gateway.entries() == []


async def test_a_wrong_key_is_refused_before_the_body_is_read(tmp_path: Path) -> None:
    """Nobody without a key may make us parse sixteen megabytes, and the key never comes back."""
    async with live(settings(tmp_path)) as gateway:
        told: Told = await gateway.chat(key="sk-nh-wrong")
        assert told.status == 401
        assert told.json["error"]["code"] == "invalid_api_key"
        assert b"sk-nh-wrong" not in told.raw


@pytest.mark.parametrize("role", ["viewer", "finance"])
async def test_keys_that_read_reports_cannot_spend_money(tmp_path: Path, role: Role) -> None:
    """A key handed to finance opens dashboards; it must not be a way to call models."""
    async with live(settings(tmp_path)) as gateway:
        told = await gateway.chat(key=await gateway.new_key("acme", role=role))
        assert told.status == 403
        assert await gateway.entries() == []


async def test_an_unpriced_model_is_refused_with_the_command_that_prices_it(tmp_path: Path) -> None:
    """A model without a price must never be counted as free."""
    lab = {"kind": "openai", "base_url": "http://127.0.0.1:9/v1", "api_key": "none"}
    async with live(settings(tmp_path, providers={"up": {"kind": "scripted"}, "lab": lab})) as gateway:
        told = await gateway.chat(model="lab/unheard-of")
        assert told.status == 402
        assert told.json["error"]["code"] == "model_not_priced"
        assert "nearhit prices set lab/unheard-of" in told.json["error"]["message"]


async def test_refusals_and_engines_are_counted(tmp_path: Path) -> None:
    """An operator must see a storm of wrong keys, and how the bundled engine does, without reading logs."""
    async with live(settings(tmp_path)) as gateway:
        await gateway.chat(key="sk-nh-wrong")
        async with gateway.client.get(gateway.url + "/metrics") as response:
            text = await response.text()
        assert 'nearhit_requests_total{cache="none",operation="chat",status="401"} 1.0' in text
        assert 'nearhit_engine{engine="local",figure="ready"} 1.0' in text


async def test_paths_outside_the_api_answer_in_openais_shape(tmp_path: Path) -> None:
    """The framework's own 404 and 405 must not look different from ours."""
    async with live(settings(tmp_path)) as gateway:
        told = await gateway.post("/v1/nowhere", {})
        assert told.status == 404
        assert set(told.json["error"]) == {"message", "type", "param", "code"}
        async with gateway.client.get(gateway.url + "/v1/chat/completions") as response:
            assert response.status == 405
            assert (await response.json())["error"]["code"] == "method_not_supported"


async def test_the_simulated_engine_answers_and_is_priced_as_assumed(tmp_path: Path) -> None:
    """The bundled engine is a provider like any other: same path, same books."""
    async with live(settings(tmp_path)) as gateway:
        told = await gateway.chat(model="local/sim", beams=4)
        assert told.status == 200, told.raw
        assert told.headers["x-nearhit-ignored"] == "beams"  # what an engine leaves out of account is named
        (entry,) = await gateway.entries()
        assert entry["amount_nano"] > 0
        assert entry["provider"] == "local"


async def test_an_exhausted_budget_still_gets_hits(tmp_path: Path) -> None:
    """A hit costs nothing, so no budget may refuse it; a fresh call is refused for good until the window ends."""
    async with live(settings(tmp_path)) as gateway:
        await gateway.chat(max_tokens=50)
        await gateway.settled()
        await gateway.services.ledger.set_budget(Budget(scope="team:acme", limit_nano=1, window="day"), "test")
        refused = await gateway.chat(messages=[{"role": "user", "content": "Something new"}])
        assert refused.status == 429
        assert refused.json["error"]["code"] == "insufficient_quota"
        assert refused.headers["x-should-retry"] == "false"
        assert (await gateway.chat(max_tokens=50)).headers["x-nearhit-cache"] == "hit-exact"


@pytest.mark.parametrize("path", ["/health", "/health/live", "/health/ready", "/health/upstreams"])
async def test_monitors_may_ask_with_head(tmp_path: Path, path: str) -> None:
    """Many of them do by default, and took the 405 for an outage."""
    async with live(settings(tmp_path)) as gateway:
        async with gateway.client.get(gateway.url + path) as whole:
            wanted = whole.status
        assert wanted in (200, 503)  # an encoder may still load
        async with gateway.client.head(gateway.url + path) as told:
            assert (told.status, await told.read()) == (wanted, b"")
