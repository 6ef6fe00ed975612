"""Batches of Amazon Bedrock's: a file in S3, a job, a file in S3, at half the price; nothing lost and nothing twice."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest
from openai import AsyncOpenAI

from gateway.price_terms import Terms
from gateway.prices import PriceSetting
from tests.flow.test_batch_killed import content, finished, opened, served
from tests.flow.test_batches import client_of, line, lines, made, over, told
from tests.flow.test_own_batch_killed import LINES, charged, killed_with_a_batch_away, parts, settled
from tests.languages.bedrock import Batches, error
from tests.live import Live, live, settings
from tests.waiting import until
from tests.wire_upstream import Answer, Manner, WireUpstream, wire_upstream

ROLE = "arn:aws:iam::123456789012:role/batches"
KEY = "AKIAIOSFODNN7EXAMPLE:wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"


def lab(port: int, **more: Any) -> dict[str, Any]:
    base = f"http://127.0.0.1:{port}"
    places = {"base_url": base, "control_url": f"{base}/jobs", "s3_url": f"{base}/s3", "region": "eu-central-1"}
    batches = {"batch": "own", "batch_bucket": "files/of batches", "batch_role": ROLE, "batch_least": 1}
    return {"kind": "bedrock", "api_key": KEY, **places, **batches, **more}


@asynccontextmanager
async def playing(home: Path, service: Batches, **more: Any) -> AsyncGenerator[tuple[WireUpstream, Live, AsyncOpenAI]]:
    async with wire_upstream(service, Manner()) as up:
        chosen = settings(
            home,
            providers={"lab": lab(up.port, **more)},
            kept={"batch_look": 0.05},
            cache={"store": "memory", "mode": "off"},
        )
        async with live(chosen) as gateway, client_of(gateway) as client:
            terms = Terms(input_usd="10.00", output_usd="20.00", service={"batch": "50"})
            await gateway.services.prices.put("lab/m", terms, PriceSetting(actor="test", effective_from=0.0))
            yield up, gateway, client


def costs(service: Batches) -> int:
    """What the service bills at half of 10 and 20 USD a million tokens, in nano-USD."""
    return sum(usage["inputTokens"] * 5_000 + usage["outputTokens"] * 10_000 for usage in service.billed)


async def spent(gateway: Live) -> int:
    return sum(entry["amount_nano"] for entry in await gateway.entries() if entry["source"] != "void")


async def test_a_batch_goes_to_bedrock_and_costs_half(tmp_path: Path) -> None:
    """Each line is charged by Bedrock's own count at its batch price; one that failed there costs nothing."""
    service = Batches()
    async with playing(tmp_path, service) as (up, gateway, client):
        rows = [line(f"q{n}", f"question {n}", max_tokens=20) for n in range(12)]
        batch = await over(client, await made(client, lines(*rows, line("bad", "fail", max_tokens=20))))
        assert (batch.request_counts.completed, batch.request_counts.failed) == (12, 1)
        answers, failures = await told(client, batch.output_file_id), await told(client, batch.error_file_id)
        assert await gateway.services.ledger.verify() == []
        assert await spent(gateway) == costs(service) > 0
        await until(lambda: service.objects == {})
    assert answers["q11"]["response"]["body"]["object"] == "chat.completion"
    assert failures["bad"]["response"]["status_code"] == 400
    assert "bad request" in failures["bad"]["response"]["body"]["error"]["message"]
    assert not any("/converse" in heard.path for heard in up.heard), "none was asked for alone"
    job = next(iter(service.jobs.values()))
    assert (job["modelId"], job["roleArn"], job["modelInvocationType"]) == ("m", ROLE, "Converse")
    assert job["inputDataConfig"]["s3InputDataConfig"]["s3Uri"].startswith("s3://files/of batches/")


async def test_too_few_for_a_job_are_asked_one_by_one(tmp_path: Path) -> None:
    """Bedrock refuses a job of fewer requests than its quota says: all of them would fail for nothing."""
    service = Batches(refuses=4)
    async with playing(tmp_path, service, batch_least=4) as (up, gateway, client):
        await gateway.services.prices.set("lab/other", input_usd="1", output_usd="2", actor="test", effective_from=0.0)
        rows = [line(f"q{n}", f"question {n}", max_tokens=5) for n in range(4)]
        rows += [line(f"o{n}", f"question {n}", model="lab/other", max_tokens=5) for n in range(3)]
        batch = await over(client, await made(client, lines(*rows)))
        assert batch.request_counts.completed == 7
        assert [len(service.jobs), sum("/converse" in heard.path for heard in up.heard)] == [1, 3]
        refused = [line("a", "x", seed=1), *(line(f"q{n}", f"question {n}", max_tokens=5) for n in range(3))]
        batch = await over(client, await made(client, lines(*refused)))
        assert (batch.request_counts.completed, batch.request_counts.failed) == (3, 1)
        assert len(service.jobs) == 1, "a refused line leaves too few"
        assert await gateway.services.ledger.verify() == []


async def test_a_job_whose_answer_was_lost_is_looked_for_and_never_made_twice(tmp_path: Path) -> None:
    """A 504 may stand before a job that runs: its rows would be run, and billed, twice."""
    service = Batches()
    service.lose = True
    async with playing(tmp_path, service) as (_, gateway, client):
        batch = await over(client, await made(client, lines(line("a"), line("b"))))
        assert (batch.request_counts.completed, service.asked_jobs) == (2, 1)
        assert await spent(gateway) == costs(service)


async def test_a_job_that_is_there_already_is_looked_for(tmp_path: Path) -> None:
    """A list may lag behind: told as a refusal its rows, which are run and billed, would be charged to nobody."""

    class Lagging(Batches):
        lists = 0

        async def _job(self, asked: Any, rest: str) -> Any:
            if rest == "s" and (listed := self.lists) < 1:
                self.lists = listed + 1
                return Answer(body=msgspec.json.encode({"invocationJobSummaries": []}))
            return await super()._job(asked, rest)

        def _made(self, body: dict[str, Any]) -> Any:
            return error("400 Bad Request", "ConflictException", "exists") if self.jobs else super()._made(body)

    service = Lagging()
    service.lose = True
    async with playing(tmp_path, service) as (_, gateway, client):
        batch = await over(client, await made(client, lines(line("a"), line("b"))))
        assert (batch.request_counts.completed, service.asked_jobs) == (2, 1)
        assert await spent(gateway) == costs(service) > 0


async def test_cancelling_stops_the_job(tmp_path: Path) -> None:
    """What nobody wants any more must not be run; a job that has written nothing has nothing to tell."""
    service = Batches()
    service.running = True
    async with playing(tmp_path, service) as (_, gateway, client):
        batch = await made(client, lines(line("a"), line("b")))
        await until(lambda: service.asked_jobs == 1)
        await client.batches.cancel(batch.id)
        batch = await over(client, batch)
        assert batch.status == "cancelled"
        assert [job["status"] for job in service.jobs.values()] == ["Stopped"]
        assert {one["error"]["code"] for one in (await told(client, batch.error_file_id)).values()} == {"batch_expired"}
        assert await spent(gateway) == 0
        await until(lambda: service.objects == {})


async def test_words_of_s3_are_told(tmp_path: Path) -> None:
    """It refuses in XML; an operator has to read which permission is missing."""

    class Closed(Batches):
        def _object(self, asked: Any, key: str) -> Any:
            asked.headers["authorization"] = ""
            return super()._object(asked, key)

    async with playing(tmp_path, Closed()) as (_, __, client):
        batch = await over(client, await made(client, lines(line("a"))))
        failed = await told(client, batch.error_file_id)
        assert "AccessDenied" in failed["a"]["response"]["body"]["error"]["message"]


async def test_a_refusal_is_told_where_nothing_may_be_deleted(tmp_path: Path) -> None:
    """A key that may write and not delete made every refused job look as if S3 had refused it."""

    class Keeping(Batches):
        def _object(self, asked: Any, key: str) -> Any:
            if asked.line.startswith("DELETE "):
                asked.headers["authorization"] = ""
            return super()._object(asked, key)

    async with playing(tmp_path, Keeping(refuses=9)) as (_, gateway, client):
        batch = await over(client, await made(client, lines(line("a"))))
        failed = await told(client, batch.error_file_id)
        assert "at least 9 records" in failed["a"]["response"]["body"]["error"]["message"]
        assert await spent(gateway) == 0


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"api_key": "ABSKQmVkcm9ja0FQSUtleS1x"}, "KEY-ID:SECRET"),
        ({"batch_bucket": ""}, "batch_bucket"),
        ({"batch_bucket": "Up_per"}, "batch_bucket"),
        ({"batch_role": "batches"}, "batch_role"),
        ({"s3_url": "http://files.example.com"}, "unencrypted"),
        ({"control_url": "http://jobs.example.com"}, "unencrypted"),
    ],
)
async def test_what_cannot_do_it_is_said_at_the_start(tmp_path: Path, given: dict[str, Any], words: str) -> None:
    """Otherwise batches would fail a day later, or cross the network for all to read."""
    with pytest.raises(ValueError, match=words):
        async with live(settings(tmp_path, providers={"lab": lab(9, **given)})):
            pass


@pytest.mark.proof
async def test_a_batch_at_bedrock_survives_kill_9(tmp_path: Path) -> None:
    """The job's ARN stands in the database before anything else: the next process goes on with it."""
    (tmp_path / "run").mkdir()
    service = Batches()
    service.running = True
    async with wire_upstream(service, Manner()) as up, aiohttp.ClientSession() as client:
        variables = {
            "NEARHIT_PROVIDERS": msgspec.json.encode({"lab": lab(up.port)}).decode(),
            "NEARHIT_KEPT__BATCH_LOOK": "0.1",
        }
        key, batch_id = await killed_with_a_batch_away(tmp_path, variables, client)
        service.running = False
        with served(tmp_path, "", variables) as (process, port):
            door = await opened(process, port, client)
            batch = await finished(door, key, batch_id)
            good = await content(door, key, batch["output_file_id"])
            await until(lambda: parts(tmp_path) == [])
            await settled(door, tmp_path)
    assert (batch["status"], len(good), batch["error_file_id"], service.asked_jobs) == ("completed", LINES, None, 1)
    assert sum(amount for _, amount in charged(tmp_path)) == costs(service), "what was held by the dead is taken back"
