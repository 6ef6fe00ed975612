"""nearhit against what OpenAI and Anthropic publish: each documented field is taken or refused by its name, each answer
and event has the published shape, and none is a 5xx.

The ordinary run asks every second field once; `proof` asks every field often and keeps what came of it.
"""

import asyncio
from collections import defaultdict
from pathlib import Path

import pytest

from tests import proofs
from tests.shapes.asking import EXISTING, Asked, Asker
from tests.shapes.behind import behind, known
from tests.shapes.published import HI, OPERATIONS, Operation

ADMIN = "sk-test-admin-key-of-some-length"
# Schemathesis draws some forms with `random` inside a strategy; hypothesis warns, and a warning is an error here.
pytestmark = pytest.mark.filterwarnings("ignore:Do not use the `random` module inside strategies")


async def asked(home: Path, most: int, *, free: bool, step: int = 1) -> list[Asked]:
    """Never in the event loop that answers: making the shapes alone would hold it up."""
    async with behind(home) as gateway:
        there = await known(gateway)

        def ask() -> list[Asked]:
            return Asker(gateway.url, (gateway.key, ADMIN), there).all(most, free=free, step=step)

        return await asyncio.to_thread(ask)


async def test_what_is_published_is_served_as_published(tmp_path: Path) -> None:
    """A client that was made for OpenAI or Anthropic may send any field of theirs, and reads any answer."""
    found = await asked(tmp_path, 1, free=False, step=2)
    assert {one.operation for one in found} == {one.name for one in OPERATIONS}
    assert not [fault for one in found for fault in one.faults]


@pytest.mark.proof
@pytest.mark.timeout(3_600)
async def test_every_published_field_often(tmp_path: Path) -> None:
    """The same with many values of each field, as documented and as anything at all."""
    found = await asked(tmp_path, 30, free=True)
    faults = [fault for one in found for fault in one.faults]
    told: dict[str, dict[str, object]] = {}
    for operation in OPERATIONS:
        mine = [one for one in found if one.operation == operation.name]
        fields: dict[str, list[Asked]] = defaultdict(list)
        for one in mine:
            fields[one.field].append(one)
        told[operation.name] = {
            "requests": sum(one.requests for one in mine),
            "taken": sum(one.taken for one in mine),
            "fields": len(fields) - 1,
            "never_taken": sorted(
                name for name, asks in fields.items() if name not in EXISTING and not any(one.taken for one in asks)
            ),
        }
    proofs.keep("openai-shapes", requests=sum(one.requests for one in found), faults=len(faults), operations=told)
    assert not faults


async def test_a_fault_is_seen(tmp_path: Path) -> None:
    """The proof is worth something only if an answer of another shape fails it."""
    async with behind(tmp_path) as gateway:
        there = await known(gateway)
        wrong = Operation("post", "/v1/chat/completions", dict[str, int], None, {"model": "", "messages": HI})

        def ask() -> Asked:
            asker = Asker(gateway.url, (gateway.key, ADMIN), there, (wrong,))
            (only,) = asker.all(1, free=False)
            return only

        assert (await asyncio.to_thread(ask)).faults
