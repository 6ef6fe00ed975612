"""What a dead worker had under way: run again only where the ledger knows that it was never sent."""

from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import insert, select

from gateway.batches import store
from gateway.batches.lines import Read
from gateway.db.models import BatchLine, Boot, Entry
from gateway.db.session import Database

REST: dict[str, Any] = {
    "windows": "[]", "team": "t", "project": "p", "key_id": "k", "provider": "u", "model": "m", "price": "x",
    "prompt": 0, "cached": 0, "cache_write": 0, "completion": 0, "reasoning": 0, "amount_nano": 0, "reserved_nano": 0,
    "ended": "failed", "digest": "", "charged": True, "admitted": 0.0, "at": 0.0,
}  # fmt: skip


@pytest.fixture
async def database(tmp_path: Path) -> AsyncGenerator[Database, None]:
    made = Database(f"sqlite:///{tmp_path / 'nearhit.db'}")
    await made.start()
    yield made
    await made.close()


@pytest.mark.parametrize(
    ("closed", "journalled", "entry", "state"),
    [
        (1.0, True, None, "waiting"),
        (1.0, True, "void", "waiting"),
        (1.0, True, "upper_bound", "failed"),
        (1.0, True, "provider", "failed"),
        (1.0, False, None, "failed"),
    ],
)
async def test_only_what_was_never_sent_waits_again(
    database: Database, closed: float, journalled: bool, entry: str | None, state: str
) -> None:
    """Sent, settled or unprovable: it may be billed, so it is told and not repeated."""
    async with database.begin() as connection:
        boot = {"id": "dead", "host": "h", "journalled": journalled, "started": 0.0, "seen": 0.0, "closed": closed}
        await connection.execute(insert(Boot).values(boot))
    await database.transact(store.fill, "b", [Read(1, "a", b"{}")])
    (line,) = await database.transact(store.claim, "b", "dead", 5)
    if entry is not None:
        async with database.begin() as connection:
            row = {**REST, "id": f"{line.request_id}.1", "request_id": line.request_id, "boot": "dead", "source": entry}
            await connection.execute(insert(Entry).values(row))
    assert await database.transact(store.heal, "b", "alive", repeat=False) == 1
    async with database.read() as connection:
        found = (await connection.execute(select(BatchLine.state, BatchLine.result))).one()
    assert found.state == state
    assert (b'"interrupted"' in (found.result or b"")) == (state == "failed")
