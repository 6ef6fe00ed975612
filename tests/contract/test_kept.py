"""What clients leave here, on both databases: files, batches, responses, answers under a key."""

import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import insert

from gateway.batches import store
from gateway.batches.lines import Read
from gateway.batches.shapes import Batch, Result
from gateway.call import Principal
from gateway.db.models import Boot
from gateway.db.session import Database
from gateway.errors import Conflict, NotFound
from gateway.files import Files
from gateway.idempotency import Idempotency, asked
from gateway.kept_settings import KeptSettings
from gateway.recording import Recording
from gateway.responses import Responses
from gateway.tasks import Tasks
from tests.clock import FrozenClock
from tests.empty_database import fresh_postgres

OURS = Principal(key_id="k", team="t", project="p")
THEIRS = Principal(key_id="k", team="t", project="other")
BLANK: dict[str, Any] = dict.fromkeys(
    ("in_progress", "finalizing", "completed", "failed", "expired", "cancelling", "cancelled", "output_file"),
)


@pytest.fixture(params=["sqlite", "postgresql"])
async def database(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncGenerator[Database, None]:
    url = f"sqlite:///{tmp_path / 'nearhit.db'}"
    if request.param == "postgresql":
        url = await fresh_postgres(request.getfixturevalue("postgres_url"))
    made = Database(url)
    await made.start()
    async with made.begin() as connection:
        alive = {"host": "h", "journalled": True, "started": 0.0, "seen": 0.0}
        rows = [{**alive, "id": "here", "closed": None}, {**alive, "id": "dead", "closed": 1.0}]
        await connection.execute(insert(Boot), rows)
    yield made
    await made.close()


async def test_a_file_and_a_batch_live_and_go(database: Database, clock: FrozenClock) -> None:
    """The whole life, so that no statement is only ever run on one of the two."""
    files = Files(database, KeptSettings(), now=clock.now)
    writing = await files.begin(OURS)
    await writing.write(b"x" * 300_000)
    file = await writing.finish("in.jsonl", "batch", 60.0)
    assert b"".join([piece async for piece in files.content(file.id)]) == b"x" * 300_000
    with pytest.raises(NotFound):
        await files.get(THEIRS, file.id)
    batch = Batch(
        id="batch_1", team="t", project="p", key_id="k", endpoint="/v1/embeddings", input_file=file.id, window="24h",
        status="validating", metadata={"a": "b"}, errors=None, directives={}, lines=0, succeeded=0, unsuccessful=0,
        output_lifetime=0.0, created=clock.now(), expires=clock.now() + 9, error_file=None, **BLANK,
    )  # fmt: skip
    transact = database.transact
    assert await transact(store.add, batch, "once", "f", 1) == batch
    assert await transact(store.add, batch, "once", "f", 1) == batch
    with pytest.raises(Conflict):
        await transact(store.add, batch, "once", "other", 1)
    taken = await transact(store.take, "dead", [])
    assert taken is not None
    assert await transact(store.take, "here", []) is not None, "its owner is gone"
    assert await transact(store.take, "here", []) is None
    await transact(store.fill, batch.id, [Read(number, str(number), b"{}") for number in range(4)])
    assert await transact(store.move, batch.id, "in_progress", clock.now(), lines=4) == "in_progress"
    first, _ = await transact(store.claim, batch.id, "here", 2)
    await transact(store.rename, batch.id, first.number, "another")
    await transact(store.finish, batch.id, [Result(number=0, state="done", told=b"{}\n")])
    await transact(store.loosen, batch.id, "here")
    current = await transact(store.find, batch.id)
    assert current is not None
    await transact(store.cancel, current, clock.now())
    assert await transact(store.give_up, batch.id, "cancelled", "no", 10) == 3
    assert len(await transact(store.results, batch.id, -1, 10, good=False)) == 3
    await transact(store.conclude, batch, clock.now(), (None, None))
    ended = await transact(store.find, batch.id)
    assert ended is not None
    assert (ended.status, ended.succeeded, ended.unsuccessful) == ("cancelled", 1, 3)
    assert await transact(store.listed, "t", "p", None, 5) == [ended]
    clock.advance(100 * 86_400)
    assert await files.sweep() == 1
    assert await transact(store.sweep, clock.now()) == 1


async def test_a_key_is_claimed_once(database: Database, clock: FrozenClock) -> None:
    """Ten at once, two workers, one answer; the other worker hears it from the database."""
    tasks = Tasks()
    here, there = [Idempotency(database, "here", now=clock.now, tasks=tasks) for _ in range(2)]
    made = 0

    async def make(recording: Recording) -> bool:
        nonlocal made
        made += 1
        start = {"type": "http.response.start", "status": 200, "headers": [(b"x-request-id", b"r")]}
        await recording.send(start)
        await recording.send({"type": "http.response.body", "body": b"hello" * 100_000})
        return True

    async def ask(worker: Idempotency) -> bytes:
        heard: list[Any] = []

        async def send(message: Any) -> None:
            heard.append(message)

        await worker.answer(asked("k", "key", ("chat", {}), "r", 5.0), make, send)
        return b"".join(message.get("body", b"") for message in heard)

    assert set(await asyncio.gather(*[ask(here) for _ in range(10)])) == {b"hello" * 100_000}
    await tasks.finish(5.0)
    assert await ask(there) == b"hello" * 100_000
    assert made == 1
    clock.advance(86_401)
    assert await here.sweep() == 1


async def test_responses_are_chained_and_bounded(database: Database, clock: FrozenClock) -> None:
    """A conversation is kept as long as its last part, by its project only."""
    settings = KeptSettings(responses_ttl=100.0, project_responses=2_000)
    responses = Responses(database, "here", settings, now=clock.now)
    said = {"status": "completed", "output": [{"type": "message", "role": "assistant", "content": "yes"}]}
    asked_: list[dict[str, object]] = [{"type": "message", "role": "user", "content": "?"}]
    assert await responses.put(OURS, {"id": "resp_1", **said}, asked_)
    clock.advance(90)
    assert await responses.put(OURS, {"id": "resp_2", "previous_response_id": "resp_1", **said}, asked_)
    clock.advance(90)
    assert len(await responses.earlier(OURS, "resp_2")) == 4
    with pytest.raises(NotFound):
        await responses.get(THEIRS, "resp_2")
    for number in range(40):
        await responses.put(OURS, {"id": f"resp_x{number}", **said}, asked_)
    with pytest.raises(NotFound):
        await responses.get(OURS, "resp_1")
    clock.advance(1_000)
    assert await responses.sweep() > 0
