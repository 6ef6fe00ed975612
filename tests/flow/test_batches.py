"""Files and batches with OpenAI's own client over real sockets: run as if each request had come alone, once."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import openai
import pytest
from openai import AsyncOpenAI
from sqlalchemy import update
from sqlalchemy.exc import OperationalError

from gateway.batches import office, runner, store
from gateway.db.models import BatchRow
from gateway.price_terms import Terms
from gateway.prices import PriceSetting
from policies.budget import Budget
from tests.flow.dialect_upstream import Script, scripted
from tests.flow.test_rate_limits import limit as limited
from tests.live import Live, live, settings

CHAT = "/v1/chat/completions"
encode = msgspec.json.encode


def line(custom_id: str, said: str = "hi", url: str = CHAT, model: str = "lab/m", **more: Any) -> bytes:
    body = {"model": model, "messages": [{"role": "user", "content": said}], **more}
    return encode({"custom_id": custom_id, "method": "POST", "url": url, "body": body})


def lines(*given: bytes) -> bytes:
    return b"\n".join(given) + b"\n"


@asynccontextmanager
async def playing(home: Path, **values: Any) -> AsyncGenerator[tuple[Script, Live, AsyncOpenAI]]:
    async with scripted() as (script, upstream):
        lab = {"kind": "openai", "base_url": upstream.url, "api_key": "none", "billing": "stops-on-close"}
        chosen = settings(home, providers={"up": {"kind": "scripted"}, "lab": lab}, **values)
        async with live(chosen) as gateway:
            await gateway.services.prices.set(
                "lab/m", input_usd="1.00", output_usd="2.00", actor="test", effective_from=0.0
            )
            async with client_of(gateway) as client:
                yield script, gateway, client


def client_of(gateway: Live, key: str | None = None) -> AsyncOpenAI:
    return AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key=key or gateway.key, max_retries=0, timeout=60)


async def made(client: AsyncOpenAI, content: bytes, endpoint: Any = CHAT, **more: Any) -> Any:
    file = await client.files.create(file=("in.jsonl", content), purpose="batch")
    return await client.batches.create(input_file_id=file.id, endpoint=endpoint, completion_window="24h", **more)


async def over(client: AsyncOpenAI, batch: Any) -> Any:
    async with asyncio.timeout(60):
        while batch.status not in ("completed", "failed", "expired", "cancelled"):
            await asyncio.sleep(0.05)
            batch = await client.batches.retrieve(batch.id)
    return batch


async def told(client: AsyncOpenAI, file_id: str) -> dict[str, Any]:
    raw = (await client.files.content(file_id)).content
    return {one["custom_id"]: one for one in map(msgspec.json.decode, raw.splitlines())}


@pytest.mark.parametrize("count", [2, 3, 4])
async def test_any_number_of_lines_is_taken_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    """Lines are written some at a time: an input that ends where such a piece does must not wait for ever."""
    monkeypatch.setattr(runner, "_CHUNK", 2)
    async with playing(tmp_path) as (_, __, client):
        batch = await over(client, await made(client, lines(*(line(f"q{n}", f"{n}") for n in range(count)))))
        assert (batch.status, batch.request_counts.completed) == ("completed", count)


async def test_a_batch_is_its_requests(tmp_path: Path) -> None:
    """Answers, refusals, counts, the ledger and the cache: all as if each line had come alone."""
    async with playing(tmp_path) as (script, gateway, client):
        content = lines(line("a", "one"), line("b", "two"), line("c", "one"), line("d", model="nobody/knows"))
        batch = await over(client, await made(client, content, metadata={"for": "test"}))
        assert (batch.status, batch.metadata) == ("completed", {"for": "test"})
        counts = batch.request_counts
        assert (counts.total, counts.completed, counts.failed) == (4, 3, 1)
        good, bad = await told(client, batch.output_file_id), await told(client, batch.error_file_id)
        assert set(good) == {"a", "b", "c"}
        answer = good["a"]["response"]
        assert answer["status_code"] == 200
        assert answer["body"]["choices"][0]["message"]["content"] == script.text
        assert bad["d"]["response"]["body"]["error"]["code"] == "model_not_found"
        assert len(script.sent) == 2, "an equal request is answered from the cache or shared"
        entries = await gateway.entries()
        assert len(entries) == 2
        rows = await gateway.rows()
        assert {row["id"] for row in rows} >= {one["response"]["request_id"] for one in good.values()}
        assert all("nearhit/batch" in row["tags"] for row in rows)
        with pytest.raises(openai.ConflictError):
            await client.batches.cancel(batch.id)
        listed = [one.id async for one in client.batches.list(limit=1)]
        assert listed == [batch.id]


async def test_a_batch_pays_the_batch_price_where_there_is_one(tmp_path: Path) -> None:
    """What nobody waits for is cheaper where the operator says so, and never where nobody does."""
    async with playing(tmp_path, cache={"store": "memory", "mode": "off"}) as (_, gateway, client):
        terms = Terms(input_usd="1.00", output_usd="2.00", service={"batch": "50"})
        await gateway.services.prices.put("lab/half", terms, PriceSetting(actor="test", effective_from=0.0))
        await gateway.chat(model="lab/half")
        await gateway.chat(model="lab/m")
        await over(client, await made(client, lines(line("a", model="lab/half"), line("b"))))
        amounts: dict[str, list[int]] = {}
        for entry in await gateway.entries():
            amounts.setdefault(entry["model"], []).append(entry["amount_nano"])
        alone, batched = amounts["half"]
        assert batched * 2 == alone
        assert len(set(amounts["m"])) == 1


async def test_a_batch_takes_openais_flex_tier_where_the_model_has_it(tmp_path: Path) -> None:
    """It is sold at what batches cost to whoever asks for it; asking where it is not sold would be refused."""
    async with scripted() as (script, upstream):
        name = {"kind": "openai", "base_url": upstream.url, "api_key": "none"}
        chosen = settings(tmp_path, providers={"openai": name}, cache={"store": "memory", "mode": "off"})
        async with live(chosen) as gateway, client_of(gateway) as client:
            for model in ("openai/gpt-5-mini", "openai/gpt-4o-mini"):
                assert (await gateway.chat(model=model)).status == 200
                await over(client, await made(client, lines(line("a", model=model))))
            entries = await gateway.entries()
    tiers = [(body["model"], body.get("service_tier")) for body in script.sent]
    assert tiers == [
        ("gpt-5-mini", None),
        ("gpt-5-mini", "flex"),
        ("gpt-4o-mini", None),
        ("gpt-4o-mini", None),
    ]
    with_flex, without = ([e["amount_nano"] for e in entries if e["model"] == m] for m in ("gpt-5-mini", "gpt-4o-mini"))
    assert with_flex[1] * 2 == with_flex[0] > 0
    assert without[1] == without[0] > 0


async def test_the_engine_the_encoder_and_other_dialects_run_batches(tmp_path: Path) -> None:
    """Every endpoint that is offered, also without any upstream."""
    async with live(settings(tmp_path)) as gateway, client_of(gateway) as client:
        legacy = {"model": "local/sim", "prompt": "Once", "max_tokens": 4}
        response = {"model": "local/sim", "input": "hi", "max_output_tokens": 16}
        for endpoint, body in (("/v1/completions", legacy), ("/v1/responses", response)):
            asked = encode({"custom_id": "x", "method": "POST", "url": endpoint, "body": body})
            batch = await over(client, await made(client, asked, endpoint))
            assert batch.request_counts.completed == 1, batch
            answer = (await told(client, batch.output_file_id))["x"]["response"]["body"]
            assert answer["model"] == "local/sim"


async def test_an_input_with_faults_runs_nothing(tmp_path: Path) -> None:
    """Half a batch would be paid for and thrown away."""
    async with playing(tmp_path) as (script, _, client):
        batch = await over(client, await made(client, lines(line("a"), line("a"), b"{")))
        assert batch.status == "failed"
        assert [(error.code, error.line) for error in batch.errors.data] == [
            ("duplicate_custom_id", 2),
            ("invalid_json_line", 3),
        ]
        assert not script.sent


async def test_nobody_sees_what_is_anothers(tmp_path: Path) -> None:
    """Files and batches are a project's own: to everybody else they do not exist."""
    async with playing(tmp_path) as (_, gateway, client):
        batch = await over(client, await made(client, lines(line("a"))))
        async with client_of(gateway, await gateway.new_key("rivals")) as rival:
            assert [one.id async for one in rival.files.list()] == []
            assert [one.id async for one in rival.batches.list()] == []
            for attempt in (
                rival.files.retrieve(batch.input_file_id),
                rival.files.content(batch.output_file_id),
                rival.files.delete(batch.output_file_id),
                rival.batches.retrieve(batch.id),
                rival.batches.cancel(batch.id),
                rival.batches.create(input_file_id=batch.input_file_id, endpoint=CHAT, completion_window="24h"),
            ):
                with pytest.raises(openai.NotFoundError):
                    await attempt


async def test_a_cancelled_batch_keeps_what_it_had(tmp_path: Path) -> None:
    """What was under way is finished and told; the rest stands in the error file; nothing more is asked."""
    async with playing(tmp_path, kept={"batch_in_flight": 1}) as (script, _, client):
        script.wait = asyncio.Event()
        batch = await made(client, lines(*[line(str(number), f"question {number}") for number in range(5)]))
        while not script.sent:  # noqa: ASYNC110 - the upstream counts, it does not tell
            await asyncio.sleep(0.01)
        assert (await client.batches.cancel(batch.id)).status == "cancelling"
        await asyncio.sleep(1.2)
        script.wait.set()
        batch = await over(client, batch)
        assert batch.status == "cancelled"
        counts = batch.request_counts
        assert counts.completed + counts.failed == counts.total == 5
        assert counts.completed == len(script.sent) <= 2
        bad = await told(client, batch.error_file_id)
        assert {one["error"]["code"] for one in bad.values()} == {"batch_cancelled"}


async def test_a_batch_whose_day_is_over_asks_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that waited for its turn till then began, and paid for, what nobody looked for any more."""
    monkeypatch.setattr(office, "_MOST_RUNNING", 0)
    async with playing(tmp_path) as (script, gateway, client):
        batch = await made(client, lines(line("a"), line("b")))
        async with gateway.services.database.begin() as connection:
            await connection.execute(update(BatchRow).values(expires=1.0))
        monkeypatch.setattr(office, "_MOST_RUNNING", 1)
        batch = await over(client, batch)
        assert (batch.status, batch.request_counts.failed, script.sent) == ("expired", 2, [])


async def test_the_same_key_makes_one_batch(tmp_path: Path) -> None:
    """A repeated request for a batch would charge for all its lines twice."""
    async with playing(tmp_path) as (_, _, client):
        file = await client.files.create(file=("in.jsonl", lines(line("a"))), purpose="batch")
        asked: Any = {"input_file_id": file.id, "endpoint": CHAT, "completion_window": "24h"}
        headers = {"idempotency-key": "once"}
        first, second = [await client.batches.create(**asked, extra_headers=headers) for _ in range(2)]
        assert first.id == second.id
        with pytest.raises(openai.ConflictError):
            await client.batches.create(**asked, metadata={"a": "b"}, extra_headers=headers)


async def test_lines_wait_for_money_that_others_hold(tmp_path: Path) -> None:
    """Nobody waits for a batch: a line must be neither refused nor cut short for what its neighbours give back soon."""
    async with playing(tmp_path) as (_, gateway, client):
        wanted = Budget(scope="team:acme", limit_nano=3_000_000)
        await gateway.services.ledger.set_budget(wanted, "test")
        # Each holds 2 USD / 1,000 and costs a thirtieth of it; the last names no length.
        said = [line(f"q{n}", f"question {n}", max_tokens=1_000) for n in range(6)] + [line("open", "and this?")]
        batch = await over(client, await made(client, lines(*said)))
        assert (batch.request_counts.completed, batch.request_counts.failed) == (7, 0)
        found = [(row["status"], row["finish"]) for row in await gateway.rows()]
        assert found == [(200, "stop")] * 7, "each is one request, however often it looked"


async def test_waiting_for_a_limit_is_no_error(tmp_path: Path) -> None:
    """Usage told of many failed requests for a batch in which none had failed."""
    async with playing(tmp_path) as (_, gateway, client):
        await limited(gateway, "team:acme", rpm=120)
        count = 63  # half of a minute's limit is theirs at once, and then two a second
        batch = await over(client, await made(client, lines(*[line(f"q{n}", f"question {n}") for n in range(count)])))
        assert batch.request_counts.completed == count
        assert [row["status"] for row in await gateway.rows()] == [200] * count


async def test_a_line_the_budget_can_never_pay_is_refused_at_once(tmp_path: Path) -> None:
    """Waiting for money that is spent would hold the batch up for its whole day."""
    async with playing(tmp_path) as (script, gateway, client):
        await gateway.services.ledger.set_budget(Budget(scope="team:acme", limit_nano=3_000_000), "test")
        batch = await over(client, await made(client, lines(line("a", max_tokens=5_000))))
        bad = await told(client, batch.error_file_id)
        assert bad["a"]["response"]["body"]["error"]["code"] == "insufficient_quota"
        assert not script.sent


async def test_a_batch_goes_on_when_the_database_is_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It stood in the name of a process that had given it up: nobody took it, and not even cancelling it ended it."""
    monkeypatch.setattr(office, "_AGAIN_SECONDS", 0.0)
    monkeypatch.setattr(office, "_LOOK_SECONDS", 0.01)
    away = {"is_there": 1, "give_back": 2}

    def failing(name: str, work: Any) -> Any:
        def tried(*given: Any) -> Any:
            if away[name]:
                away[name] -= 1
                raise OperationalError("", None, OSError("connection refused"))
            return work(*given)

        return tried

    monkeypatch.setattr(runner.Files, "is_there", failing("is_there", runner.Files.is_there))
    monkeypatch.setattr(store, "give_back", failing("give_back", store.give_back))
    async with playing(tmp_path) as (_, __, client):
        batch = await over(client, await made(client, lines(line("a"))))
        assert (batch.status, away) == ("completed", {"is_there": 0, "give_back": 0})


async def test_an_input_that_is_deleted_too_soon_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was left of it would be run as if it were all, or called empty, which it was not."""
    monkeypatch.setattr(office, "_MOST_RUNNING", 0)  # as with many batches before it
    async with playing(tmp_path) as (_, __, client):
        batch = await made(client, lines(line("a")))
        await client.files.delete(batch.input_file_id)
        monkeypatch.setattr(office, "_MOST_RUNNING", 1)
        batch = await over(client, batch)
        assert batch.status == "failed"
        assert [error.code for error in batch.errors.data] == ["input_file_deleted"]


async def test_a_batch_that_cannot_be_is_refused_by_the_name_of_its_fault(tmp_path: Path) -> None:
    """A misspelt field that is passed over is a batch made otherwise than asked for."""
    async with playing(tmp_path) as (_, gateway, client):
        file = await client.files.create(file=("in.jsonl", lines(line("a"))), purpose="batch")
        good = {"input_file_id": file.id, "endpoint": CHAT, "completion_window": "24h"}
        for more, status, param in (
            ({"output_expires": 1}, 400, "output_expires"),
            ({"input_file_id": "file-nope"}, 404, "input_file_id"),
            ({"input_file_id": "file-\0"}, 404, "input_file_id"),
        ):
            answer = await gateway.post("/v1/batches", {**good, **more})
            assert (answer.status, answer.json["error"]["param"]) == (status, param)


async def test_a_line_has_the_time_its_batch_was_given(tmp_path: Path) -> None:
    """The headers of a batch are those of its lines; this one was left out without a word."""
    async with playing(tmp_path) as (script, _, client):
        script.wait = asyncio.Event()
        batch = await over(client, await made(client, lines(line("a")), extra_headers={"x-nearhit-timeout": "300ms"}))
        bad = await told(client, batch.error_file_id)
        script.wait.set()
        assert bad["a"]["response"]["status_code"] == 504


async def test_files_come_back_as_they_were_sent(tmp_path: Path) -> None:
    """Also one that spans pieces; a list goes page by page; what is deleted is gone."""
    async with live(settings(tmp_path, kept={"max_file": 1 << 20})) as gateway, client_of(gateway) as client:
        content = bytes(range(256)) * 2_500
        file = await client.files.create(file=("a/b.bin", content), purpose="user_data")
        assert (file.bytes, file.filename, file.status) == (len(content), "a_b.bin", "processed")
        assert (await client.files.content(file.id)).content == content
        others = [await client.files.create(file=("x", b"x"), purpose="batch") for _ in range(3)]
        assert [one.id async for one in client.files.list(limit=2)] == [
            *[one.id for one in reversed(others)],
            file.id,
        ]
        assert [one.id async for one in client.files.list(purpose="user_data")] == [file.id]
        assert (await client.files.delete(file.id)).deleted
        with pytest.raises(openai.NotFoundError):
            await client.files.content(file.id)
        with pytest.raises(openai.APIStatusError) as large:
            await client.files.create(file=("x", b"x" * (1 << 20) + b"y"), purpose="batch")
        assert large.value.status_code == 413
        assert "The file is larger than" in large.value.message
        many = {f"p{number}": "x" for number in range(80)}
        with pytest.raises(openai.APIStatusError) as crowded:
            await client.files.create(file=("x", b"x"), purpose="batch", extra_body=many)
        assert (crowded.value.status_code, "64 parts" in crowded.value.message) == (413, True)
        for purpose, sent in (("nonsense", b"x"), ("batch", b"")):
            with pytest.raises(openai.BadRequestError):
                await client.files.create(file=("x", sent), purpose=purpose)  # pyright: ignore[reportArgumentType] - wrong on purpose
        told_json = await gateway.post("/v1/files", {"purpose": "batch"})
        assert told_json.status == 415
