"""Batches at the batch service of a provider: handed in whole, charged at its price, never lost and never twice."""

import asyncio
import sqlite3
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from openai import AsyncOpenAI
from sqlalchemy import text

from gateway.auth import ADMIN, NewKey
from gateway.batches import abroad, handing, runner
from gateway.call import Principal
from gateway.price_terms import Terms
from gateway.prices import PriceSetting
from gateway.scripted_batches import Asked, Told
from gateway.scripted_server import Options, ScriptedServer
from policies.budget import Budget
from tests.flow.test_batches import client_of, line, lines, made, over, told
from tests.live import Live, live, settings
from tests.unit.ledger.rig import call
from tests.waiting import until

KINDS = ("openai", "groq", "azure", "mistral", "anthropic", "together", "xai", "fireworks")
SERVICES = ("together", "xai", "fireworks")  # of batches all their own, which the scripted upstream keeps apart
OFF = {"store": "memory", "mode": "off"}
SOURCES = ("provider", "upper_bound", "adjust")


def upstream(kind: str, port: int) -> dict[str, Any]:
    home = f"http://127.0.0.1:{port}{'/' + kind if kind in SERVICES else ''}"
    base = home if kind == "azure" else f"{home}/inference/v1" if kind == "fireworks" else f"{home}/v1"
    account = {"account": "acme"} if kind == "fireworks" else {}
    return {"kind": kind, "base_url": base, "api_key": "none", "batch": "own", **account}


@asynccontextmanager
async def playing(
    home: Path,
    kind: str = "openai",
    options: Options | None = None,
    more: dict[str, Any] | None = None,
    batch: str = "own",
    **values: Any,
) -> AsyncGenerator[tuple[ScriptedServer, Live, AsyncOpenAI]]:
    server = ScriptedServer(options or Options(), home / "bill.jsonl")
    port = await server.start()
    providers = {"lab": {**upstream(kind, port), "batch": batch}, **(more or {})}
    chosen = settings(home, **{"providers": providers, "cache": OFF, "kept": {"batch_look": 0.05}, **values})
    try:
        async with live(chosen) as gateway:
            await priced(gateway)
            async with client_of(gateway) as client:
                yield server, gateway, client
    finally:
        await server.close()


async def priced(gateway: Live) -> None:
    terms = Terms(input_usd="10.00", output_usd="20.00", service={"batch": "50"})
    await gateway.services.prices.put("lab/m", terms, PriceSetting(actor="test", effective_from=0.0))


def bill(home: Path) -> list[Any]:
    return [msgspec.json.decode(one) for one in (home / "bill.jsonl").read_bytes().splitlines()]


async def charged(gateway: Live) -> list[Any]:
    """What the ledger holds that is not nothing."""
    return [entry for entry in await gateway.entries() if entry["source"] != "void"]


def costs(rows: Sequence[Any]) -> int:
    """What a bill comes to at half of 10 and 20 USD a million tokens, in nano-USD."""
    return sum(row["prompt_tokens"] * 5_000 + row["completion_tokens"] * 10_000 for row in rows)


@pytest.mark.parametrize("kind", KINDS)
async def test_a_batch_goes_to_the_service_and_costs_half(tmp_path: Path, kind: str) -> None:
    """Each row is charged by the service's own count at its batch price, and told as if it had come alone."""
    questions = [line(f"q{n}", f"question {n}", max_tokens=20) for n in range(5)]
    async with playing(tmp_path, kind) as (server, gateway, client):
        batch = await over(client, await made(client, lines(*questions)))
        assert (batch.status, batch.request_counts.completed, batch.error_file_id) == ("completed", 5, None)
        answers = await told(client, batch.output_file_id)
        billed, entries = bill(tmp_path), await charged(gateway)
        rows = await gateway.rows()
        assert server.books.counters.calls == 5
        assert all(row["batch"] for row in billed), "none of them was asked for alone"
        assert await gateway.services.ledger.verify() == []
    assert {one["response"]["body"]["object"] for one in answers.values()} == {"chat.completion"}
    assert sum(entry["amount_nano"] for entry in entries) == costs(billed)
    assert {entry["source"] for entry in entries} == {"provider"}
    assert {row["id"] for row in rows} == {one["response"]["request_id"] for one in answers.values()}


async def test_every_endpoint_that_batches_have(tmp_path: Path) -> None:
    """Legacy completions and embeddings go there too; responses as the chat completions they are made of."""
    async with playing(tmp_path) as (_, __, client):
        for endpoint, body in (
            ("/v1/completions", {"model": "lab/m", "prompt": "Once", "max_tokens": 4}),
            ("/v1/embeddings", {"model": "lab/m", "input": "a text"}),
            ("/v1/responses", {"model": "lab/m", "input": "hi", "max_output_tokens": 16}),
        ):
            row = msgspec.json.encode({"custom_id": "x", "method": "POST", "url": endpoint, "body": body})
            batch = await over(client, await made(client, row, endpoint))
            assert batch.request_counts.completed == 1, batch
        assert all(row["batch"] for row in bill(tmp_path))


async def test_what_needs_more_than_a_chat_is_refused(tmp_path: Path) -> None:
    """Lines are chats there: a search that nobody makes must not be answered as if it had been made."""
    body = {"model": "lab/m", "input": "hi", "tools": [{"type": "web_search"}]}
    row = msgspec.json.encode({"custom_id": "x", "method": "POST", "url": "/v1/responses", "body": body})
    async with playing(tmp_path) as (server, _, client):
        batch = await over(client, await made(client, row, "/v1/responses"))
        failed = await told(client, batch.error_file_id)
        assert failed["x"]["response"]["body"]["error"]["param"] == "tools[0].type"
        assert server.books.counters.calls == 0


async def test_only_models_of_that_provider_go_there(tmp_path: Path) -> None:
    """One input may name several models; each line goes its own way, and what cannot be sent is told why."""
    async with playing(tmp_path, more={"up": {"kind": "scripted"}}) as (server, gateway, client):
        name = "up/scripted"
        await gateway.services.prices.set(name, input_usd="1", output_usd="2", actor="test", effective_from=0.0)
        content = lines(line("away"), line("here", model=name), line("free", model="lab/unpriced"), line("bad", n="x"))
        batch = await over(client, await made(client, content))
        good, bad = await told(client, batch.output_file_id), await told(client, batch.error_file_id)
        assert (set(good), set(bad)) == ({"away", "here"}, {"free", "bad"})
        assert bad["free"]["response"]["body"]["error"]["code"] == "model_not_priced"
        assert server.books.counters.calls == 1


@pytest.mark.parametrize("kind", ["openai", *SERVICES])
async def test_rows_that_fail_there_are_told_and_cost_nothing(tmp_path: Path, kind: str) -> None:
    """A failed row is an error of its own; the others are charged."""
    questions = [line(f"q{n}", f"question {n}") for n in range(12)]
    async with playing(tmp_path, kind, Options(fail_rate=0.4, seed=5)) as (server, gateway, client):
        batch = await over(client, await made(client, lines(*questions)))
        failed = server.books.counters.failed
        assert 0 < failed < 12
        assert (batch.request_counts.completed, batch.request_counts.failed) == (12 - failed, failed)
        assert len(await told(client, batch.error_file_id)) == failed
        assert sum(entry["amount_nano"] for entry in await charged(gateway)) == costs(bill(tmp_path))


async def test_a_key_gets_there_no_further_than_by_itself(tmp_path: Path) -> None:
    """What a key may not ask for it may not have asked for in a batch either, nor once it is revoked."""
    async with playing(tmp_path) as (server, gateway, _):
        wanted = NewKey(name="narrow", team="acme", project="app", models=frozenset(("other/model",)))
        narrow = await gateway.services.keyring.create(ADMIN, wanted)
        async with client_of(gateway, narrow.key) as client:
            batch = await over(client, await made(client, lines(line("a"), line("b"))))
            bad = await told(client, batch.error_file_id)
        assert {one["response"]["status_code"] for one in bad.values()} == {403}
        assert server.books.counters.calls == 0
        assert await charged(gateway) == []


async def test_one_request_that_the_service_cannot_do_does_not_stop_the_others(tmp_path: Path) -> None:
    """It is refused by name; the rest of its part goes on."""
    async with playing(tmp_path, "groq") as (server, _, client):
        batch = await over(client, await made(client, lines(line("good"), line("bad", n=2))))
        bad = await told(client, batch.error_file_id)
        assert (set(bad), batch.request_counts.completed) == ({"bad"}, 1)
        assert bad["bad"]["response"]["body"]["error"]["param"] == "n"
        assert server.books.counters.calls == 1


async def _tried(gateway: Live) -> None:
    """Until a part has been handed in, in vain."""

    async def parted() -> bool:
        async with gateway.services.database.read() as connection:
            return bool((await connection.execute(text("SELECT 1 FROM batch_part"))).all())

    await until(parted)
    await asyncio.sleep(0.7)  # to be tried leaves no trace while it goes on


async def test_what_was_charged_for_a_part_that_never_arrived_is_taken_back(tmp_path: Path) -> None:
    """The service was out of reach until the process ended, and its money was charged; the next process hands it in."""
    nowhere = {"lab": upstream("openai", 9)}
    chosen = settings(tmp_path, providers=nowhere, cache=OFF, kept={"batch_look": 0.05})
    async with live(chosen) as gateway:
        await priced(gateway)
        key = gateway.key
        async with client_of(gateway) as client:
            batch = await made(client, lines(*(line(f"q{n}", f"question {n}") for n in range(3))))
            await _tried(gateway)
    async with playing(tmp_path) as (_, gateway, __), client_of(gateway, key) as client:
        batch = await over(client, batch)
        assert batch.request_counts.completed == 3
        await gateway.settled()
        assert sum(entry["amount_nano"] for entry in await charged(gateway)) == costs(bill(tmp_path))
        assert await gateway.services.ledger.verify() == []


async def test_a_part_that_never_arrived_and_is_not_wanted_any_more_costs_nothing(tmp_path: Path) -> None:
    """Its process ended while it was handed in, and its money was charged; who cancelled it meanwhile owes nothing."""
    nowhere = {"lab": upstream("openai", 9)}
    chosen = settings(tmp_path, providers=nowhere, cache=OFF, kept={"batch_look": 0.05})
    async with live(chosen) as gateway:
        await priced(gateway)
        key = gateway.key
        async with client_of(gateway) as client:
            batch = await made(client, lines(line("a"), line("b")))
            await _tried(gateway)
    with sqlite3.connect(tmp_path / "nearhit.db") as database:
        database.execute("UPDATE batch SET status = 'cancelling', cancelling = 1.0")
        assert database.execute("SELECT sum(amount_nano) FROM entry").fetchone()[0] > 0
    async with playing(tmp_path) as (server, gateway, __), client_of(gateway, key) as client:
        assert (await over(client, batch)).status == "cancelled"
        await gateway.settled()
        assert sum(entry["amount_nano"] for entry in await charged(gateway)) == 0
        assert server.batches.known == 0
        assert await gateway.services.ledger.verify() == []


async def test_equal_rows_are_charged_each(tmp_path: Path) -> None:
    """The service answers and bills all of them: none may be taken for another's, in flight or from the cache."""
    async with playing(tmp_path, cache={"store": "memory"}) as (_, gateway, client):
        batch = await over(client, await made(client, lines(*(line(f"q{n}", "the same") for n in range(4)))))
        assert batch.request_counts.completed == 4
        assert sum(entry["amount_nano"] for entry in await charged(gateway)) == costs(bill(tmp_path))
        assert len(await charged(gateway)) == 4


async def test_all_that_it_may_cost_is_held_while_it_is_away(tmp_path: Path) -> None:
    """A budget must hold although answers come hours later."""
    async with playing(tmp_path, options=Options(batch_ms=60_000)) as (server, gateway, client):
        ledger = gateway.services.ledger
        await ledger.set_budget(Budget(scope="org", limit_nano=20_000_000, window="day", alerts=()), "test")
        batch = await made(client, lines(*(line(f"q{n}", max_tokens=100) for n in range(5))))
        await until(lambda: server.batches.known == 1)
        left = ledger.remaining(call(Principal(key_id="", team="acme", project="app")), "lab", "m")
        assert left is not None
        assert 0 < left < 20_000_000 - 5 * 100 * 10_000, "at least the whole output of each"
        refused = await gateway.chat(model="lab/m", max_tokens=900)
        assert (refused.status, refused.json["error"]["code"]) == (429, "insufficient_quota")
        await client.batches.cancel(batch.id)
        assert (await over(client, batch)).status == "cancelled"
        assert await charged(gateway) == []


async def test_what_was_run_is_charged_whatever_became_of_budget_and_key(tmp_path: Path) -> None:
    """The service bills it: money that is owed must stand in the ledger, and the answer in the file."""
    async with playing(tmp_path, options=Options(batch_ms=86_400_000)) as (server, gateway, _):
        ledger, keyring = gateway.services.ledger, gateway.services.keyring
        key = await gateway.new_key("rivals")
        async with client_of(gateway, key) as rival:
            batch = await made(rival, lines(line("a"), line("b")))
        await until(lambda: server.batches.known == 1)
        await ledger.set_budget(Budget(scope="org", limit_nano=1, window="day", alerts=()), "test")
        found = [row for row in await keyring.list(ADMIN) if row.team == "rivals"]
        await keyring.revoke(ADMIN, found[0].id)
        server.batches.hurry()
        await until(lambda: _ended(gateway, batch.id))
        assert sum(entry["amount_nano"] for entry in await charged(gateway)) == costs(bill(tmp_path)) > 0
        assert {row["status"] for row in await gateway.rows()} == {200}
        assert await ledger.verify() == []


async def _ended(gateway: Live, batch_id: str) -> bool:
    async with gateway.services.database.read() as connection:
        found = await connection.execute(text("SELECT status FROM batch WHERE id = :id"), {"id": batch_id})
        return found.scalar_one() == "completed"


async def test_a_part_waits_for_what_another_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A part holds the most it can cost, many times what it will: the next was refused although the money was there."""
    monkeypatch.setattr(abroad, "_MOST_ROWS", 2)
    monkeypatch.setattr(handing, "_PAUSE", 0.05)
    async with playing(tmp_path, options=Options(tokens=3)) as (server, gateway, client):
        budget = Budget(scope="org", limit_nano=5_000_000, window="day", alerts=())
        await gateway.services.ledger.set_budget(budget, "test")
        questions = [line(f"q{n}", f"question {n}", max_tokens=100) for n in range(6)]
        batch = await over(client, await made(client, lines(*questions)))
        assert (batch.request_counts.completed, batch.request_counts.failed) == (6, 0)
        assert (server.books.counters.calls, server.batches.known) == (6, 3)


async def test_lines_wait_for_what_a_part_of_their_own_batch_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More lines than may be under way wait for it: the answers that end it must have room beside them."""
    ask, looks = runner.Asking.ask, [0]
    async with playing(
        tmp_path,
        options=Options(tokens=3, batch_ms=1_000),
        more={"up": {"kind": "scripted", "tokens": 3}},
        kept={"batch_look": 0.05, "batch_in_flight": 2},
    ) as (server, gateway, client):

        async def behind(*given: Any) -> Any:
            await until(lambda: server.batches.known > 0)
            asked = await ask(*given)
            looks[0] += asked.held_up
            return asked

        monkeypatch.setattr(runner.Asking, "ask", behind)
        budget = Budget(scope="org", limit_nano=8_500_000, window="day", alerts=())
        await gateway.services.ledger.set_budget(budget, "test")
        there = [line(f"there{n}", f"question {n}", max_tokens=200) for n in range(3)]
        here = [line(f"here{n}", f"question {n}", model="up/scripted", max_tokens=1_000) for n in range(5)]
        batch = await over(client, await made(client, lines(*here, *there)))
        assert (batch.request_counts.completed, batch.request_counts.failed) == (8, 0)
        assert looks[0] >= 2


async def test_a_budget_that_is_too_small_refuses_every_row(tmp_path: Path) -> None:
    """Nothing is handed in that could not be paid for."""
    async with playing(tmp_path) as (server, gateway, client):
        budget = Budget(scope="org", limit_nano=1_000, window="day", alerts=())
        await gateway.services.ledger.set_budget(budget, "test")
        batch = await over(client, await made(client, lines(line("a"), line("b"))))
        bad = await told(client, batch.error_file_id)
        assert [bad[name]["response"]["status_code"] for name in ("a", "b")] == [429, 429]
        assert server.books.counters.calls == 0


@pytest.mark.parametrize("kind", ["openai", "together", "xai"])
async def test_cancelling_passes_on(tmp_path: Path, kind: str) -> None:
    """What nobody wants any more must not be run, and every line stands in a file."""
    async with playing(tmp_path, kind, Options(batch_ms=60_000)) as (server, _, client):
        batch = await made(client, lines(line("a"), line("b")))
        await until(lambda: server.batches.known == 1)
        await client.batches.cancel(batch.id)
        batch = await over(client, batch)
        assert batch.status == "cancelled"
        assert {one["error"]["code"] for one in (await told(client, batch.error_file_id)).values()} == {"batch_expired"}
        assert server.books.counters.calls == 0


async def test_what_cannot_be_stopped_is_waited_for_and_charged(tmp_path: Path) -> None:
    """Fireworks can only delete a job, and would tell nobody what it had run by then: money would be missing."""
    async with playing(tmp_path, "fireworks", Options(batch_ms=86_400_000)) as (server, gateway, client):
        batch = await made(client, lines(line("a"), line("b")))
        await until(lambda: server.batches.known == 1)
        batch = await client.batches.cancel(batch.id)
        server.batches.hurry()
        batch = await over(client, batch)
        assert (batch.status, batch.request_counts.completed) == ("cancelled", 2)
        assert sum(entry["amount_nano"] for entry in await charged(gateway)) == costs(bill(tmp_path)) > 0


@pytest.mark.parametrize("kind", SERVICES)
async def test_what_a_service_has_no_batches_of_is_asked_one_by_one(tmp_path: Path, kind: str) -> None:
    """Its batches hold chats alone, and an embedding is to be had there all the same."""
    row = {"custom_id": "x", "method": "POST", "url": "/v1/embeddings", "body": {"model": "lab/m", "input": "a text"}}
    async with playing(tmp_path, kind) as (server, gateway, client):
        batch = await over(client, await made(client, msgspec.json.encode(row), "/v1/embeddings"))
        assert (batch.status, batch.request_counts.completed) == ("completed", 1)
        answers = await told(client, batch.output_file_id)
        assert len(answers["x"]["response"]["body"]["data"][0]["embedding"]) > 8
        assert server.batches.known == 0
        assert [entry["source"] for entry in await charged(gateway)] == ["provider"]
        assert await gateway.services.ledger.verify() == []


@pytest.mark.parametrize(
    ("kind", "found"),
    [("openai", True), ("mistral", True), ("anthropic", False), *((kind, True) for kind in SERVICES)],
)
async def test_a_batch_whose_answer_was_lost_is_looked_for_and_never_made_twice(
    tmp_path: Path, kind: str, found: bool
) -> None:
    """Where the service keeps no names nobody can tell, so its rows stay charged at the bound and are told as such."""
    async with playing(tmp_path, kind, Options(cut_rate=1.0)) as (server, gateway, client):
        batch = await over(client, await made(client, lines(line("a"), line("b"))))
        assert server.batches.known == 1
        entries = await charged(gateway)
        assert await gateway.services.ledger.verify() == []
        if found:
            assert batch.request_counts.completed == 2
            assert sum(entry["amount_nano"] for entry in entries) == costs(bill(tmp_path))
            return
        bad = await told(client, batch.error_file_id)
        assert {one["error"]["code"] for one in bad.values()} == {"interrupted"}
        assert [entry["source"] for entry in entries] == ["upper_bound"]
        assert entries[0]["amount_nano"] >= costs(bill(tmp_path))


@pytest.mark.parametrize("kind", ["openai", "mistral", "anthropic", *SERVICES])
async def test_nothing_of_it_is_left_at_the_service(tmp_path: Path, kind: str) -> None:
    """What people asked and were told lies in files there, which nobody would ever look for again."""
    async with playing(tmp_path, kind, Options(batch_ms=86_400_000)) as (server, _, client):
        batch = await made(client, lines(line("a"), line("b")))
        await until(lambda: server.batches.known == 1)
        assert server.batches.kept == (2 if kind == "fireworks" else 1)
        server.batches.hurry()
        assert (await over(client, batch)).request_counts.completed == 2
        await until(lambda: server.batches.kept == 0)


async def test_a_cancelled_batch_ends_though_its_service_is_gone(tmp_path: Path) -> None:
    """It would stay `cancelling` for ever; since its requests may have been billed they stay charged at the bound."""
    kept = {"batch_look": 0.05, "batch_patience": 0.3}
    async with playing(tmp_path, options=Options(batch_ms=86_400_000), kept=kept) as (server, gateway, client):
        batch = await made(client, lines(line("a", max_tokens=10), line("b", max_tokens=10)))
        await until(lambda: server.batches.known == 1)
        await server.close()
        await client.batches.cancel(batch.id)
        batch = await over(client, batch)
        bad = await told(client, batch.error_file_id)
        assert batch.status == "cancelled"
        assert {one["error"]["code"] for one in bad.values()} == {"interrupted"}
        entries = await charged(gateway)
        assert [(entry["source"], entry["completion"]) for entry in entries] == [("upper_bound", 20)]
        assert await gateway.services.ledger.verify() == []


async def test_what_came_back_before_the_service_fell_silent_is_not_charged_twice(tmp_path: Path) -> None:
    """Each answer that is here is charged by itself; of those that are not the most they can cost stays charged."""
    kept, total = {"batch_look": 0.05, "batch_patience": 0.3}, 420
    async with playing(tmp_path, options=Options(batch_ms=86_400_000), kept=kept) as (server, gateway, client):
        batch = await made(client, lines(*(line(f"q{n}", f"question {n}", max_tokens=10) for n in range(total))))
        await until(lambda: server.batches.known == 1)
        whole = server.batches.answer

        def cut(asked: Asked) -> Told | None:
            answer = whole(asked)
            return msgspec.structs.replace(answer, cut=asked.path.endswith("/content")) if answer else None

        server.batches.answer = cut
        server.batches.hurry()
        await client.batches.cancel(batch.id)
        batch = await over(client, batch)
        counts = batch.request_counts
        assert (counts.completed, counts.failed) == (200, total - 200), "what comes back is kept by two hundred"
        await gateway.settled()
        entries = await charged(gateway)
        by = {source: [entry["amount_nano"] for entry in entries if entry["source"] == source] for source in SOURCES}
        assert (len(by["provider"]), len(by["upper_bound"]), len(by["adjust"])) == (200, 1, 1)
        left = by["upper_bound"][0] + by["adjust"][0]
        assert (total - 200) * 10 * 10_000 < left < by["upper_bound"][0] * (total - 150) / total
        assert await gateway.services.ledger.verify() == []


async def test_off_unless_it_is_wanted(tmp_path: Path) -> None:
    """The service takes up to a day: that is the operator's choice."""
    async with playing(tmp_path, batch="off") as (server, _, client):
        assert (await over(client, await made(client, lines(line("a"))))).status == "completed"
        assert (server.books.counters.calls, server.batches.known) == (1, 0)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"kind": "deepseek"}, "batches are spoken here, not deepseek"),
        ({"kind": "fireworks"}, "needs `account`"),
        ({"kind": "openai", "api_keys": ["a", "b"], "api_key": None}, "one api_key"),
        ({"kind": "openai", "base_url": None, "replicas": ["http://127.0.0.1:9/v1"]}, "one server"),
    ],
)
async def test_what_cannot_do_it_is_said_at_the_start(tmp_path: Path, given: dict[str, Any], words: str) -> None:
    """Otherwise batches would quietly cost twice as much as the configuration says."""
    chosen = {**upstream("openai", 9), **given}
    chosen = {name: value for name, value in chosen.items() if value is not None}
    with pytest.raises(ValueError, match=words):
        async with live(settings(tmp_path, providers={"lab": chosen})):
            pass
