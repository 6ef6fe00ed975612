"""Items of kept responses that are only named, on both databases: what is found, and what it may cost to look."""

from typing import Any

import pytest

from gateway import responses as module
from gateway.call import Principal
from gateway.errors import InvalidRequest, NotFound
from gateway.kept_settings import KeptSettings
from gateway.responses import Responses
from tests.clock import FrozenClock

OURS = Principal(key_id="k", team="t", project="p")
LARGEST = 32 << 20  # bytes of a conversation


def response(name: str, text: str, **more: Any) -> dict[str, Any]:
    output = [{"type": "message", "id": f"msg_{name}_0", "role": "assistant", "content": text}]
    return {"id": f"resp_{name}", "status": "completed", "output": output, **more}


def said(text: Any, **more: Any) -> dict[str, Any]:
    return {"type": "message", "role": "user", "content": text, **more}


def named(*names: str) -> list[object]:
    return [{"type": "item_reference", "id": name} for name in names]


async def test_one_name_is_counted_as_often_as_it_stands(kept: Responses) -> None:
    """A request of some bytes would hold hundreds of megabytes otherwise, read once and written out each time."""
    size = LARGEST // 10
    await kept.put(OURS, response("1", "b" * size), [said("a" * size)])
    for name in ("item_1_0", "msg_1_0"):
        assert len(await kept.referred(OURS, named(*[name] * 9))) == 9
        with pytest.raises(InvalidRequest, match="too long") as raised:
            await kept.referred(OURS, named(*[name] * 10))
        assert (raised.value.param, raised.value.code) == ("input", "conversation_too_long")


async def test_what_is_looked_through_is_bounded(kept: Responses, monkeypatch: pytest.MonkeyPatch) -> None:
    """Small names of large responses are read whole all the same, and each of them is a question of its own."""
    monkeypatch.setattr(module, "_LARGEST_CHAIN", 100_000)
    for name in "123":
        await kept.put(OURS, response(name, "yes"), [said("a" * 60_000), said("b")])
    assert len(await kept.referred(OURS, named("item_1_1", "item_2_1"))) == 2
    with pytest.raises(InvalidRequest, match="too long"):
        await kept.referred(OURS, named("item_1_1", "item_2_1", "item_3_1"))
    names = [f"msg_{number}_0" for number in range(257)]
    with pytest.raises(InvalidRequest, match="too long"):
        await kept.referred(OURS, [said("?"), *named(*names)])


async def test_an_answer_is_not_counted_with_what_it_was_asked(kept: Responses) -> None:
    """An agent names each of its answers, and every one was asked with the whole conversation before it."""
    for number in range(12):
        await kept.put(OURS, response(str(number), "b" * 9), [said("a" * (LARGEST // 10))])
    found: Any = await kept.referred(OURS, named(*[f"msg_{number}_0" for number in range(12)]))
    assert [item["id"] for item in found] == [f"msg_{number}_0" for number in range(12)]


async def test_a_clients_own_odd_name_names_nothing(kept: Responses) -> None:
    """It is kept as it came, and others beside it are still found."""
    await kept.put(OURS, response("1", "yes"), [said("a", id=["x"]), said("b"), said("c", id={"y": 1})])
    (found,) = await kept.referred(OURS, named("item_1_1"))
    assert found == said("b", id="item_1_1")


@pytest.mark.parametrize("name", ["\0", "msg_\0_1", "resp_\0", "é", "", "msg_1\n_0"])
async def test_a_name_that_is_none_of_ours_is_not_there(kept: Responses, name: str) -> None:
    """A database that cannot write it down would be taken for one that does not answer."""
    with pytest.raises(InvalidRequest) as raised:
        await kept.referred(OURS, named(name))
    assert raised.value.code == "item_not_found"
    with pytest.raises(InvalidRequest) as raised:
        await kept.earlier(OURS, name)
    assert raised.value.code == "previous_response_not_found"
    with pytest.raises(NotFound):
        await kept.get(OURS, name)


async def test_what_is_named_is_kept_as_long_as_what_was_made_of_it(kept: Responses, clock: FrozenClock) -> None:
    """As what is continued is; an agent would lose the beginning of a conversation that goes on."""
    ttl = KeptSettings().responses_ttl
    await kept.put(OURS, response("1", "yes"), [said("a")])
    clock.advance(ttl * 0.9)
    asked: Any = await kept.referred(OURS, named("item_1_0", "msg_1_0"))
    for owner in (OURS, Principal(key_id="k", team="t", project="other")):
        await kept.put(owner, response(f"2{owner.project}", "no"), asked)
        clock.advance(ttl * 0.2)
        assert len(await kept.referred(OURS, named("item_1_0", "msg_1_0"))) == 2
    clock.advance(ttl * 0.7)  # which nobody else's question puts off
    with pytest.raises(InvalidRequest, match="not found"):
        await kept.referred(OURS, named("msg_1_0"))
