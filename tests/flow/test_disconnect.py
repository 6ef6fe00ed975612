"""Clients that go away: the upstream is treated by its billing, the books are closed exactly once."""

import asyncio
from pathlib import Path

import msgspec
import pytest

from gateway.providers.scripted import ScriptedProvider
from gateway.tasks import Tasks
from tests.live import PROMPT, Live, live, settings
from tests.waiting import until

SLOW = {"ttft_ms": 100, "tpot_ms": 20, "tokens": 40}


async def _leave_after(gateway: Live, events: int, *, stream: bool = True) -> None:
    """Send a request on a socket of its own and hang up after so many events (0: before the first byte)."""
    host, port = gateway.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    body = msgspec.json.encode({"model": "up/scripted", "messages": PROMPT, "stream": stream})
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {gateway.key}\r\n"
        f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    writer.write(head.encode() + body)
    await writer.drain()
    seen = 0
    while seen < events:
        seen += (await reader.readline()).startswith(b"data:")
    upstream = gateway.services.providers["up"]
    assert isinstance(upstream, ScriptedProvider)
    while not upstream.calls:  # noqa: ASYNC110 - the provider counts, it does not tell
        await asyncio.sleep(0.005)
    writer.transport.abort()


async def _booked(gateway: Live) -> None:
    """The request's row and its charge are written."""

    async def written() -> bool:
        return bool(await gateway.rows()) and bool(await gateway.entries())

    await until(written)


@pytest.mark.parametrize("events", [0, 1, 5])
@pytest.mark.parametrize("billing", ["stops-on-close", "bills-anyway"])
async def test_a_stream_that_is_left_is_still_charged(tmp_path: Path, events: int, billing: str) -> None:
    """Closing early must not be a way to use a model for nothing, at whatever moment it happens."""
    async with live(settings(tmp_path, upstream={**SLOW, "billing": billing})) as gateway:
        await _leave_after(gateway, events)
        await _booked(gateway)
        (row,), (entry,) = await gateway.rows(), await gateway.entries()
        assert row["client_gone"] or row["error"] == "client_gone", row
        assert row["cost_nano"] == entry["amount_nano"] > 0


async def test_an_upstream_that_bills_anyway_is_read_to_its_end_and_its_answer_kept(tmp_path: Path) -> None:
    """What is paid for is worth keeping: the next identical request is a hit, and the charge is the provider's own."""
    async with live(settings(tmp_path, upstream={**SLOW, "billing": "bills-anyway"})) as gateway:
        await _leave_after(gateway, 3)
        await _booked(gateway)
        (entry,) = await gateway.entries()
        assert entry["source"] == "provider"
        cache = gateway.services.cache
        assert cache is not None

        async def kept() -> bool:
            return bool(await cache.entries(1))

        await until(kept)
        assert (await gateway.chat()).headers["x-nearhit-cache"] == "hit-exact"


async def test_an_upstream_that_stops_on_close_is_closed_and_nothing_is_kept(tmp_path: Path) -> None:
    """Where closing saves money it must happen at once, and half an answer must never be served to anyone."""
    async with live(settings(tmp_path, upstream={**SLOW, "billing": "stops-on-close"})) as gateway:
        await _leave_after(gateway, 3)
        await _booked(gateway)
        (entry,) = await gateway.entries()
        assert entry["source"] == "estimated"
        assert (await gateway.chat(stream=False)).headers["x-nearhit-cache"] == "miss"


async def test_a_client_that_leaves_before_a_whole_reply_is_noticed(tmp_path: Path) -> None:
    """Servers do not cancel handlers of replies that are not streamed; we must notice by ourselves."""
    async with live(settings(tmp_path, upstream={**SLOW, "billing": "stops-on-close", "ttft_ms": 1_000})) as gateway:
        await _leave_after(gateway, 0, stream=False)
        await _booked(gateway)
        assert len(await gateway.entries()) == 1


async def test_who_comes_back_to_an_answer_that_runs_on_reads_all_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that gave up after a minute and asks again must not be cut off by the minute of its first try."""
    monkeypatch.setattr("gateway.pump._LONGEST_DRAIN", 0.3)
    async with live(settings(tmp_path, upstream={**SLOW, "billing": "bills-anyway"})) as gateway:
        await _leave_after(gateway, 1)
        again = await gateway.chat(stream=True)
        assert again.headers["x-nearhit-cache"] == "shared"
        assert again.events[-1] == "[DONE]"
        await _booked(gateway)
        (entry,) = await gateway.entries()
        assert entry["source"] == "provider"


async def test_an_answer_left_twice_has_its_time_once_more_and_no_longer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody pays for ever for an answer without readers, however many have come and gone."""
    monkeypatch.setattr("gateway.pump._LONGEST_DRAIN", 0.3)
    async with live(settings(tmp_path, upstream={**SLOW, "tokens": 400, "billing": "bills-anyway"})) as gateway:
        await _leave_after(gateway, 1)
        await _leave_after(gateway, 20)
        await _booked(gateway)
        (entry,) = await gateway.entries()
        assert entry["ended"] == "cancelled", entry


@pytest.mark.parametrize("stops", ["first", "other"])
async def test_a_vote_that_is_left_is_read_to_its_end_where_any_of_it_is_paid_for_anyway(
    tmp_path: Path, stops: str
) -> None:
    """Which of two places had been asked last decided it, by chance."""
    billing = {name: "stops-on-close" if name == stops else "bills-anyway" for name in ("first", "other")}
    chosen = settings(
        tmp_path,
        providers={name: {"kind": "scripted", **SLOW, "billing": billing[name]} for name in billing},
        models={
            "voted": {"route": ["first/scripted", "other/scripted"], "strategy": "ensemble", "of": 2, "free": True}
        },
    )
    async with live(chosen) as gateway:
        first, other = (gateway.services.providers[name] for name in billing)
        assert isinstance(first, ScriptedProvider)
        assert isinstance(other, ScriptedProvider)
        asked = Tasks().spawn(gateway.chat(model="voted", stream=False), "asked")
        await until(lambda: bool(first.calls and other.calls))
        asked.cancel()
        await _booked(gateway)
        assert [entry["source"] for entry in await gateway.entries()] == ["provider"] * 2
