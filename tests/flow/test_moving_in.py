"""Clients of other gateways change the base URL and nothing else."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from msgspec.json import encode

from tests.live import PROMPT, live, settings
from tests.wire_upstream import Answer, Manner, Request, wire_upstream

MIRRORED = {"server": {"mirror_headers": ["litellm", "helicone", "portkey", "cloudflare"]}}


class Yes:
    """An OpenAI that says yes."""

    async def answer(self, asked: Request) -> Answer:
        del asked
        choice = {"index": 0, "message": {"role": "assistant", "content": "Yes."}, "finish_reason": "stop"}
        usage = {"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7}
        return Answer(body=encode({"object": "chat.completion", "choices": [choice], "usage": usage}))

    def failure(self) -> Answer:
        raise NotImplementedError  # nobody asks it to fail


async def test_their_headers_attribute_and_restrict(tmp_path: Path) -> None:
    """Tags, users and sessions of four dialects become ours; what they switch off is off."""
    async with live(settings(tmp_path)) as gateway:
        sent = {
            "x-litellm-tags": "batch,team:blue",
            "helicone-property-feature": "faq",
            "x-portkey-metadata": '{"_user": "ann", "env": "prod"}',
            "cf-aig-metadata": '{"release": 7}',
            "x-nearhit-tags": "env=ours",
        }
        assert (await gateway.chat(headers=sent)).status == 200
        (row,) = await gateway.rows()
        assert row["user"] == "ann"
        tags = row["tags"]
        for pair in ('"batch"', '"blue"', '"faq"', '"ours"', '"7"'):
            assert pair in str(tags).replace("'", '"')
        assert "prod" not in str(tags)


@pytest.mark.parametrize(
    "header",
    [
        {"helicone-cache-enabled": "false"},
        {"cf-aig-skip-cache": "true"},
        {"x-portkey-cache-namespace": "mine"},
        {"x-portkey-cache-force-refresh": "True"},
    ],
)
async def test_what_they_keep_out_of_the_cache_is_kept_out(tmp_path: Path, header: dict[str, str]) -> None:
    """An answer from the cache for somebody who forbade it is a wrong answer."""
    async with live(settings(tmp_path)) as gateway:
        await gateway.chat()
        assert (await gateway.chat()).headers["x-nearhit-cache"] == "hit-exact"
        assert (await gateway.chat(headers=header)).headers["x-nearhit-cache"] in ("bypass", "refresh")


async def test_whose_a_request_is_stays_known(tmp_path: Path) -> None:
    """Spend by user is what those headers were sent for; ours wins where both are there."""
    sent = [
        {"x-litellm-customer-id": "one"},
        {"x-litellm-end-user-id": "two"},
        {"helicone-user-id": "three"},
        {"x-litellm-spend-logs-metadata": '{"user_id": "four"}'},
        {"cf-aig-metadata": '{"user": "five"}'},
        {"x-litellm-customer-id": "none", "x-nearhit-user": "six"},
    ]
    async with live(settings(tmp_path)) as gateway:
        for header in sent:
            assert (await gateway.chat(headers=header)).status == 200
        users = {row["user"] for row in await gateway.rows()}
        assert users == {"one", "two", "three", "four", "five", "six"}


async def test_sessions_of_theirs_stay_together(tmp_path: Path) -> None:
    """A conversation that moves between upstreams loses what they have cached of it."""
    providers = {name: {"kind": "scripted"} for name in ("a", "b")}
    smart = {"route": ["a/scripted", "b/scripted"], "strategy": "weighted", "sticky": "session", "free": True}
    chosen = settings(tmp_path, providers=providers, models={"smart": smart}, cache={"mode": "off"})
    async with live(chosen) as gateway:
        homes = set[str]()
        for session in range(12):
            names = ("x-litellm-session-id", "helicone-session-id", "x-nearhit-session")
            told = [await gateway.chat(model="smart", headers={name: f"s{session}"}) for name in names]
            seen = {one.headers["x-nearhit-provider"] for one in told}
            assert len(seen) == 1
            homes |= seen
        assert homes == {"a", "b"}


async def test_their_time_limits_hold(tmp_path: Path) -> None:
    """Seconds at one, milliseconds at two: read wrongly, a limit is a thousand times what was meant."""
    async with live(settings(tmp_path, upstream={"ttft_ms": 120_000})) as gateway:
        sent = [{"x-litellm-timeout": "0.3"}, {"x-portkey-request-timeout": "300"}, {"cf-aig-request-timeout": "300"}]
        told = await asyncio.gather(*(gateway.chat(headers=header) for header in sent))
        assert [one.status for one in told] == [504] * 3


async def test_their_words_on_keeping_an_answer_are_kept(tmp_path: Path) -> None:
    """How long it may be served, how old it may be, and that nobody else's will do."""
    async with live(settings(tmp_path)) as gateway:
        await gateway.chat(headers={"cf-aig-cache-ttl": "60"})
        told = await gateway.chat()
        assert told.headers["x-nearhit-cache"] == "hit-exact"
        assert 0 <= int(told.headers["cache-status"].partition("ttl=")[2].partition(";")[0]) <= 60
        for config, mark in (('{"cache": {"mode": "simple", "max_age": 0}}', "miss"), ('{"cache": {}}', "hit-exact")):
            told = await gateway.chat(headers={"x-portkey-config": config})
            assert told.headers["x-nearhit-cache"] == mark
        for header in ("helicone-cache-seed", "cf-aig-cache-key"):
            assert (await gateway.chat(headers={header: "mine"})).headers["x-nearhit-cache"] == "bypass"


async def test_what_is_settled_here_is_named_as_ignored(tmp_path: Path) -> None:
    """A limit, a price or a number of retries that is silently not obeyed would be believed to hold."""
    sent = {
        "x-litellm-num-retries": "5",
        "x-portkey-trace-id": "t-1",
        "Helicone-RateLimit-Policy": "10;w=60",
        "cf-aig-custom-cost": '{"per_token_in": 1}',
        "x-portkey-config": "pc-prod-1",
        "x-portkey-azure-resource-name": "res",
        "Helicone-Moderations-Enabled": "true",
        "x-litellm-disable-callbacks": "langfuse",
    }
    keys = {"Helicone-Auth": "Bearer x", "x-portkey-api-key": "x", "cf-aig-authorization": "Bearer x"}
    async with live(settings(tmp_path)) as gateway:
        for stream in (False, True, False):  # the last one is a hit
            told = await gateway.chat(headers=sent | keys, stream=stream)
            assert told.status == 200
            assert set(told.headers["x-nearhit-ignored"].split(", ")) == {name.lower() for name in sent}
        assert "x-nearhit-ignored" not in (await gateway.chat()).headers
        inline = {"x-portkey-config": '{"cache": {"mode": "simple"}}', "x-litellm-tags": "a"}
        assert "x-nearhit-ignored" not in (await gateway.chat(headers=inline)).headers
        inline["x-portkey-config"] = '{"cache": {"mode": "simple"}, "retry": {"attempts": 3}}'
        assert (await gateway.chat(headers=inline)).headers["x-nearhit-ignored"] == "x-portkey-config"


async def test_their_ids_and_counts_come_with_every_answer(tmp_path: Path) -> None:
    """Logs are joined by these ids; retries and fallbacks are alarmed on; a hit is known by its key at LiteLLM."""
    providers = {"up": {"kind": "scripted"}, "bad": {"kind": "scripted", "fail_rate": 1.0}}
    models = {"smart": {"route": ["bad/scripted", "up/scripted"], "free": True}}
    async with live(settings(tmp_path, providers=providers, models=models, **MIRRORED)) as gateway:
        told = await gateway.chat(model="smart")
        ids = ("x-litellm-call-id", "helicone-id", "x-portkey-trace-id", "cf-aig-log-id")
        assert {told.headers[name] for name in ids} == {told.headers["x-request-id"]}
        assert told.headers["x-litellm-attempted-retries"] == told.headers["x-portkey-retry-attempt-count"] == "1"
        assert told.headers["x-litellm-attempted-fallbacks"] == "1"
        assert "x-litellm-cache-key" not in told.headers
        for stream in (False, True):
            told = await gateway.chat(model="smart", stream=stream)
            assert told.headers["x-litellm-cache-key"]
            assert told.headers["x-litellm-attempted-retries"] == "0"


async def test_their_reply_headers_come_where_they_are_switched_on(tmp_path: Path) -> None:
    """Dashboards read cost and cache by those names; without the switch nothing of them is sent."""
    async with live(settings(tmp_path / "on", **MIRRORED)) as gateway:
        told = await gateway.chat()
        assert float(told.headers["x-litellm-response-cost"]) > 0
        assert told.headers["helicone-cache"] == told.headers["cf-aig-cache-status"] == "MISS"
        told = await gateway.chat()
        assert told.headers["x-litellm-response-cost"] == "0"
        assert told.headers["x-portkey-cache-status"] == "HIT"
        assert told.headers["helicone-cache"] == "HIT"
    async with live(settings(tmp_path / "off")) as gateway:
        told = await gateway.chat()
        assert not {name for name in told.headers if name.startswith(("x-litellm", "helicone", "x-portkey", "cf-aig"))}


async def test_headers_that_make_no_sense_are_left_alone(tmp_path: Path) -> None:
    """They were written for another gateway: a mistake in them is none in a request to this one."""
    sent = {"x-portkey-metadata": "{not json", "cf-aig-cache-ttl": "soon", "x-litellm-timeout": "-3"}
    async with live(settings(tmp_path)) as gateway:
        assert (await gateway.chat(headers=sent)).status == 200


async def test_litellms_field_of_the_body_is_obeyed_and_not_sent_on(tmp_path: Path) -> None:
    """Its clients write `cache` beside the messages; it was sent on, and the cache answered all the same."""
    async with wire_upstream(Yes(), Manner()) as up:
        providers = {"up": {"kind": "openai", "base_url": f"http://127.0.0.1:{up.port}/v1"}}
        models = {"m": {"route": ["up/gpt-x"], "free": True}}
        async with live(settings(tmp_path, providers=providers, models=models)) as gateway:
            marks = list[str]()
            for cache in (
                {"no-store": True},
                {"no-cache": False, "no-store": None},
                {},
                None,
                {"no-cache": True},
                {"no-cache": True, "no-store": True},
                {"s-maxage": 600},
                {"s-maxage": 0},
                {"namespace": "mine"},
                {"ttl": 60},
            ):
                told = await gateway.chat(model="m", cache=cache)
                assert told.status == 200
                marks.append(told.headers["x-nearhit-cache"])
                ignored = [f"cache.{name}" for name in ("ttl", "namespace") if cache and name in cache]
                assert told.headers.get("x-nearhit-ignored", "") == ", ".join(ignored)
            assert marks == [
                *("bypass", "miss", "hit-exact", "hit-exact", "refresh", "bypass", "hit-exact", "miss", "bypass"),
                "hit-exact",
            ]
            assert up.heard
            assert not any("cache" in one.body for one in up.heard)


@pytest.mark.parametrize(
    ("path", "more"),
    [("chat/completions", {"messages": PROMPT}), ("completions", {"prompt": "x"}), ("embeddings", {"input": "x"})],
)
async def test_litellms_field_is_checked(tmp_path: Path, path: str, more: dict[str, Any]) -> None:
    """What cannot be read must not pass for consent to an answer from the cache."""
    wrong: list[tuple[Any, str]] = [
        ("no-cache", "cache"),
        ({"no-cache": "true"}, "cache.no-cache"),
        ({"no-store": 1}, "cache.no-store"),
        ({"s-maxage": "60"}, "cache.s-maxage"),
        ({"s-maxage": -1}, "cache.s-maxage"),
        ({"ttl": True}, "cache.ttl"),
        ({"namespace": 7}, "cache.namespace"),
    ]
    async with live(settings(tmp_path)) as gateway:
        for cache, param in wrong:
            told = await gateway.post(f"/v1/{path}", {"model": "up/scripted", "cache": cache, **more})
            assert (told.status, told.json["error"]["param"]) == (400, param)


async def test_litellms_field_never_loosens_what_a_header_says(tmp_path: Path) -> None:
    """Ours win where they are stricter, as with the headers of others."""
    async with live(settings(tmp_path)) as gateway:
        await gateway.chat()
        await asyncio.sleep(0.02)
        strict = {"cache-control": "max-age=0"}
        told = await gateway.chat(headers=strict, cache={"s-maxage": 600, "no-cache": False})
        assert told.headers["x-nearhit-cache"] == "miss"
