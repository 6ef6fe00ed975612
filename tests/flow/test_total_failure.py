"""Many requests at once while places fail: an outage of all is not multiplied, one of the first is not felt."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gateway import failovers
from gateway.scripted_calls import Options
from tests.scripted import Stage, stage
from tests.wire_upstream import Answer, Manner, Request, WireUpstream, wire_upstream

_FAILURE = "500 Internal Server Error"
_USAGE = {"prompt_tokens": 3, "completion_tokens": 1, "total_tokens": 4}
_SPOKEN = {"index": 0, "message": {"role": "assistant", "content": "yes"}, "finish_reason": "stop"}
_YES = msgspec.json.encode({"choices": [_SPOKEN], "usage": _USAGE})


class Together:
    """Answers none before `crowd` requests have come, and then all of them alike."""

    def __init__(self, crowd: int, status: str) -> None:
        self._crowd, self._status = crowd, status
        self._come = 0
        self._all = asyncio.Event()

    async def answer(self, asked: Request) -> Answer:
        self._come += 1
        if self._come >= self._crowd:
            self._all.set()
        await self._all.wait()
        return Answer(status=self._status, body=_YES if self._status == "200 OK" else b"{}")

    def let_go(self) -> None:
        self._all.set()

    def failure(self) -> Answer:
        return Answer(status=_FAILURE)


@asynccontextmanager
async def places(home: Path, *ways: Together) -> AsyncGenerator[tuple[Stage, list[WireUpstream]]]:
    """A model over as many places as there are ways to answer, tried in this order."""
    async with AsyncExitStack() as stack:
        manner = Manner(ttft_ms=20.0)
        ups = [await stack.enter_async_context(wire_upstream(way, manner)) for way in ways]
        names = [f"p{number}" for number in range(len(ups))]
        more = {
            name: {"kind": "openai", "base_url": f"http://127.0.0.1:{up.port}/v1", "api_key": "none"}
            for name, up in zip(names, ups, strict=True)
        }
        found = stage(home, dict.fromkeys(names, Options()), {}, more=more)
        yield await stack.enter_async_context(found), ups


async def _crowd(found: Stage, requests: int, patience: float = 120.0) -> list[int]:
    """Statuses of so many different requests at once, none of which waits longer than `patience` seconds."""
    headers = {"x-nearhit-timeout": f"{patience:g}"}

    async def one(number: int) -> int:
        messages = [{"role": "user", "content": f"question {number}"}]
        return (await found.gateway.chat(model="smart", messages=messages, headers=headers)).status

    return await asyncio.gather(*(one(number) for number in range(requests)))


@pytest.mark.parametrize(
    ("crowd", "count", "status"),
    [(60, 2, _FAILURE), (60, 3, _FAILURE), (60, 6, _FAILURE), (60, 3, "401 Unauthorized"), (20, 6, _FAILURE)],
)
async def test_many_at_once_make_few_calls_where_all_places_fail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, crowd: int, count: int, status: str
) -> None:
    """Each request used to try every place because none had failed when it looked: up to one call per place."""
    monkeypatch.setattr(failovers, "_STEP", 60.0)  # a busy machine's silence is none of a place
    ways = [Together(crowd, status), *(Together(1, status) for _ in range(count - 1))]
    async with places(tmp_path, *ways) as (found, ups):
        assert min(await _crowd(found, crowd)) >= 400
        calls = [len(up.heard) for up in ups]
        assert calls[0] >= crowd
        asked = min(count, 1 + crowd // 5)  # places that can be asked whether they do
        assert min(calls[:asked]) >= 1
        assert sum(calls) <= 1.2 * crowd


async def test_few_at_once_ask_every_place(tmp_path: Path) -> None:
    """A fifth of three requests is not one: a place that works must be found all the same."""
    ways = Together(3, _FAILURE), *(Together(1, _FAILURE) for _ in range(6)), Together(1, "200 OK")
    async with places(tmp_path, *ways) as (found, _):
        assert await _crowd(found, 3) == [200] * 3


async def test_a_crowd_goes_over_step_by_step_to_the_last_place_while_nothing_is_heard_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All waited for the first whole answer of a place that is well and slow: here none comes before all have gone."""
    monkeypatch.setattr(failovers, "_PATIENCE", 60.0)
    ways = Together(20, _FAILURE), Together(20, "200 OK")
    async with places(tmp_path, *ways) as (found, ups):
        assert await _crowd(found, 20) == [200] * 20
        assert len(ups[1].heard) == 20


async def test_a_crowd_goes_over_to_the_next_place_that_works(tmp_path: Path) -> None:
    """The first place dies under a hundred requests, the second too, the third is well: nobody fails for it."""
    ways = Together(100, _FAILURE), Together(1, _FAILURE), Together(1, "200 OK")
    async with places(tmp_path, *ways) as (found, ups):
        assert await _crowd(found, 100) == [200] * 100
        dead, _, well = (len(up.heard) for up in ups)
        assert (dead, well) == (100, 100)


async def test_a_place_that_hangs_keeps_nobody_from_the_one_behind_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """News of it may never come: after a while the others go on to a place that is well."""
    monkeypatch.setattr(failovers, "_PATIENCE", 0.3)
    ways = Together(20, _FAILURE), Together(1_000, "200 OK"), Together(1, "200 OK")
    async with places(tmp_path, *ways) as (found, ups):
        statuses = await _crowd(found, 20, patience=6)
        assert 12 <= statuses.count(200) <= len(ups[2].heard)
        assert len(ups[1].heard) <= 8


async def test_a_silent_place_is_come_back_to_where_the_one_behind_it_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be slow and well; who had gone on to the last place got an error although somebody could answer."""
    monkeypatch.setattr(failovers, "_PATIENCE", 0.3)
    ways = Together(20, _FAILURE), Together(20, "200 OK"), Together(1, _FAILURE)
    async with places(tmp_path, *ways) as (found, _):
        assert await _crowd(found, 20) == [200] * 20


async def test_clients_in_a_hurry_condemn_no_place_for_the_others(tmp_path: Path) -> None:
    """Whose own time is over too soon would close the way over for everybody, and use up what it costs to find out."""
    ways = Together(1, "401 Unauthorized"), Together(1_000, "200 OK")
    async with places(tmp_path, *ways) as (found, _):
        for number in range(4):
            messages = [{"role": "user", "content": f"question {number}"}]
            hurried: dict[str, Any] = {"x-nearhit-timeout": "0.4"}
            assert (await found.gateway.chat(model="smart", messages=messages, headers=hurried)).status in (502, 504)
        ways[1].let_go()
        assert await _crowd(found, 1) == [200]


async def test_who_waits_for_news_of_a_place_does_so_within_its_deadline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one that finds out may hang; the others must not hang with it."""
    monkeypatch.setattr(failovers, "_STEP", 60.0)
    ways = Together(40, _FAILURE), Together(1_000, _FAILURE)
    async with places(tmp_path, *ways) as (found, ups):
        statuses = await _crowd(found, 40, patience=1.5)
        assert set(statuses) <= {500, 502, 503, 504}
        assert len(ups[1].heard) <= 8
