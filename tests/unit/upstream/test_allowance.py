"""What an upstream says is left of its limits: read from its headers, kept by key, told by pool and fleet."""

import asyncio
from collections.abc import AsyncGenerator

import pytest
from pydantic import SecretStr

from gateway.allowance import Heard, seconds_of
from gateway.errors import UpstreamRefused
from gateway.fleet import Fleet
from gateway.key_pool import KeyPool
from gateway.providers import Provider
from gateway.providers.openai import build
from gateway.settings import ProviderSettings
from gateway.tasks import Tasks
from gateway.transport.direct import DirectTransport
from tests.clock import FrozenClock
from tests.unit.upstream.raw_upstream import RawUpstream, fixed, raw_upstream, response
from tests.unit.upstream.test_openai_provider import WHOLE, run, sending

LEFT = ("x-ratelimit-limit-requests: 500", "x-ratelimit-remaining-requests: 42", "x-ratelimit-reset-requests: 1m30s")


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("6ms", 0.006), ("1m30s", 90.0), ("12", 12.0), ("1.5s", 1.5), ("never", 0.0), ("9" * 9 + "d", 86_400.0)],
)
def test_a_reset_is_read_as_it_is_written(text: str, seconds: float) -> None:
    """OpenAI writes durations, others plain seconds, and nobody may stop a place for years."""
    assert seconds_of(text) == pytest.approx(seconds)


def test_an_answer_without_them_takes_nothing_back() -> None:
    """A proxy's error page says nothing about limits; what was known before stays, and its age tells."""
    heard, clock = Heard(), FrozenClock()
    assert heard.account(clock.monotonic()).left == ()
    heard.note({"x-ratelimit-remaining-tokens": "10"}, clock.monotonic(), clock.now())
    assert not heard.is_due(clock.monotonic())
    clock.advance(5.0)
    heard.note({"x-ratelimit-remaining-tokens": "a secret"}, clock.monotonic(), clock.now())
    account = heard.account(clock.monotonic())
    assert (account.age, account.left[0].remaining) == (5.0, 10.0)


@pytest.fixture
async def transport() -> AsyncGenerator[DirectTransport]:
    made = DirectTransport()
    yield made
    await made.close()


def one_key(up: RawUpstream, transport: DirectTransport, key: str) -> Provider:
    settings = ProviderSettings(kind="openai", base_url=up.url, api_key=SecretStr(key))
    return build("up", settings, transport=transport, tasks=Tasks())


async def test_a_pool_tells_each_key_by_its_number_and_who_rests(transport: DirectTransport) -> None:
    """An operator must see which key is used up, and never the key itself."""
    clock = FrozenClock()
    tired = response("429 Too Many Requests", b"{}", "retry-after: 20")
    async with (
        raw_upstream(fixed(tired)) as one,
        raw_upstream(fixed(response("200 OK", WHOLE, *LEFT))) as two,
    ):
        pool = KeyPool(
            "up",
            [one_key(one, transport, "sk-first"), one_key(two, transport, "sk-second")],
            monotonic=clock.monotonic,
        )
        for _ in range(2):  # in turns, so both are asked
            async for _chunk in pool.send(sending(stream=False)):
                pass
    first, second = pool.accounts()
    assert (first.name, first.rests, first.left) == ("key 1", 20.0, ())
    assert (second.name, second.rests, second.in_flight) == ("key 2", 0.0, 0)
    assert [(one.what, one.remaining, one.limit, one.renews_in) for one in second.left] == [
        ("requests", 42.0, 500.0, 90.0)
    ]
    assert "sk-" not in repr(pool.accounts())
    clock.advance(21.0)
    assert pool.accounts()[0].rests == 0.0


async def test_a_refusal_tells_too_and_a_fleet_tells_each_server(transport: DirectTransport) -> None:
    """What a 429 says counts at once, and which of several servers said it must be told."""
    full = response("429 Too Many Requests", b"{}", "x-ratelimit-remaining-tokens: 0", "x-ratelimit-reset-tokens: 2s")
    async with raw_upstream(fixed(response("200 OK", WHOLE))) as good, raw_upstream(fixed(full)) as bad:
        servers = {good.url: one_key(good, transport, "none"), bad.url: one_key(bad, transport, "none")}
        fleet = Fleet("up", list(servers), lambda url: servers.get(url) or one_key(good, transport, "none"))
        refusals = [(await run(fleet, sending(stream=False)))[1] for _ in range(2)]  # pyright: ignore[reportArgumentType] - any provider will do
    assert [type(one) for one in refusals if one] == [UpstreamRefused]
    told = {account.name: account.left for account in fleet.accounts()}
    assert set(told) == {url.split("/")[2] for url in servers}
    assert [(one.remaining, one.renews_in) for one in told[bad.url.split("/")[2]]] == [(0.0, 2.0)]
    await asyncio.sleep(0)
