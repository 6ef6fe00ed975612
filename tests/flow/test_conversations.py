"""OpenAI's conversations with OpenAI's own client over real sockets, against any model."""

import asyncio
from pathlib import Path
from typing import Any

import openai
import pytest

from gateway.conversations import READ
from tests.flow.test_responses import ASKED, WEATHER, client_of, playing
from tests.flow.test_responses_upstream import served
from tests.live import live, settings


def said(text: str, role: str = "user") -> Any:
    return {"type": "message", "role": role, "content": text}


@pytest.mark.parametrize("stream", [False, True])
async def test_a_response_reads_its_conversation_and_is_added_to_it(tmp_path: Path, stream: bool) -> None:
    """Clients of conversations send only what is new, turn by turn, and never an id of a response."""
    async with playing(tmp_path) as (script, gateway, client):
        opened = await client.conversations.create(items=[said("Be brief.", "system")], metadata={"topic": "kv"})
        asked: Any = {"model": "lab/m", "conversation": opened.id, "tools": [WEATHER]}
        script.calls = [("call_1", "get_weather", '{"city": "Oslo"}')]
        first = await client.responses.create(**asked, input=ASKED)
        assert first.conversation is not None
        assert first.conversation.id == opened.id
        script.calls = []
        asked["input"] = [{"type": "function_call_output", "call_id": "call_1", "output": "-3"}]
        asked["conversation"] = {"id": opened.id}
        if stream:
            async with client.responses.stream(**asked) as events:
                second: Any = await events.get_final_response()
        else:
            second = await client.responses.create(**asked)
        assert second.conversation.id == opened.id
        roles = [message["role"] for message in script.sent[-1]["messages"]]
        assert roles == ["system", "user", "assistant", "tool"]
        items: Any = [item async for item in client.conversations.items.list(opened.id, order="asc", limit=2)]
        kinds = [item.type for item in items]
        assert kinds == ["message", "message", "message", "function_call", "function_call_output", "message"]
        assert [item.id for item in items[2:4]] == [item.id for item in first.output]
        assert items[-1].id == second.output[-1].id
        counted = await gateway.post("/v1/responses/input_tokens", {**asked, "input": "And?", "tools": []})
        assert counted.json["input_tokens"] > 20
        assert len([item async for item in client.conversations.items.list(opened.id)]) == 6
        with pytest.raises(openai.BadRequestError, match="'conversation'"):
            await client.responses.create(model="lab/m", input="And?", previous_response_id=second.id)


async def test_a_conversation_is_made_described_changed_and_deleted(tmp_path: Path) -> None:
    """Whoever moves from OpenAI's keeps their code: all that its client has for them works."""
    async with playing(tmp_path) as (_, _, client):
        made = await client.conversations.create()
        assert (made.object, made.metadata) == ("conversation", {})
        assert (await client.conversations.update(made.id, metadata={"a": "b"})).metadata == {"a": "b"}
        found = await client.conversations.retrieve(made.id)
        assert (found.id, found.created_at, found.metadata) == (made.id, made.created_at, {"a": "b"})
        added: Any = await client.conversations.items.create(made.id, items=[said("One."), said("Two.", "assistant")])
        one, two = added.data
        assert [part.type for part in (one.content[0], two.content[0])] == ["input_text", "output_text"]
        assert (await client.conversations.items.retrieve(one.id, conversation_id=made.id)) == one
        newest = [item.id async for item in client.conversations.items.list(made.id)]
        assert newest == [two.id, one.id]
        await client.conversations.items.delete(one.id, conversation_id=made.id)
        with pytest.raises(openai.NotFoundError):
            await client.conversations.items.retrieve(one.id, conversation_id=made.id)
        with pytest.raises(openai.NotFoundError):
            await client.conversations.items.delete(one.id, conversation_id=made.id)
        gone = await client.conversations.delete(made.id)
        assert (gone.deleted, gone.object) == (True, "conversation.deleted")
        for ask in (client.conversations.retrieve, client.conversations.delete, client.conversations.items.list):
            with pytest.raises(openai.NotFoundError, match="not found"):
                await ask(made.id)
        with pytest.raises(openai.NotFoundError, match="not found"):
            await client.responses.create(model="lab/m", input=ASKED, conversation=made.id)


async def test_a_conversation_is_its_projects_own(tmp_path: Path) -> None:
    """Its id is all it takes to read one: another tenant's key must find nothing, and add nothing."""
    async with playing(tmp_path) as (script, gateway, client):
        made = await client.conversations.create(items=[said("A secret.")])
        (item,) = [item async for item in client.conversations.items.list(made.id)]
        async with client_of(gateway, await gateway.new_key("rivals")) as rival:
            theirs = rival.conversations
            for ask in (theirs.retrieve, theirs.delete, theirs.items.list):
                with pytest.raises(openai.NotFoundError):
                    await ask(made.id)
            with pytest.raises(openai.NotFoundError):
                await theirs.update(made.id, metadata={})
            with pytest.raises(openai.NotFoundError):
                await theirs.items.create(made.id, items=[said("Mine.")])
            with pytest.raises(openai.NotFoundError):
                await theirs.items.delete(item.id or "", conversation_id=made.id)
            with pytest.raises(openai.NotFoundError):
                await rival.responses.create(model="lab/m", input=ASKED, conversation=made.id)
            with pytest.raises(openai.NotFoundError):  # nor is it a response
                await rival.responses.retrieve(made.id)
            with pytest.raises(openai.AuthenticationError):
                await rival.with_options(api_key="none").conversations.retrieve(made.id)
        with pytest.raises(openai.NotFoundError):
            await client.responses.retrieve(made.id)
        with pytest.raises(openai.NotFoundError):
            await client.conversations.retrieve((await client.responses.create(model="lab/m", input=ASKED)).id)
        assert len(script.sent) == 1


async def test_what_failed_is_no_part_of_a_conversation(tmp_path: Path) -> None:
    """A question without an answer would be answered again with the next one."""
    async with playing(tmp_path) as (script, _, client):
        made = await client.conversations.create()
        script.breaks = True
        _ = [event async for event in await client.responses.create(
            model="lab/m", input=ASKED, conversation=made.id, stream=True
        )]  # fmt: skip
        assert [item async for item in client.conversations.items.list(made.id)] == []


async def test_answers_made_at_once_and_in_the_background_are_all_added(tmp_path: Path) -> None:
    """Of two that end together the second must not write over the first."""
    async with playing(tmp_path) as (_, _, client):
        made = await client.conversations.create()
        asked: Any = {"model": "lab/m", "conversation": made.id}
        await asyncio.gather(*(client.responses.create(**asked, input=f"Question {n}?") for n in range(6)))
        later = await client.responses.create(**asked, input="And then?", background=True)
        async with asyncio.timeout(60):
            while (await client.responses.retrieve(later.id)).status != "completed":  # noqa: ASYNC110 - clients poll
                await asyncio.sleep(0.05)
        items: Any = [item async for item in client.conversations.items.list(made.id, order="asc")]
        assert len(items) == 14
        assert len({item.id for item in items}) == 14
        assert [item.role for item in items] == ["user", "assistant"] * 7


async def test_an_answer_whose_conversation_is_gone_meanwhile_says_so(tmp_path: Path) -> None:
    """It was paid, so it is told; a client that went on by the conversation would miss it."""
    async with playing(tmp_path) as (script, _, client):
        made = await client.conversations.create()
        script.wait = asyncio.Event()
        async with asyncio.timeout(60), asyncio.TaskGroup() as group:
            asked = group.create_task(client.responses.create(model="lab/m", input=ASKED, conversation=made.id))
            while not script.sent:  # noqa: ASYNC110 - the upstream does not tell
                await asyncio.sleep(0.01)
            await client.conversations.delete(made.id)
            script.wait.set()
        answer = asked.result()
        assert answer.output_text == script.text
        assert answer.conversation is None


async def test_two_conversations_with_the_same_words_share_an_answer(tmp_path: Path) -> None:
    """A conversation's id says nothing of what is asked; an answer that was paid for serves both."""
    async with playing(tmp_path) as (script, _, client):
        for _ in range(2):
            made = await client.conversations.create(items=[said("Be brief.", "system")])
            await client.responses.create(model="lab/m", input=ASKED, conversation=made.id)
        assert len(script.sent) == 1


async def test_a_conversation_reaches_openai_written_out(tmp_path: Path) -> None:
    """OpenAI's account knows none of ours: its id would be a 404 there."""
    async with served(tmp_path) as (gateway, up), client_of(gateway) as client:
        made = await client.conversations.create(items=[said("Be brief.", "system")])
        answer = await client.responses.create(model="codex", input="Hi.", conversation=made.id)
        assert answer.conversation is not None
        assert answer.conversation.id == made.id
        sent = up.heard[-1].body
        assert "conversation" not in sent
        assert [item["role"] for item in sent["input"]] == ["system", "user"]


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("", {"items": [{"type": "message", "role": "nobody", "content": "a"}]}, "items[0].role"),
        ("", {"items": [said("a")] * 21}, "items"),
        ("", {"items": "a"}, "items"),
        ("", {"items": [7]}, "items[0]"),
        ("", {"metadata": {"a": 7}}, "metadata"),
        ("/ID", {}, "metadata"),
        ("/ID/items", {}, "items"),
        ("/ID/items", {"items": []}, "items"),
        ("/ID/items", {"items": [{"type": "item_reference", "id": "x"}]}, "items[0].type"),
        ("/responses", {"conversation": 7}, "conversation"),
        ("/responses", {"conversation": {}}, "conversation.id"),
        ("/responses", {"conversation": "ID", "previous_response_id": "resp_1"}, "conversation"),
    ],
)
async def test_a_fault_is_told_by_its_place(tmp_path: Path, path: str, body: dict[str, Any], param: str) -> None:
    """What is wrong in a conversation must be found out when it is written, not when it is answered."""
    async with live(settings(tmp_path)) as gateway:
        made = await gateway.post("/v1/conversations", {})
        name = made.json["id"]
        body = {key: name if value == "ID" else value for key, value in body.items()}
        url = f"/v1/conversations{path.replace('ID', name)}"
        if path == "/responses":
            url, body = "/v1/responses", {"model": "up/scripted", "input": "hi", **body}
        told = await gateway.post(url, body)
        assert (told.status, told.json["error"]["param"]) == (400, param)


async def test_an_item_no_model_can_read_is_told_by_its_conversation(tmp_path: Path) -> None:
    """It was called an item of `previous_response_id`, which the client had not sent."""
    async with live(settings(tmp_path)) as gateway:
        made = await gateway.post("/v1/conversations", {"items": [said("hi"), {"type": "novel"}]})
        asked = {"model": "local/sim", "input": "hi", "conversation": made.json["id"]}
        told = await gateway.post("/v1/responses", asked)
        assert (told.status, told.json["error"]["param"]) == (400, "conversation[1].type")


async def test_an_item_is_counted_as_the_request_has_it(tmp_path: Path) -> None:
    """`input[2]` of a request with one item sends its author looking for two others, that lie here."""
    lost = {"type": "function_call_output", "call_id": "lost", "output": "1"}
    async with live(settings(tmp_path)) as gateway:
        first = (await gateway.post("/v1/responses", {"model": "local/sim", "input": "hi"})).json["id"]
        talk = (await gateway.post("/v1/conversations", {"items": [said("hi")]})).json["id"]
        dead = (await gateway.post("/v1/conversations", {"items": [lost]})).json["id"]
        for asked, param in (
            ({"input": [said("a"), lost], "previous_response_id": first}, "input[1].call_id"),
            ({"input": [lost], "conversation": talk}, "input[0].call_id"),
            ({"input": "hi", "conversation": dead}, "conversation[0].call_id"),
        ):
            told = await gateway.post("/v1/responses", {"model": "local/sim", **asked})
            assert (told.status, told.json["error"]["param"]) == (400, param)
            assert f"'{param}'" in told.json["error"]["message"]


async def test_a_conversation_has_bounds(tmp_path: Path) -> None:
    """It is read and written as a whole: one that grew for ever would take the worker's time from everybody."""
    async with playing(tmp_path) as (script, gateway, client):
        made = await client.conversations.create()
        piece = said("x" * 900_000)
        for _ in range(READ // 900_000 + 1):
            await client.conversations.items.create(made.id, items=[piece])
        with pytest.raises(openai.BadRequestError) as raised:
            await client.responses.create(model="lab/m", input=ASKED, conversation=made.id)
        assert raised.value.code == "conversation_too_long"
        with pytest.raises(openai.BadRequestError, match="too long"):
            await client.conversations.items.create(made.id, items=[piece, piece])
        assert script.sent == []
        told = await gateway.post(
            "/v1/responses",
            {"model": "lab/m", "input": "a", "conversation": made.id},
            headers={"cache-control": "no-store"},
        )
        assert told.status == 400


async def test_where_nothing_is_kept_it_is_refused_by_name(tmp_path: Path) -> None:
    """An operator that keeps no responses keeps no conversations either."""
    async with live(settings(tmp_path, kept={"responses_ttl": 0})) as gateway:
        assert (await gateway.post("/v1/conversations", {})).status == 400
        told = await gateway.post("/v1/responses", {"model": "up/scripted", "input": "hi", "conversation": "conv_1"})
        assert (told.status, told.json["error"]["param"]) == (400, "conversation")
