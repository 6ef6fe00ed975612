"""How every service tells what is left of its limits: read by its own file, heeded by pools before it says 429."""

from contextlib import AsyncExitStack
from typing import Any

import pytest
from msgspec import structs
from pydantic import SecretStr

from gateway.allowance import Account, Allowance
from gateway.errors import UpstreamRefused
from gateway.key_pool import KeyPool
from gateway.providers import Provider, Sending, known, load
from gateway.settings import ProviderSettings
from gateway.tasks import Tasks
from gateway.transport.direct import DirectTransport
from tests.unit.upstream.raw_upstream import RawUpstream, fixed, raw_upstream, response
from tests.unit.upstream.test_openai_provider import WHOLE, run, sending

Told = list[tuple[str, float, float | None, float | None]]
DATE = "date: Sat, 21 Nov 2026 10:00:00 GMT"
RATE = "x-ratelimit"
EXTRAS: dict[str, dict[str, Any]] = {"bedrock": {"region": "eu-central-1"}}

# What each service's answers carry, in its own words, and what is to be made of it. Sources: docs/providers.md.
LIMITS: dict[str, tuple[tuple[str, ...], Told]] = {
    "openai": (
        (
            f"{RATE}-limit-requests: 500",
            f"{RATE}-remaining-requests: 499",
            f"{RATE}-reset-requests: 120ms",
            f"{RATE}-limit-tokens: 30000",
            f"{RATE}-remaining-tokens: 0",
            f"{RATE}-reset-tokens: 1m30s",
        ),
        [("requests", 499.0, 500.0, 0.12), ("tokens", 0.0, 30000.0, 90.0)],
    ),
    "azure": (
        (f"{RATE}-remaining-requests: 19", f"{RATE}-remaining-tokens: 0"),
        [("requests", 19.0, None, 60.0), ("tokens", 0.0, None, 60.0)],
    ),
    "anthropic": (
        (
            DATE,
            "anthropic-ratelimit-requests-remaining: 7",
            "anthropic-ratelimit-requests-reset: soon",
            "anthropic-ratelimit-input-tokens-limit: 50000",
            "anthropic-ratelimit-input-tokens-remaining: 0",
            "anthropic-ratelimit-input-tokens-reset: 2026-11-21T10:00:30Z",
        ),
        [("requests", 7.0, None, None), ("input-tokens", 0.0, 50000.0, 30.0)],
    ),
    "mistral": (
        (
            f"{RATE}-limit-req-minute: 60",
            f"{RATE}-remaining-req-minute: 59",
            f"{RATE}-limit-tokens-minute: 50000",
            f"{RATE}-remaining-tokens-minute: 0",
            f"{RATE}-limit-tokens-month: 4000000",
            f"{RATE}-tokens-query-cost: 2804",
        ),
        [("requests", 59.0, 60.0, 60.0), ("tokens", 0.0, 50000.0, 60.0)],
    ),
    "groq": (
        (
            f"{RATE}-limit-requests: 14400",
            f"{RATE}-remaining-requests: 0",
            f"{RATE}-reset-requests: 2m59.56s",
            f"{RATE}-limit-tokens: 18000",
            f"{RATE}-remaining-tokens: 17997",
            f"{RATE}-reset-tokens: 7.66s",
        ),
        [("requests", 0.0, 14400.0, 179.56), ("tokens", 17997.0, 18000.0, 7.66)],
    ),
    "together": (
        (
            f"{RATE}-limit: 10",
            f"{RATE}-remaining: 0",
            f"{RATE}-reset: 2",
            "x-tokenlimit-limit: 3000",
            "x-tokenlimit-remaining: 2950",
            f"{RATE}-limit-dynamic: 20",
            f"{RATE}-remaining-dynamic: 9",
        ),
        [("requests", 0.0, 10.0, 2.0), ("requests-dynamic", 9.0, 20.0, 2.0), ("tokens", 2950.0, 3000.0, 1.0)],
    ),
    "fireworks": (
        (
            f"{RATE}-limit-tokens-prompt: 3600000",
            f"{RATE}-remaining-tokens-prompt: 3599000",
            f"{RATE}-limit-tokens-generated: 36000",
            f"{RATE}-remaining-tokens-generated: 0",
            f"{RATE}-over-limit: yes",
        ),
        [("input-tokens", 3599000.0, 3600000.0, 60.0), ("output-tokens", 0.0, 36000.0, 60.0)],
    ),
    "openrouter": (
        (f"{RATE}-limit: 50", f"{RATE}-remaining: 0", f"{RATE}-reset: 1800000020000"),
        [("requests", 0.0, 50.0, 20.0)],
    ),
    "xai": (
        (f"{RATE}-limit-requests: 480", f"{RATE}-remaining-requests: 0"),
        [("requests", 0.0, 480.0, 60.0)],
    ),
    # They tell nothing in headers: DeepSeek has no limits, Gemini says what to wait in the error, Bedrock says nothing.
    "deepseek": ((f"{RATE}-remaining-requests: 0",), []),
    "gemini": ((f"{RATE}-remaining-requests: 0",), []),
    "bedrock": ((f"{RATE}-remaining-requests: 0",), []),
}
# On machines of one's own: whatever stands before them.
OWN = {"dynamo", "llamacpp", "lmstudio", "ollama", "ray", "sglang", "tgi", "vllm"}


def built(kind: str, up: RawUpstream, transport: DirectTransport, key: str = "sk-1", **clock: Any) -> Any:
    settings = ProviderSettings(kind=kind, base_url=up.url, api_key=SecretStr(key), **EXTRAS.get(kind, {}))
    return load(kind).build("up", settings, transport=transport, tasks=Tasks(), **clock)


def asked() -> Sending:
    """Something that every language can say."""
    body = {
        "messages": [{"role": "user", "content": "Say something."}],
        "max_tokens": 12,
        "model": "m",
        "stream": False,
    }
    return structs.replace(sending(stream=False), body=body)


def left(account: Account) -> Told:
    return [
        (one.what, one.remaining, one.limit, one.within if one.renews_in is None else round(one.renews_in, 3))
        for one in account.left
    ]


async def refusal(kind: str, *headers: str, body: bytes = b"{}") -> tuple[Account, UpstreamRefused]:
    transport = DirectTransport()
    clock: dict[str, Any] = {"now": lambda: 1_800_000_000.0} if kind in ("openrouter", "anthropic") else {}
    async with raw_upstream(fixed(response("429 Too Many Requests", body, *headers))) as up:
        provider = built(kind, up, transport, **clock)
        _, problem = await run(provider, asked())
    await transport.close()
    assert isinstance(problem, UpstreamRefused)
    return provider.accounts()[0], problem


def test_every_service_is_told_apart() -> None:
    """A kind without a row would be read in OpenAI's words whatever it says."""
    assert set(known()) - {"local", "scripted", "prefill_decode"} - OWN == set(LIMITS)


@pytest.mark.parametrize("kind", sorted(LIMITS))
async def test_what_is_left_is_read_in_each_services_own_words(kind: str) -> None:
    """An operator and a pool of keys must see it, and a 429 without Retry-After must not be asked again at once."""
    headers, expected = LIMITS[kind]
    account, problem = await refusal(kind, *headers)
    assert left(account) == expected
    told = [one.renews_in for one in account.left if one.renews_in is not None and not one.remaining]
    assert problem.retry_after == (pytest.approx(max(told)) if told else None)
    spent = [wait for _, remaining, _, wait in expected if not remaining]
    assert bool(account.spent_for) == bool(spent)


@pytest.mark.parametrize("kind", sorted(LIMITS))
async def test_retry_after_is_believed_before_any_limit(kind: str) -> None:
    """It is the one word on waiting that is meant for us."""
    headers, _ = LIMITS[kind]
    _, problem = await refusal(kind, *headers, "retry-after: 3")
    assert problem.retry_after == 3.0


async def test_openrouter_tells_its_limits_inside_the_error() -> None:
    """The end of a free model's day is hours away: asking again after a second costs every request a failure."""
    body = (
        b'{"error":{"message":"Rate limit exceeded: free-models-per-day","code":429,"metadata":{"headers":'
        b'{"X-RateLimit-Limit":"50","X-RateLimit-Remaining":"0","X-RateLimit-Reset":"1800003600000"}}}}'
    )
    account, problem = await refusal("openrouter", body=body)
    assert left(account) == [("requests", 0.0, 50.0, 3600.0)]
    assert problem.retry_after == pytest.approx(3600.0)


@pytest.mark.parametrize("kind", ["openai", "mistral", "fireworks"])
async def test_a_key_with_nothing_left_is_avoided_before_it_says_so(kind: str) -> None:
    """A 429 costs a round trip, and a service that counts refused calls too keeps such a key shut."""
    headers = [header for header in LIMITS[kind][0] if "date" not in header]
    clock = 100.0
    async with AsyncExitStack() as stack:
        transport = DirectTransport()
        stack.push_async_callback(transport.close)
        spent = await stack.enter_async_context(raw_upstream(fixed(response("200 OK", WHOLE, *headers))))
        fresh = await stack.enter_async_context(raw_upstream(fixed(response("200 OK", WHOLE))))
        members: list[Provider] = [
            built(kind, up, transport, key, monotonic=lambda: clock) for up, key in ((spent, "sk-1"), (fresh, "sk-2"))
        ]
        pool = KeyPool("up", members, monotonic=lambda: clock)
        for _ in range(8):
            async for _chunk in pool.send(asked()):
                pass
        assert (len(spent.heard), len(fresh.heard)) == (1, 7)
        clock += 91.0
        for _ in range(2):
            async for _chunk in pool.send(asked()):
                pass
        assert len(spent.heard) == 2


async def test_a_pool_whose_keys_all_have_nothing_left_still_asks() -> None:
    """What an answer said is old by now: only a 429 may turn a request away."""
    transport = DirectTransport()
    async with raw_upstream(fixed(response("200 OK", WHOLE, *LIMITS["openai"][0]))) as up:
        members: list[Provider] = [built("openai", up, transport, key) for key in ("sk-1", "sk-2")]
        pool = KeyPool("up", members, monotonic=lambda: 100.0)
        for _ in range(4):
            async for _chunk in pool.send(asked()):
                pass
        assert len(up.heard) == 4
    await transport.close()


def test_how_long_something_is_used_up() -> None:
    """By its own words and not for longer; a service that says nothing of the end is never held to it."""
    gone = Allowance(what="tokens", remaining=0.0, limit=10.0, renews_in=30.0)
    assert Account(age=10.0, left=(gone,)).spent_for == 20.0
    assert Account(age=31.0, left=(gone,)).spent_for == 0.0
    assert Account(age=0.0, left=(Allowance(what="tokens", remaining=0.0, limit=None, renews_in=None),)).spent_for == 0
    assert Account().spent_for == 0.0
