"""Upstreams that refuse, hang, break or lie: what the next candidate gets, what the client sees, what is charged."""

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest

from gateway.ledger import Hold
from policies.budget import Budget
from policies.rate import Rate
from tests.flow.dialect_upstream import scripted
from tests.live import Live, live, settings

GOOD = {"kind": "scripted", "tokens": 5}


def _two(tmp_path: Path, first: dict[str, Any], **values: Any) -> Any:
    """A route whose first candidate misbehaves and whose second is sound."""
    providers = {"up": GOOD, "bad": first}
    models = {"smart": {"route": ["bad/scripted", "up/scripted"]}}
    return settings(tmp_path, providers=providers, models=models, **values)


REFUSED = {"kind": "openai", "base_url": "http://127.0.0.1:9/v1", "api_key": "none"}


async def _priced(gateway: Live) -> None:
    await gateway.services.prices.set(
        "bad/scripted", input_usd="1.00", output_usd="2.00", actor="test", effective_from=0.0
    )


async def test_a_refused_connection_fails_over_and_costs_nothing(tmp_path: Path) -> None:
    """The second candidate answers; the first attempt has its own line and no charge."""
    async with live(_two(tmp_path, REFUSED)) as gateway:
        await _priced(gateway)
        told = await gateway.chat(model="smart")
        assert told.status == 200
        assert told.headers["x-nearhit-provider"] == "up"
        assert told.headers["x-nearhit-attempts"] == "2"
        charged = [entry["amount_nano"] for entry in await gateway.entries()]
        assert max(charged) > 0
        assert sum(amount > 0 for amount in charged) == 1


async def test_a_failing_candidate_is_left_for_the_next(tmp_path: Path) -> None:
    """A 500 or 429 before the first byte must not reach the client while another candidate can answer."""
    async with live(_two(tmp_path, {"kind": "scripted", "fail_rate": 1.0})) as gateway:
        for n in range(4):
            told = await gateway.chat(model="smart", messages=[{"role": "user", "content": f"question {n}"}])
            assert told.status == 200
            assert told.headers["x-nearhit-provider"] == "up"


async def test_a_cut_stream_is_told_in_band_and_never_kept(tmp_path: Path) -> None:
    """After the first byte there is no failover; the client must see an error, no [DONE], and nobody a half answer."""
    async with live(settings(tmp_path, upstream={"cut_rate": 1.0, "tokens": 30})) as gateway:
        told = await gateway.chat(stream=True)
        assert told.status == 200
        assert told.events[-1] != "[DONE]"
        assert told.events[-1]["error"]["code"] == "upstream_disconnected"
        assert all(event.get("choices", [{}])[0].get("finish_reason") is None for event in told.events[:-1])
        (entry,) = await gateway.entries()
        assert entry["amount_nano"] > 0
        assert (await gateway.chat(headers={"cache-control": "only-if-cached"})).status == 504


async def test_when_nobody_answers_the_client_gets_a_502_in_openais_shape(tmp_path: Path) -> None:
    """All candidates down: an honest error, quickly, and no charge."""
    providers = {"up": GOOD, "bad": REFUSED}
    chosen = settings(tmp_path, providers=providers, models={"smart": {"route": ["bad/scripted"]}})
    async with live(chosen) as gateway:
        await _priced(gateway)
        told = await gateway.chat(model="smart")
        assert told.status == 502
        assert told.json["error"]["code"] == "upstream_error"
        assert all(entry["amount_nano"] == 0 for entry in await gateway.entries())


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages"])
async def test_a_wrong_credential_of_ours_is_not_told_as_the_clients(tmp_path: Path, path: str) -> None:
    """A client that reads 401 throws its own key away, which was right, and the provider's words quote ours."""
    words = {"message": "Incorrect API key provided: sk-proj-********wxyz.", "code": "invalid_api_key"}
    async with scripted() as (script, upstream):
        script.refuses = ("401 Unauthorized", words)
        bad = {"kind": "openai", "base_url": upstream.url, "api_key": "none"}
        async with live(settings(tmp_path, providers={"up": GOOD, "bad": bad})) as gateway:
            await _priced(gateway)
            asked = {"model": "bad/scripted", "max_tokens": 5, "messages": [{"role": "user", "content": "Who?"}]}
            told = await gateway.post(path, asked)
            assert told.status == 502, told.raw
            assert b"wxyz" not in told.raw
            assert told.json["error"]["code"] == "upstream_credential_refused"
            assert told.headers["x-should-retry"] == "false"
            assert sum(entry["amount_nano"] for entry in await gateway.entries()) == 0


async def test_an_upstream_that_hangs_is_given_up_and_charged_as_in_doubt(tmp_path: Path) -> None:
    """Nobody knows what a silent upstream billed: the reservation is posted, labelled as an upper bound."""
    upstream = {"ttft_ms": 5_000, "first_chunk_timeout": 0.2}
    async with live(settings(tmp_path, upstream=upstream)) as gateway:
        told = await gateway.chat(headers={"x-nearhit-timeout": "0.3"})
        assert told.status == 504
        assert told.json["error"]["code"] == "upstream_timeout"
        assert told.json["error"]["message"] == "The 0.3 s that this request may take were over before up had answered."
        entries = await gateway.entries()
        assert {entry["source"] for entry in entries} == {"upper_bound"}
        (row,) = await gateway.rows()
        assert row["cost_nano"] == sum(entry["amount_nano"] for entry in entries) > 0
        assert row["cost_status"] == "estimated"


async def test_a_whole_answer_is_waited_for_as_long_as_its_provider_says(tmp_path: Path) -> None:
    """Without a stream a place that hangs took all of a request's time, and its circuit never heard of it."""
    hung = {"kind": "scripted", "ttft_ms": 60_000, "answer_timeout": 0.2, "first_chunk_timeout": 60.0}
    given = settings(
        tmp_path, providers={"hung": hung, "up": {"kind": "scripted"}}, models={"safe": {"route": ["hung/m", "up/m"]}}
    )
    async with live(given) as gateway:
        told = await gateway.chat(model="safe")
        assert (told.status, told.headers["x-nearhit-attempts"]) == (200, "2"), told.raw
        entries = await gateway.entries()
        assert [entry["source"] for entry in entries] == ["upper_bound", "provider"]
        assert all(entry["amount_nano"] > 0 for entry in entries)
        assert gateway.services.deployments is not None
        found = {place.target: place.failed_in_a_row for place in gateway.services.deployments.told()}
        assert found == {"hung/m": 1, "up/m": 0}


async def test_an_upstream_that_failed_slowly_is_not_told_as_our_own_time(tmp_path: Path) -> None:
    """Who sees seconds of overhead looks for the fault in the gateway, while a server on the route hangs."""
    hung = {"kind": "scripted", "ttft_ms": 60_000, "first_chunk_timeout": 0.4}
    async with live(_two(tmp_path, hung)) as gateway:
        await _priced(gateway)
        told = await gateway.chat(model="smart", stream=True)
        assert (told.status, told.headers["x-nearhit-attempts"]) == (200, "2"), told.raw
        spent = dict(part.strip().split(";dur=") for part in told.headers["server-timing"].split(","))
        assert float(spent["upstream"]) >= 400 > float(spent["overhead"])
        (row,) = await gateway.rows()
        assert row["total_ms"] >= 400 > row["overhead_ms"]


async def test_the_pause_a_limited_upstream_asks_for_is_not_told_as_our_own_time(tmp_path: Path) -> None:
    """The alert on the gateway's own time went off, and sent people to the journal's disk, when a provider said 429."""
    limited = {"kind": "scripted", "fail_rate": 1.0, "seed": 1}  # its first two calls: 429, with a second to wait
    given = settings(tmp_path, providers={"bad": limited}, models={"smart": {"route": ["bad/scripted"], "free": True}})
    async with live(given) as gateway:
        told = await gateway.chat(model="smart")
        assert told.status in (429, 502), told.raw
        (row,) = await gateway.rows()
        assert row["attempts"] > 1
        assert row["total_ms"] >= 1_000 > row["overhead_ms"]
        telemetry = gateway.services.telemetry
        assert telemetry is not None
        telemetry.close()
        shown = telemetry.exposition().decode()
        (seconds,) = re.findall(r"^nearhit_overhead_seconds_sum (\S+)$", shown, re.MULTILINE)
        assert float(seconds) < 1.0


async def test_the_cost_at_the_end_of_a_stream_is_what_was_posted(tmp_path: Path) -> None:
    """A first attempt that was paid in vain is a part of what the request cost, in whatever form that is told."""
    slow = {"kind": "scripted", "ttft_ms": 60_000, "first_chunk_timeout": 0.2}
    given = settings(
        tmp_path, providers={"slow": slow, "up": {"kind": "scripted"}}, models={"safe": {"route": ["slow/m", "up/m"]}}
    )
    async with live(given) as gateway:
        told = await gateway.chat(model="safe", stream=True, stream_options={"include_usage": True})
        assert told.status == 200, told.raw
        (cost,) = [event["usage"]["cost"] for event in told.events[:-1] if event["usage"]]
        entries = await gateway.entries()
        assert [entry["source"] for entry in entries] == ["upper_bound", "provider"]
        assert round(cost * 1e9) == sum(entry["amount_nano"] for entry in entries)


async def test_what_is_too_late_to_be_sent_is_not_sent_and_costs_nothing(tmp_path: Path) -> None:
    """It was sent with a millisecond left, told as the upstream's fault ("sent nothing within 0.001 s"), and paid."""
    async with live(settings(tmp_path)) as gateway:
        ledger = gateway.services.ledger
        promised = ledger._promised

        async def slow(hold: Hold) -> None:
            await asyncio.sleep(0.3)
            await promised(hold)

        ledger._promised = slow
        told = await gateway.chat(headers={"x-nearhit-timeout": "0.2"})
        assert (told.status, told.json["error"]["code"]) == (504, "deadline_exceeded")
        assert "0.2 s" in told.json["error"]["message"]
        assert {(entry["source"], entry["amount_nano"]) for entry in await gateway.entries()} == {("void", 0)}
        (row,) = await gateway.rows()
        assert 0 < row["overhead_ms"] <= row["total_ms"], "what was never sent took the upstream no time"


@pytest.mark.parametrize("strategy", ["ordered", "cheapest"])
async def test_the_strategy_decides_who_is_asked_first(tmp_path: Path, strategy: str) -> None:
    """`cheapest` must look at prices, `ordered` at the order written down."""
    providers = {"up": GOOD, "bad": GOOD}
    models = {"smart": {"route": ["bad/scripted", "up/scripted"], "strategy": strategy}}
    async with live(settings(tmp_path, providers=providers, models=models)) as gateway:
        await gateway.services.prices.set(
            "bad/scripted", input_usd="9.00", output_usd="9.00", actor="test", effective_from=0.0
        )
        told = await gateway.chat(model="smart")
        assert told.headers["x-nearhit-provider"] == ("bad" if strategy == "ordered" else "up")


async def test_a_dry_run_says_where_it_would_go_and_sends_nothing(tmp_path: Path) -> None:
    """Finance and developers ask what a request could cost before they pay for it."""
    async with live(settings(tmp_path)) as gateway:
        told = await gateway.chat(headers={"x-nearhit-dry-run": "1"})
        assert told.status == 200
        assert told.json["route"][0]["target"] == "up/scripted"
        assert float(told.json["route"][0]["worst_case_usd"]) > 0
        assert told.json["would_refuse"] is None
        assert await gateway.entries() == []
        assert await gateway.rows() == []


async def test_a_dry_run_says_which_budget_or_limit_would_refuse(tmp_path: Path) -> None:
    """Whoever plans a large job asks first: the rehearsal must say the same as the performance, and take nothing."""
    async with live(settings(tmp_path)) as gateway:

        async def rehearsed(**body: Any) -> Any:
            told = await gateway.chat(headers={"x-nearhit-dry-run": "1"}, **body)
            assert told.status == 200, told.raw
            return told.json

        ledger, rates = gateway.services.ledger, gateway.services.rates
        assert rates is not None
        await ledger.set_budget(Budget(scope="team:acme", limit_nano=300_000), "test")
        await ledger.set_budget(Budget(scope="project:acme/app", limit_nano=10, mode="soft"), "test")
        told = await rehearsed(max_tokens=1_000)
        refused = {"code": "insufficient_quota", "scope": "team:acme", "target": "up/scripted"}
        assert told["would_refuse"] == refused
        budgets = {one["scope"]: one for one in told["route"][0]["budgets"]}
        assert (budgets["team:acme"]["headroom_usd"], budgets["team:acme"]["enough"]) == ("0.0003", False)
        assert budgets["project:acme/app"]["enough"]
        assert (await gateway.chat(max_tokens=1_000)).json["error"]["code"] == refused["code"]
        shorter = await rehearsed()
        assert (shorter["would_refuse"], shorter["route"][0]["verdict"]) == (None, "shorter")
        assert (await gateway.chat()).headers["x-nearhit-max-tokens"] == str(shorter["route"][0]["max_tokens"])
        await ledger.set_budget(Budget(scope="team:acme", limit_nano=10**9), "test")
        await rates.set(Rate(scope="team:acme", rpm=1), "test")
        assert (await rehearsed(max_tokens=1))["would_refuse"] is None
        assert (await gateway.chat(max_tokens=1)).status == 200
        told = await rehearsed(max_tokens=1)
        assert (told["would_refuse"]["code"], told["would_refuse"]["scope"]) == ("rate_limit_exceeded", "team:acme")
        assert (told["limits"][0]["left"], told["limits"][0]["needs"]) == (0, 1.0)
        assert (await gateway.chat(max_tokens=1)).status == 429


async def test_a_request_that_could_cost_more_than_the_client_allows_is_not_sent(tmp_path: Path) -> None:
    """`x-nearhit-max-cost-usd` is a promise about the worst case, so it is kept before anything is sent."""
    async with live(settings(tmp_path)) as gateway:
        told = await gateway.chat(headers={"x-nearhit-max-cost-usd": "0.000001"})
        assert told.status == 400
        assert told.json["error"]["code"] == "max_cost_exceeded"
        assert await gateway.entries() == []


async def test_concurrent_requests_cannot_overspend_a_hard_budget(tmp_path: Path) -> None:
    """The hold is the worst case, so the limit holds for every interleaving: sixty at once, spend never above it."""
    async with live(settings(tmp_path, upstream={"ttft_ms": 50, "tokens": 5})) as gateway:
        from policies.budget import Budget

        await gateway.services.ledger.set_budget(Budget(scope="team:acme", limit_nano=2_000_000, window="day"), "test")
        asked = [
            gateway.chat(messages=[{"role": "user", "content": f"question number {n}"}], max_tokens=100)
            for n in range(60)
        ]
        statuses = [told.status for told in await asyncio.gather(*asked)]
        assert set(statuses) <= {200, 429}
        assert 200 in statuses
        assert 429 in statuses
        spent = sum(entry["amount_nano"] for entry in await gateway.entries())
        assert 0 < spent <= 2_000_000
        assert await gateway.services.ledger.verify() == []
