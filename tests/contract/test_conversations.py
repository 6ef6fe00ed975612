"""Conversations on both databases: nothing that was added is lost, and what nobody uses goes."""

import asyncio

import pytest

from gateway.call import Body, Principal
from gateway.conversations import Conversations
from gateway.db.session import Database
from gateway.errors import NotFound
from gateway.kept_settings import KeptSettings
from gateway.responses import Responses
from tests.clock import FrozenClock

OURS = Principal(key_id="k", team="t", project="p")


def said(text: str) -> Body:
    return {"type": "message", "role": "user", "content": text}


async def texts(conversations: Conversations, name: str) -> list[object]:
    return [item["content"] for item in (await conversations.get(OURS, name)).items]


async def test_items_added_at_once_are_all_there(kept: Responses) -> None:
    """Two workers that read the same list and write it back would each lose what the other has added."""
    conversations = kept.conversations
    name = str((await conversations.make(OURS, [], {}))["id"])
    await asyncio.gather(*(conversations.add(OURS, name, [said(f"{n}"), said(f"{n}!")]) for n in range(8)))
    found = await texts(conversations, name)
    assert sorted(map(str, found)) == sorted(f"{n}{end}" for n in range(8) for end in ("", "!"))
    assert all(found[place + 1] == f"{found[place]}!" for place in range(0, 16, 2))


async def test_a_text_that_no_column_holds_comes_back(kept: Responses) -> None:
    """PostgreSQL's texts have no NUL; a name with one is no conversation's."""
    name = str((await kept.conversations.make(OURS, [said("a\0b")], {}))["id"])
    assert await texts(kept.conversations, name) == ["a\0b"]
    for other in (f"{name}\0", "conv_", "resp_1", "conv_" + "0" * 32):
        with pytest.raises(NotFound):
            await kept.conversations.get(OURS, other)


async def test_it_lives_from_its_last_use_on(kept: Responses, clock: FrozenClock) -> None:
    """One that is used every week must not end in the middle, one that nobody uses must not stay."""
    conversations, ttl = kept.conversations, KeptSettings().responses_ttl
    used, left = [str((await conversations.make(OURS, [said("a")], {}))["id"]) for _ in range(2)]
    clock.advance(ttl * 0.8)
    await conversations.add(OURS, used, [said("b")])
    clock.advance(ttl * 0.8)
    assert await texts(conversations, used) == ["a", "b"]
    with pytest.raises(NotFound):
        await conversations.get(OURS, left)
    with pytest.raises(NotFound):
        await conversations.add(OURS, left, [said("b")])
    assert await kept.sweep() == 1


async def test_those_nobody_uses_give_way_first(url: str, clock: FrozenClock) -> None:
    """A project keeps so much and no more; what it talks to now is not the oldest because it began first."""
    made = Database(url)
    await made.start()
    kept = Responses(made, "here", KeptSettings(project_responses=100_000), now=clock.now)
    used, left = [str((await kept.conversations.make(OURS, [said("a" * 20_000)], {}))["id"]) for _ in range(2)]
    for number in range(60):  # everything written counts: two look-overs, the second after the last one
        clock.advance(1)
        await kept.put(OURS, {"id": f"resp_{number}", "status": "completed", "output": []}, [said("c" * 1_000)])
    clock.advance(1)
    await kept.conversations.add(OURS, used, [said("b")])
    await kept.put(OURS, {"id": "resp_last", "status": "completed", "output": []}, [said("c" * 40_000)])
    assert len((await kept.conversations.get(OURS, used)).items) == 2
    with pytest.raises(NotFound):
        await kept.conversations.get(OURS, left)
    await made.close()


async def test_conversations_alone_are_bounded_too(url: str, clock: FrozenClock) -> None:
    """Whoever only ever makes some would fill the disk of everybody."""
    made = Database(url)
    await made.start()
    kept = Responses(made, "here", KeptSettings(project_responses=100_000), now=clock.now)
    names: list[str] = []
    for _ in range(40):
        clock.advance(1)
        names.append(str((await kept.conversations.make(OURS, [said("a" * 10_000)], {}))["id"]))
    for name in names[:32]:
        with pytest.raises(NotFound):
            await kept.conversations.get(OURS, name)
    assert len((await kept.conversations.get(OURS, names[-1])).items) == 1
    await made.close()


async def test_a_local_shells_result_keeps_naming_its_call(kept: Responses) -> None:
    """Its id is its call's, by the specification: under a name of its own it would answer nothing."""
    call: Body = {"type": "local_shell_call", "id": "lsh_1", "call_id": "c", "action": {"command": ["ls"]}}
    result: Body = {"type": "local_shell_call_output", "id": "lsh_1", "output": "a.py"}
    name = str((await kept.conversations.make(OURS, [call], {}))["id"])
    await kept.conversations.add(OURS, name, [result, {**said("a"), "id": "lsh_1"}, {**said("b"), "id": "mine"}])
    items = (await kept.conversations.get(OURS, name)).items
    assert [item["id"] for item in items[:2]] == ["lsh_1", "lsh_1"]
    assert str(items[2]["id"]).startswith("item_")
    assert items[3]["id"] == "mine"
