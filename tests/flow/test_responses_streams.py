"""Responses made in the background and streamed, with OpenAI's own client over real sockets: left, taken up, ended."""

import asyncio
import signal
from pathlib import Path
from typing import Any

import aiohttp
import openai
import pytest
from openai import AsyncOpenAI

from gateway.serve_home import take_first_key
from gateway.tasks import Tasks
from tests.empty_database import fresh_postgres
from tests.flow.dialect_upstream import Script, scripted
from tests.flow.test_batch_killed import ADMIN, opened, served
from tests.flow.test_responses import ASKED, client_of, playing
from tests.live import live, settings
from tests.waiting import until

MADE: Any = {"model": "lab/m", "input": ASKED, "background": True, "stream": True}


async def begun(client: AsyncOpenAI, **more: Any) -> tuple[Any, list[Any]]:
    """A stream, and its events up to the first piece of text."""
    asked: Any = {**MADE, **more}
    stream: Any = await client.responses.create(**asked)
    events: list[Any] = []
    async for event in stream:
        events.append(event)
        if event.type == "response.output_text.delta":
            return stream, events
    raise AssertionError([event.type for event in events])


async def rest_of(stream: Any, into: list[Any] | None = None) -> list[Any]:
    """All events up to the end, also in `into` as they come."""
    found: list[Any] = [] if into is None else into
    async with asyncio.timeout(60):
        async for event in stream:
            found.append(event)  # noqa: PERF401 - whoever holds the list sees them come
    return found


async def followed(client: AsyncOpenAI, name: str, into: list[Any] | None = None, **more: Any) -> list[Any]:
    """All events of a kept response, or those after a number, up to the end."""
    async with await client.responses.retrieve(name, stream=True, **more) as stream:
        return await rest_of(stream, into)


async def following(client: AsyncOpenAI, name: str, **more: Any) -> asyncio.Task[list[Any]]:
    """The same beside the test, once it has heard something."""
    heard: list[Any] = []
    task = Tasks().spawn(followed(client, name, heard, **more), "follower")
    await until(lambda: bool(heard))
    return task


def text_of(events: list[Any]) -> str:
    return "".join([event.delta for event in events if event.type == "response.output_text.delta"])


def numbers(events: list[Any]) -> list[int]:
    return [event.sequence_number for event in events]


async def test_a_client_leaves_and_takes_it_up_again(tmp_path: Path) -> None:
    """What the mode is for: a connection that breaks costs neither the answer nor a single event of it."""
    async with playing(tmp_path) as (script, gateway, client):
        script.stalls = True
        stream, seen = await begun(client)
        assert [event.type for event in seen[:3]] == ["response.created", "response.queued", "response.in_progress"]
        assert [event.response.status for event in seen[:3]] == ["queued", "queued", "in_progress"]
        name = seen[0].response.id
        await stream.close()
        rest = await following(client, name, starting_after=seen[-1].sequence_number)
        assert (await client.responses.retrieve(name)).status == "in_progress"
        assert not rest.done()
        script.stalls = False
        events = [*seen, *await rest]
        assert numbers(events) == list(range(len(events)))
        assert events[-1].type == "response.completed"
        whole = await client.responses.retrieve(name)
        assert events[-1].response.to_dict() == whole.to_dict()
        assert text_of(events) == whole.output_text
        again = await followed(client, name)
        assert [event.to_dict() for event in again] == [event.to_dict() for event in events]
        assert await followed(client, name, starting_after=events[-1].sequence_number) == []
        assert [row["client_gone"] for row in await gateway.rows()] == [0]
        assert len(script.sent) == len(await gateway.entries()) == 1


async def test_openais_helper_follows_it(tmp_path: Path) -> None:
    """Its accumulator is the strictest reader of events there is, from the start and taken up later."""
    async with playing(tmp_path) as (script, _, client):
        script.thought = "Bread wants heat."
        async with client.responses.stream(model="lab/m", input=ASKED, background=True) as stream:
            first = await stream.get_final_response()
        async with client.responses.stream(response_id=first.id, starting_after=4) as stream:
            found = [event.sequence_number async for event in stream]
            second = await stream.get_final_response()
        assert first.output_text == second.output_text == script.text
        assert found[0] == 5


async def test_cancelling_ends_every_stream(tmp_path: Path) -> None:
    """Whoever follows must hear the end at once, and the upstream is not paid for what nobody wants."""
    async with playing(tmp_path) as (script, gateway, client):
        script.stalls = True
        stream, seen = await begun(client)
        name = seen[0].response.id
        other = await following(client, name)
        assert (await client.responses.cancel(name)).status == "cancelled"
        events = await rest_of(stream, seen)
        assert numbers(await other) == numbers(events) == list(range(len(events)))
        assert (events[-1].type, events[-1].response.status) == ("response.failed", "cancelled")
        assert (await followed(client, name))[-1].response.status == "cancelled"

        async def is_recorded() -> bool:
            return [row["client_gone"] for row in await gateway.rows()] == [1]

        await until(is_recorded)


async def test_what_fails_ends_its_stream(tmp_path: Path) -> None:
    """Before the first word and after it: an error, and the response that it ended."""
    async with playing(tmp_path) as (script, _, client):
        script.breaks = True
        unknown: Any = {**MADE, "model": "nobody/knows"}
        for asked in (MADE, unknown):
            stream: Any = await client.responses.create(**asked)
            events = await rest_of(stream)
            assert [event.type for event in events[-2:]] == ["error", "response.failed"]
            name = events[0].response.id
            assert numbers(await followed(client, name)) == list(range(len(events)))
            assert (await client.responses.retrieve(name)).status == "failed"


async def test_what_cannot_be_followed_is_refused_as_openai_does(tmp_path: Path) -> None:
    """Clients branch on these: fetch it whole, ask again, or give up; to another project there is nothing there."""
    async with playing(tmp_path) as (_, gateway, client):
        waited: Any = await client.responses.create(model="lab/m", input=ASKED)
        polled: Any = await client.responses.create(model="lab/m", input=ASKED, background=True)
        stream: Any = await client.responses.create(**MADE)
        streamed = (await rest_of(stream))[0].response
        for name, why in ((waited.id, "background=true"), (polled.id, "stream=true")):
            with pytest.raises(openai.BadRequestError, match=f"it was not created with {why}") as raised:
                await client.responses.retrieve(name, stream=True)
            assert (raised.value.param, raised.value.code) == ("stream", "invalid_request_error")
        for wrong in ("-1", "x", "1.5"):
            told = await gateway.client.get(
                f"{gateway.url}/v1/responses/{streamed.id}?stream=true&starting_after={wrong}",
                headers={"authorization": f"Bearer {gateway.key}"},
            )
            assert (told.status, (await told.json())["error"]["param"]) == (400, "starting_after")
        async with client_of(gateway, await gateway.new_key("rivals")) as rival:
            for ask in (rival.responses.cancel, rival.responses.delete):
                with pytest.raises(openai.NotFoundError):
                    await ask(streamed.id)
            with pytest.raises(openai.NotFoundError):
                await rival.responses.retrieve(streamed.id, stream=True)
        async with gateway.services.database.begin() as connection:
            await connection.exec_driver_sql("UPDATE response_stream SET expires = 1")
        with pytest.raises(openai.BadRequestError, match="can no longer be streamed"):
            await client.responses.retrieve(streamed.id, stream=True)
        assert (await client.responses.retrieve(streamed.id)).status == "completed"


async def test_deleting_ends_every_stream(tmp_path: Path) -> None:
    """A follower of what is gone would wait for ever; and nothing of it may stay behind."""
    async with playing(tmp_path) as (script, gateway, client):
        script.stalls = True
        stream, seen = await begun(client)
        await client.responses.delete(seen[0].response.id)
        last = (await rest_of(stream))[-1]
        assert (last.type, last.code) == ("error", "response_not_found")
        async with gateway.services.database.read() as connection:
            for table in ("response_stream", "stored_piece", "kept_response"):
                assert (await connection.exec_driver_sql(f"SELECT count(*) FROM {table}")).scalar() == 0


async def test_a_kept_answer_is_streamed_too(tmp_path: Path) -> None:
    """A hit has no events of its own: they are made, numbered and kept all the same."""
    async with live(settings(tmp_path)) as gateway, client_of(gateway) as client:
        asked: Any = {**MADE, "model": "up/scripted"}
        texts = []
        for _ in range(2):
            stream: Any = await client.responses.create(**asked)
            events = await rest_of(stream)
            texts.append(text_of(events))
            assert numbers(await followed(client, events[0].response.id)) == list(range(len(events)))
        assert texts[0] == texts[1]
        assert [row["cache"] for row in await gateway.rows()] == ["miss", "hit-exact"]


async def test_under_an_idempotency_key_it_is_made_once(tmp_path: Path) -> None:
    """A client that tries again after a broken connection must not pay for a second response."""
    async with playing(tmp_path) as (script, gateway, client):
        script.stalls = True
        stream, seen = await begun(client, extra_headers={"idempotency-key": "once"})
        await stream.close()
        again: Any = await client.responses.create(**MADE, extra_headers={"idempotency-key": "once"})
        script.stalls = False
        events = await rest_of(again)
        assert events[0].response.id == seen[0].response.id
        assert events[-1].type == "response.completed"
        assert len(script.sent) == len(await gateway.entries()) == 1


async def test_it_is_followed_and_cancelled_at_another_worker(tmp_path: Path, postgres_url: str) -> None:
    """A balancer sends the client that comes back anywhere: every worker on the database must know all of it."""
    url = await fresh_postgres(postgres_url)
    async with scripted() as (script, upstream):
        lab = {"kind": "openai", "base_url": upstream.url, "api_key": "none", "billing": "stops-on-close"}
        both = {"database": url, "secret": "s" * 64, "providers": {"up": {"kind": "scripted"}, "lab": lab}}
        async with (
            live(settings(tmp_path / "here", **both)) as here,
            live(settings(tmp_path / "there", **both)) as there,
            client_of(here) as client,
            client_of(there, here.key) as other,
        ):
            await here.services.prices.set("lab/m", input_usd="1.00", output_usd="2.00", actor="test", effective_from=0)
            await _followed_there(script, client, other)
            await _cancelled_there(script, client, other)


async def _followed_there(script: Script, client: AsyncOpenAI, other: AsyncOpenAI) -> None:
    script.stalls = True
    stream, seen = await begun(client)
    rest = await following(other, seen[0].response.id, starting_after=seen[-1].sequence_number)
    script.stalls = False
    own = await rest_of(stream)
    assert [event.to_dict() for event in await rest] == [event.to_dict() for event in own]
    assert own[-1].type == "response.completed"


async def _cancelled_there(script: Script, client: AsyncOpenAI, other: AsyncOpenAI) -> None:
    script.stalls = True
    stream, seen = await begun(client, input="Something else?")
    await other.responses.cancel(seen[0].response.id)
    events = await rest_of(stream, seen)
    assert numbers(events) == list(range(len(events)))
    assert events[-1].response.status == "cancelled"


@pytest.mark.parametrize("killed", [True, False])
async def test_a_worker_that_is_gone_leaves_no_stream_open(tmp_path: Path, killed: bool) -> None:
    """What was told stays told, and its end is that of a response in the background whose worker is gone.

    One that is told to end lets its followers go at once: what is made has all its time, and they may ask elsewhere.
    """
    (tmp_path / "run").mkdir()
    async with scripted() as (script, upstream), aiohttp.ClientSession() as session:
        script.stalls = True
        with served(tmp_path, upstream.url) as (process, port):
            door = await opened(process, port, session)
            key = take_first_key(tmp_path)
            assert key is not None
            await door.ask("PUT", "/api/v1/prices/lab/m", ADMIN, json={"input_usd": "1.00", "output_usd": "2.00"})
            async with AsyncOpenAI(base_url=f"{door.url}/v1", api_key=key, max_retries=0, timeout=60) as client:
                stream, seen = await begun(client)
                other = await following(client, seen[0].response.id)
                if killed:
                    process.kill()
                    for ending in (rest_of(stream, seen), other):
                        with pytest.raises(openai.APIConnectionError):
                            await ending
                else:
                    process.send_signal(signal.SIGTERM)
                    for events in (await rest_of(stream, seen), await other):
                        assert events[-1].type == "response.output_text.delta"
                    assert process.poll() is None
                await asyncio.to_thread(process.wait)
        with served(tmp_path, upstream.url) as (process, port):
            door = await opened(process, port, session)
            async with AsyncOpenAI(base_url=f"{door.url}/v1", api_key=key, max_retries=0, timeout=60) as client:
                name = seen[0].response.id
                events = await followed(client, name)
                kept = await client.responses.retrieve(name)
        script.stalls = False
    assert [event.to_dict() for event in events[: len(seen)]] == [event.to_dict() for event in seen]
    assert numbers(events) == list(range(len(events)))
    assert (events[-1].type, events[-1].response.status, kept.status) == ("response.failed", "failed", "failed")
    assert events[-1].response.to_dict() == kept.to_dict()
