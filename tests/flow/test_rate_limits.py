"""Limits per minute over a real socket: who is refused, what every answer says of them, what a hit costs."""

from pathlib import Path
from typing import Any

import pytest
from openai import AsyncOpenAI

from tests.live import PROMPT, Live, live, settings

ADMIN = "sk-test-admin-key-of-some-length"


async def limit(gateway: Live, scope: str, **body: Any) -> dict[str, Any]:
    """Set a limit as an administrator does."""
    sent = {"authorization": f"Bearer {ADMIN}", "content-type": "application/json"}
    async with gateway.client.put(f"{gateway.url}/api/v1/budgets/{scope}", json=body, headers=sent) as answer:
        assert answer.status == 200, await answer.text()
        return await answer.json()


async def test_a_limit_is_set_alone_and_told_on_every_answer(tmp_path: Path) -> None:
    """Clients pace themselves by these headers: on a miss, a hit, a stream, a failure and the refusal itself."""
    async with live(settings(tmp_path)) as gateway:
        before = await gateway.chat()
        assert not any(name.startswith("x-ratelimit") for name in before.headers)
        made = await limit(gateway, "team:acme", rpm=4, tpm=600)
        assert (made["rpm"], made["tpm"], made["limit_usd"]) == (4, 600, None)
        await gateway.settled()
        hit = await gateway.chat()
        assert hit.headers["x-nearhit-cache"] == "hit-exact"
        assert hit.headers["x-ratelimit-limit-requests"] == "4"
        assert hit.headers["x-ratelimit-remaining-requests"] == "3"
        assert hit.headers["x-ratelimit-remaining-tokens"] == "600"
        stream = await gateway.chat(stream=True, messages=[{"role": "user", "content": "Another one"}])
        assert stream.headers["x-ratelimit-remaining-requests"] == "2"
        assert int(stream.headers["x-ratelimit-remaining-tokens"]) < 600
        failed = await gateway.chat(
            headers={"cache-control": "only-if-cached"}, messages=[{**PROMPT[0], "content": "?"}]
        )
        assert (failed.status, failed.headers["x-ratelimit-remaining-requests"]) == (504, "1")
        last, refused = await gateway.chat(), await gateway.chat()
        assert last.status == 200
        assert refused.status == 429
        assert refused.json["error"]["code"] == "rate_limit_exceeded"
        assert refused.json["error"]["type"] == "requests"
        assert 0 < int(refused.headers["retry-after-ms"]) <= 15_000
        assert refused.headers["x-ratelimit-remaining-requests"] == "0"
        assert refused.headers["x-ratelimit-reset-requests"]


async def test_tokens_count_once_and_hits_not_at_all(tmp_path: Path) -> None:
    """TPM protects the upstream: what the cache answers never reaches it."""
    async with live(settings(tmp_path, upstream={"tokens": 4_000})) as gateway:
        await limit(gateway, "key:" + gateway.key.split("-")[2], tpm=10_000)
        first = await gateway.chat()
        await gateway.settled()
        hit = await gateway.chat()
        used = first.json["usage"]["total_tokens"]
        left = int(hit.headers["x-ratelimit-remaining-tokens"])
        assert 10_000 - used <= left < 10_000 - used + 3_000  # 167 come back in a second
        too_much = await gateway.chat(max_tokens=9_999, messages=[{"role": "user", "content": "long " * 50}])
        assert (too_much.status, too_much.json["error"]["type"]) == (429, "tokens")


@pytest.mark.parametrize("kind", ["rpm", "tpm"])
async def test_a_limit_of_nothing_tells_nobody_to_come_back(tmp_path: Path, kind: str) -> None:
    """Whoever switches a team off so was answered "try again in 1ms", which clients did; a dry run said it would do."""
    async with live(settings(tmp_path, budgets=[{"scope": "team:acme", kind: 0}])) as gateway:
        refused = await gateway.chat()
        assert (refused.status, refused.json["error"]["code"]) == (429, "rate_limit_exceeded")
        assert "team:acme is switched off" in refused.json["error"]["message"]
        assert refused.headers["x-should-retry"] == "false"
        assert "retry-after-ms" not in refused.headers
        assert not any(name.startswith("x-ratelimit-reset") for name in refused.headers)
        dry = await gateway.chat(headers={"x-nearhit-dry-run": "1"})
        assert [limit["enough"] for limit in dry.json["limits"]] == [False]


async def test_limits_of_the_file_hold_from_the_start_beside_a_budget(tmp_path: Path) -> None:
    """What an operator wrote down must not wait for an API call; money and rate may stand in one entry."""
    budgets = [{"scope": "org", "limit_usd": "5", "rpm": 1}]
    async with live(settings(tmp_path, budgets=budgets)) as gateway:
        assert [(await gateway.chat()).status for _ in range(2)] == [200, 429]
        made = await limit(gateway, "org", rpm=None)
        assert (made["rpm"], made["limit_usd"]) == (None, "5")
        assert (await gateway.chat()).status == 200


async def test_the_official_client_waits_as_it_is_told_and_succeeds(tmp_path: Path) -> None:
    """The refusal must be one that clients in the field know how to obey."""
    async with live(settings(tmp_path)) as gateway:
        await limit(gateway, "org", rpm=120)
        async with AsyncOpenAI(api_key=gateway.key, base_url=f"{gateway.url}/v1", max_retries=5) as client:
            ends: list[str | None] = []
            for _ in range(122):
                told = await client.chat.completions.create(
                    model="up/scripted",
                    messages=[{"role": "user", "content": "What is a KV block?"}],
                )
                ends.append(told.choices[0].finish_reason)
            assert ends == ["stop"] * 122
