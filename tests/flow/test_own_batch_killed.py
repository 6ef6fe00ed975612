"""A worker that is killed while its batch is at a provider: the next one goes on with it, and nothing is paid twice."""

import sqlite3
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest

from gateway.scripted_server import Options, ScriptedServer
from gateway.serve_home import take_first_key
from tests.flow.test_batch_killed import ADMIN, Door, begun, content, finished, opened, served
from tests.flow.test_own_batches import SERVICES, upstream
from tests.waiting import until

LINES = 12
PRICE = {"input_usd": "10.00", "output_usd": "20.00", "service": {"batch": 50}}
encode = msgspec.json.encode


def setting(kind: str, port: int) -> dict[str, Any]:
    lab = upstream(kind, port)
    return {"NEARHIT_PROVIDERS": encode({"lab": lab}).decode(), "NEARHIT_KEPT__BATCH_LOOK": "0.1"}


def parts(home: Path) -> list[tuple[str, str | None]]:
    with sqlite3.connect(home / "nearhit.db") as database:
        return database.execute("SELECT state, remote FROM batch_part").fetchall()


def charged(home: Path) -> list[tuple[str, int]]:
    with sqlite3.connect(home / "nearhit.db") as database:
        return database.execute("SELECT source, amount_nano FROM entry WHERE source <> 'void'").fetchall()


async def killed_with_a_batch_away(
    home: Path, variables: dict[str, Any], client: aiohttp.ClientSession
) -> tuple[str, str]:
    """A worker begins a batch and dies once it is at the provider; the key that asked, and the batch."""
    with served(home, "", variables) as (process, port):
        door = await opened(process, port, client)
        key = take_first_key(home)
        assert key is not None
        await door.ask("PUT", "/api/v1/prices/lab/m", ADMIN, json=PRICE)
        batch_id = await begun(door, key)
        await until(lambda: parts(home) != [] and parts(home)[0][0] == "away")
        process.kill()
        process.wait()
    return key, batch_id


@pytest.mark.parametrize(
    "kind", ["openai", *(pytest.param(kind, marks=pytest.mark.proof) for kind in ("anthropic", *SERVICES))]
)
async def test_a_batch_at_a_provider_survives_kill_9(tmp_path: Path, kind: str) -> None:
    """The service's id stands in the database before anything else; what was held is charged until answers are."""
    (tmp_path / "run").mkdir()
    server = ScriptedServer(Options(batch_ms=86_400_000), tmp_path / "bill.jsonl")
    variables = setting(kind, await server.start())
    async with aiohttp.ClientSession() as client:
        key, batch_id = await killed_with_a_batch_away(tmp_path, variables, client)
        assert server.batches.known == 1
        server.batches.hurry()
        with served(tmp_path, "", variables) as (process, port):
            door = await opened(process, port, client)
            batch = await finished(door, key, batch_id)
            good = await content(door, key, batch["output_file_id"])
            await until(lambda: parts(tmp_path) == [])
            await settled(door, tmp_path)
    await server.close()
    assert (batch["status"], len(good), batch["error_file_id"]) == ("completed", LINES, None)
    assert server.batches.known == 1, "it was not handed in twice"
    billed = [msgspec.json.decode(line) for line in (tmp_path / "bill.jsonl").read_bytes().splitlines()]
    assert len(billed) == LINES
    cost = sum(row["prompt_tokens"] * 5_000 + row["completion_tokens"] * 10_000 for row in billed)
    entries = charged(tmp_path)
    assert sum(amount for source, amount in entries if source == "provider") == cost
    assert sum(amount for _, amount in entries) == cost, "what was held by the dead process is taken back"
    assert {source for source, _ in entries} == {"provider", "upper_bound", "adjust"}


@pytest.mark.proof
@pytest.mark.parametrize("kind", ["openai", *SERVICES])
async def test_a_batch_whose_arrival_was_never_confirmed_is_looked_for(tmp_path: Path, kind: str) -> None:
    """Between the service's making it and our noting it a process may die: its own name finds it again."""
    (tmp_path / "run").mkdir()
    server = ScriptedServer(Options(batch_ms=86_400_000), tmp_path / "bill.jsonl")
    variables = setting(kind, await server.start())
    async with aiohttp.ClientSession() as client:
        key, batch_id = await killed_with_a_batch_away(tmp_path, variables, client)
        with sqlite3.connect(tmp_path / "nearhit.db") as database:
            database.execute("UPDATE batch_part SET state = 'sending', remote = NULL")
        server.batches.hurry()
        with served(tmp_path, "", variables) as (process, port):
            door = await opened(process, port, client)
            batch = await finished(door, key, batch_id)
    await server.close()
    assert (batch["status"], batch["request_counts"]["completed"]) == ("completed", LINES)
    assert server.batches.known == 1


async def settled(door: Door, home: Path) -> None:
    """Until the ends of all attempts have reached the database."""
    await until(lambda: sum(source == "provider" for source, _ in charged(home)) == LINES)
    assert door.process.poll() is None
