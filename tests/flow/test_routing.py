"""Every strategy from nearhit.yaml to the wire: scripted upstreams on sockets, who is asked, what is told of it."""

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gateway import dispatch
from gateway.ledger import Hold
from gateway.scripted_calls import Options
from policies.budget import Budget
from tests.scripted import Stage, stage
from tests.wire_upstream import Answer, Manner, Request, wire_upstream

QUICK = Options(tokens=4)


async def _spread(found: Stage, requests: int, **more: Any) -> dict[str, int]:
    for number in range(requests):
        await found.ask(number, **more)
    return found.calls()


async def test_weights_share_the_requests(tmp_path: Path) -> None:
    """`weighted` is how a new deployment gets a part of the traffic."""
    smart = {"strategy": "weighted", "route": [{"to": "a/m", "weight": 9}, {"to": "b/m", "weight": 1}]}
    async with stage(tmp_path, {"a": QUICK, "b": QUICK}, smart) as found:
        calls = await _spread(found, 40)
        assert calls["a"] + calls["b"] == 40
        assert calls["a"] > 2 * calls["b"]


async def test_the_cheapest_is_asked_and_the_explanation_tells_both_costs(tmp_path: Path) -> None:
    """An operator must be able to see why a request went where it went."""
    prices = {"a": ("9.00", "9.00")}
    async with stage(tmp_path, {"a": QUICK, "b": QUICK}, {"strategy": "cheapest"}, prices=prices) as found:
        told = await found.ask()
        assert told.headers["x-nearhit-provider"] == "b"
        routing = (await found.explained(told.headers["x-request-id"]))["why"]["routing"]
        assert routing["unit"] == "USD"
        assert [row["target"] for row in routing["candidates"]] == ["b/m", "a/m"]
        assert set(routing["candidates"][0]["parts"]) == {"prompt", "output"}
        assert routing["candidates"][0]["cost"] < routing["candidates"][1]["cost"]


@pytest.mark.parametrize("strategy", ["ordered", "fastest"])
async def test_a_place_that_is_too_dear_for_the_client_is_passed_over(tmp_path: Path, strategy: str) -> None:
    """The request was refused at a dear first place, although the client's money was enough for the next one."""
    prices = {"a": ("900", "900"), "c": ("500", "500")}
    servers = {"a": QUICK, "b": QUICK, "c": QUICK}
    async with stage(tmp_path, servers, {"strategy": strategy}, prices=prices) as found:
        little = {"x-nearhit-max-cost-usd": "0.001"}
        dry = await found.ask(max_tokens=100, headers={**little, "x-nearhit-dry-run": "1"})
        assert dry.json["would_refuse"] is None
        told = await found.ask(max_tokens=100, headers=little)
        assert (told.status, told.headers["x-nearhit-provider"], told.headers["x-nearhit-attempts"]) == (200, "b", "1")
        least = {"x-nearhit-max-cost-usd": "0.00000001"}
        refused = await found.gateway.chat(model="smart", max_tokens=100, headers=least)
        assert (refused.status, refused.json["error"]["code"]) == (400, "max_cost_exceeded")
        dry = await found.ask(1, max_tokens=100, headers={**least, "x-nearhit-dry-run": "1"})
        assert dry.json["would_refuse"]["code"] == "max_cost_exceeded"
        assert found.calls() == {"a": 0, "b": 1, "c": 0}
        assert [entry["provider"] for entry in await found.gateway.entries()] == ["b"]


async def test_a_budget_refuses_also_behind_a_place_that_was_too_dear(tmp_path: Path) -> None:
    """What was not asked has not failed: the budget is the request's, as the dry run says."""
    async with stage(tmp_path, {"a": QUICK, "b": QUICK, "c": QUICK}, {}, prices={"a": ("900", "900")}) as found:
        await found.gateway.services.ledger.set_budget(Budget(scope="model:b/m", limit_nano=1), "test")
        little = {"x-nearhit-max-cost-usd": "0.001"}
        dry = await found.ask(max_tokens=100, headers={**little, "x-nearhit-dry-run": "1"})
        told = await found.gateway.chat(model="smart", max_tokens=100, headers=little)
        assert (told.status, told.json["error"]["code"]) == (429, "insufficient_quota")
        assert dry.json["would_refuse"]["code"] == "insufficient_quota"


async def test_what_routing_saved_is_in_the_row(tmp_path: Path) -> None:
    """Finance reads it as the same tokens at the first place of the route, less what was paid."""
    prices = {"a": ("9.00", "9.00")}
    async with stage(tmp_path, {"a": QUICK, "b": QUICK}, {"strategy": "cheapest"}, prices=prices) as found:
        await found.ask()
        (row,) = await found.gateway.rows()
        dear = 9_000 * (row["prompt"] + row["completion"])
        assert row["cost_nano"] == 1_000 * row["prompt"] + 2_000 * row["completion"]
        assert row["routed_nano"] == dear - row["cost_nano"]
        await found.ask(1, model="a/m")
        assert [row["routed_nano"] for row in await found.gateway.rows()].count(0) == 1  # nothing was to choose


@pytest.mark.parametrize("strategy", ["fastest", "slo"])
async def test_the_quicker_one_is_found_by_measuring(tmp_path: Path, strategy: str) -> None:
    """Nobody writes down how fast an upstream is; it is measured, and each is measured at least once."""
    slow = Options(tokens=4, ttft_ms=1_500)
    smart = {"strategy": strategy, "slo": {"ttft": "700ms"}}
    async with stage(tmp_path, {"a": slow, "b": QUICK}, smart) as found:
        calls = await _spread(found, 8)
        assert calls["a"] >= 1
        assert calls["b"] >= 5


async def test_the_least_busy_is_asked(tmp_path: Path) -> None:
    """Requests at once spread over replicas instead of queueing at the first."""
    async with stage(
        tmp_path, {"a": Options(ttft_ms=1_000), "b": Options(ttft_ms=1_000)}, {"strategy": "least_busy"}
    ) as found:
        await asyncio.gather(*(found.ask(number) for number in range(10)))
        assert found.calls() == {"a": 5, "b": 5}


async def test_a_conversation_returns_to_the_replica_that_holds_its_beginning(tmp_path: Path) -> None:
    """What a replica has in its cache need not be computed again."""
    async with stage(tmp_path, {"a": QUICK, "b": QUICK}, {"strategy": "prefix_affine"}) as found:
        long = "a shared beginning of a conversation " * 60

        async def say(text: str) -> str:
            told = await found.gateway.chat(model="smart", messages=[{"role": "user", "content": text}])
            return told.headers["x-nearhit-provider"]

        home = await say(long)
        assert {await say(long + str(number)) for number in range(3)} == {home}
        dry = await found.gateway.chat(
            model="smart", messages=[{"role": "user", "content": long + "!"}], headers={"x-nearhit-dry-run": "1"}
        )
        first, second = dry.json["routing"]["candidates"]
        assert first["target"] == f"{home}/m"
        assert first["parts"]["prefill"] < second["parts"]["prefill"]


async def test_sessions_stay_where_they_are(tmp_path: Path) -> None:
    """A conversation that moves loses its upstream's prompt cache."""
    smart = {"strategy": "weighted", "sticky": "session"}
    async with stage(tmp_path, {"a": QUICK, "b": QUICK}, smart) as found:
        homes: set[str] = set()
        for session in range(8):
            seen: set[str] = set()
            for number in range(3):
                told = await found.ask(number, headers={"x-nearhit-session": f"s{session}"})
                seen.add(told.headers["x-nearhit-provider"])
            assert len(seen) == 1
            homes |= seen
        assert homes == {"a", "b"}


async def test_a_canary_gets_its_share_and_the_rest_stands_behind_it(tmp_path: Path) -> None:
    """A new model that fails must not be felt by those it was tried on."""
    broken = Options(fail_rate=1.0, seed=3)
    smart = {"route": ["a/m"], "canary": {"to": "b/m", "share": 0.5}}
    async with stage(tmp_path, {"a": QUICK, "b": broken}, smart) as found:
        for number in range(12):
            told = await found.ask(number)
            assert told.headers["x-nearhit-provider"] == "a"
        assert 1 <= found.calls()["b"] <= 11


async def test_places_that_cannot_do_it_are_left_out(tmp_path: Path) -> None:
    """A request with tools, or longer than a window, goes where it can be answered, and the reason is told."""
    route = [{"to": "a/m", "lacks": ["tools"]}, {"to": "b/m", "context": 400}, "c/m"]
    async with stage(tmp_path, {"a": QUICK, "b": QUICK, "c": QUICK}, {"route": route}) as found:
        tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}
        assert (await found.ask(0)).headers["x-nearhit-provider"] == "a"
        assert (await found.ask(1, tools=[tool], max_tokens=20)).headers["x-nearhit-provider"] == "b"
        told = await found.ask(2, tools=[tool], max_tokens=900)
        assert told.headers["x-nearhit-provider"] == "c"
        rows = (await found.explained(told.headers["x-request-id"]))["why"]["routing"]["candidates"]
        assert {row["target"]: row.get("left_out") for row in rows} == {
            "c/m": None,
            "a/m": "lacks tools",
            "b/m": "context",
        }


@pytest.mark.parametrize(
    ("asks", "field"),
    [({"n": 2}, "n"), ({"logprobs": True}, "logprobs"), ({"logit_bias": {"5": 1}}, "logit_bias")],
)
async def test_a_place_whose_provider_would_refuse_is_left_out(
    tmp_path: Path, asks: dict[str, Any], field: str
) -> None:
    """What a provider cannot do it knows itself: nobody should have to write it down again to be routed by it."""
    groq = {"kind": "groq", "base_url": "http://127.0.0.1:9/v1", "api_key": "none"}
    async with stage(tmp_path, {"a": QUICK, "b": QUICK, "c": QUICK}, {}, more={"a": groq, "c": groq}) as found:
        told = await found.ask(**asks)
        assert (told.headers["x-nearhit-provider"], told.headers["x-nearhit-attempts"]) == ("b", "1")
        rows = (await found.explained(told.headers["x-request-id"]))["why"]["routing"]["candidates"]
        assert {row["target"]: row.get("left_out") for row in rows} == {
            "b/m": None,
            "a/m": f"refuses {field}",
            "c/m": f"refuses {field}",
        }


async def test_embeddings_go_where_there_are_any(tmp_path: Path) -> None:
    """An operation is a capability as well: Groq has no embeddings."""
    groq = {"kind": "groq", "base_url": "http://127.0.0.1:9/v1", "api_key": "none"}
    async with stage(tmp_path, {"a": QUICK, "b": QUICK}, {}, more={"a": groq}) as found:
        told = await found.gateway.post("/v1/embeddings", {"model": "smart", "input": "x"})
        assert (told.status, told.headers["x-nearhit-provider"]) == (200, "b")


async def test_what_no_place_can_do_is_refused_by_name(tmp_path: Path) -> None:
    """Which field is to blame is what a client can act upon; a place that can, but is down, is no reason for it."""
    groq = {"kind": "groq", "base_url": "http://127.0.0.1:9/v1", "api_key": "none"}
    async with stage(tmp_path, {"a": QUICK, "b": QUICK}, {}, more={"a": groq, "b": groq}) as found:
        told = await found.gateway.chat(model="smart", n=2)
        assert (told.status, told.json["error"]["param"]) == (400, "n")
        assert not [row for row in await found.gateway.entries() if row["amount_nano"]]
    async with stage(
        tmp_path / "down", {"a": QUICK, "b": Options(fail_rate=1.0, seed=3)}, {}, more={"a": groq}
    ) as found:
        statuses = {(await found.gateway.chat(model="smart", n=2)).status for _ in range(8)}
        assert min(statuses) >= 500


async def test_what_a_place_finds_out_only_while_translating_goes_to_the_next(tmp_path: Path) -> None:
    """Bedrock takes pictures as data and not by address: no quick look tells, and another place can do it."""
    bedrock = {"a": {"kind": "bedrock", "base_url": "http://127.0.0.1:9", "api_key": "none"}}
    picture = {"type": "image_url", "image_url": {"url": "https://example.org/a.png"}}
    messages = [{"role": "user", "content": [{"type": "text", "text": "What is it?"}, picture]}]
    async with stage(tmp_path, {"a": QUICK, "b": QUICK}, {}, more=bedrock) as found:
        told = await found.gateway.chat(model="smart", messages=messages)
        assert (told.status, told.headers["x-nearhit-provider"]) == (200, "b")
        assert [entry["provider"] for entry in await found.gateway.entries() if entry["amount_nano"]] == ["b"]


async def test_a_circuit_opens_is_told_and_closes_again(tmp_path: Path) -> None:
    """An upstream that is down must cost nothing per request, and must be found again when it is back."""
    async with stage(tmp_path, {"a": Options(fail_rate=1.0, seed=3)}, {}) as found:
        statuses = [(await found.gateway.chat(model="smart")).status for _ in range(30)]
        assert set(statuses[-10:]) == {503}
        calls = found.calls()["a"]
        assert calls <= 1.2 * 30
        told = await found.gateway.chat(model="smart")
        assert told.json["error"]["code"] == "upstream_unavailable"
        assert int(told.headers["retry-after"]) >= 1
        routing = (await found.explained(told.headers["x-request-id"]))["why"]["routing"]
        assert routing["candidates"] == [{"target": "a/m", "left_out": "circuit open"}]
        async with found.gateway.client.get(found.gateway.url + "/health/upstreams") as response:
            (row,) = (await response.json())["deployments"]
        assert row["circuit"] == "open"
        found.servers["a"].books.options = QUICK
        await asyncio.sleep(1.1)
        assert (await found.ask(99)).status == 200
        assert (await found.ask(100)).status == 200


async def test_nobody_waits_for_a_place_that_will_still_be_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pause that ends before the place may be asked again cost the client its time, and others a retry."""
    monkeypatch.setattr(dispatch, "pause", lambda *_, **__: 20.0)
    language = Keyed(set())  # tells everybody to wait half a minute
    async with wire_upstream(language, Manner()) as up:
        shut = {"kind": "openai", "base_url": f"http://127.0.0.1:{up.port}/v1", "api_key": "none"}
        async with stage(tmp_path, {"a": QUICK}, {}, more={"a": shut}) as found, asyncio.timeout(15):
            told = await found.gateway.chat(model="smart", headers={"x-nearhit-timeout": "100"})
            assert (told.status, len(language.heard)) == (429, 1)


async def test_total_failure_is_not_multiplied(tmp_path: Path) -> None:
    """Three upstreams, all down: at most 1.2 calls for every request, or the outage becomes a storm."""
    down = Options(fail_rate=1.0, seed=3)
    async with stage(tmp_path, {"a": down, "b": down, "c": down}, {}) as found:
        for _ in range(40):
            assert (await found.gateway.chat(model="smart")).status >= 429
        assert sum(found.calls().values()) <= 1.2 * 40


async def test_a_hedge_answers_and_both_attempts_are_on_the_ledger(tmp_path: Path) -> None:
    """The slow attempt is given up; what it may have cost is posted, not forgotten."""
    upstreams = {"a": Options(ttft_ms=3_000, tokens=4), "b": QUICK}
    async with stage(tmp_path, upstreams, {"hedge": "50ms"}) as found:
        told = await found.ask()
        assert told.headers["x-nearhit-provider"] == "b"
        entries = await found.gateway.entries()
        assert sorted(entry["provider"] for entry in entries) == ["a", "b"]
        assert all(entry["amount_nano"] > 0 for entry in entries)
        assert found.counters("a").closed_early == 1
        attempts = (await found.explained(told.headers["x-request-id"]))["attempts"]
        assert [attempt["why"] for attempt in attempts] == ["", "hedge"]


@pytest.mark.parametrize(("logprob", "answered"), [(-0.1, "a"), (-2.0, "b")])
@pytest.mark.parametrize("stream", [False, True])
async def test_a_cascade_escalates_where_the_small_one_is_not_sure(
    tmp_path: Path, logprob: float, answered: str, stream: bool
) -> None:
    """The small model's answer is served when its mean log probability is high enough, else the next one's."""
    upstreams = {"a": Options(tokens=4, logprob=logprob), "b": QUICK}
    async with stage(tmp_path, upstreams, {"strategy": "cascade", "min_logprob": -0.5}) as found:
        told = await found.ask(stream=stream)
        entries = await found.gateway.entries()
        assert [entry["provider"] for entry in entries] == (["a"] if answered == "a" else ["a", "b"])
        if not stream:
            assert told.headers["x-nearhit-provider"] == answered
            assert told.json["choices"][0]["logprobs"] is None
        else:
            assert told.events[-1] == "[DONE]"
        rungs = (await found.explained(told.headers["x-request-id"]))["why"]["cascade"]["rungs"]
        assert rungs[0]["mean_logprob"] == logprob


@pytest.mark.parametrize("stream", [False, True])
async def test_where_the_last_rung_fails_an_unsure_answer_is_better_than_none(tmp_path: Path, stream: bool) -> None:
    """It is paid for and in hand. It says what it is, in a header and in the explanation, and nobody gets it again."""
    upstreams = {"a": Options(tokens=4, logprob=-2.0), "b": Options(fail_rate=1.0)}
    smart, cache = {"strategy": "cascade", "min_logprob": -0.5}, {"store": "memory", "mode": "exact"}
    async with stage(tmp_path, upstreams, smart, cache=cache) as found:
        for told in [await found.ask(1, stream=stream), await found.ask(1, stream=stream)]:
            assert (told.status, told.headers["x-nearhit-cascade"]) == (200, "unsure"), told.raw
            assert (told.headers["x-nearhit-provider"], told.headers["x-nearhit-cache"]) == ("a", "miss")
            rungs = (await found.explained(told.headers["x-request-id"]))["why"]["cascade"]["rungs"]
            assert (rungs[0]["verdict"], rungs[-1]["verdict"]) == ("unsure", "upstream_error")
        entries = await found.gateway.entries()
        assert [entry["provider"] for entry in entries if entry["amount_nano"]] == ["a", "a"]
        assert not await found.gateway.services.ledger.verify()


async def test_an_unsure_answer_is_better_than_none_where_time_is_over(tmp_path: Path) -> None:
    """It was thrown away for a rung that could not be sent any more, and the client told that nothing was spent."""
    upstreams = {"a": Options(tokens=4, logprob=-2.0), "b": QUICK}
    async with stage(tmp_path, upstreams, {"strategy": "cascade", "min_logprob": -0.5}) as found:
        ledger = found.gateway.services.ledger
        promised = ledger._promised

        async def slow(hold: Hold) -> None:
            await asyncio.sleep(4.0 if hold.plan.provider == "b" else 0)
            await promised(hold)

        ledger._promised = slow
        told = await found.ask(headers={"x-nearhit-timeout": "3"})
        assert (told.status, told.headers["x-nearhit-cascade"]) == (200, "unsure"), told.raw


async def test_a_rung_that_cannot_say_how_sure_it_is_is_passed_over(tmp_path: Path) -> None:
    """Groq refuses log probabilities: the client, who never asked for any, got that refusal. Nor is it the client's
    fault who does ask for them, or for anything else, as long as another rung can do it.
    """
    upstreams = {"a": QUICK, "b": QUICK}
    groq = {"a": {"kind": "groq", "base_url": "http://127.0.0.1:9/v1", "api_key": "none"}}
    async with stage(tmp_path, upstreams, {"strategy": "cascade", "min_logprob": -0.5}, more=groq) as found:
        told = await found.ask()
        assert (told.status, told.headers["x-nearhit-provider"]) == (200, "b")
        rungs = (await found.explained(told.headers["x-request-id"]))["why"]["cascade"]["rungs"]
        assert rungs[0]["verdict"] == "tells no log probabilities"
        entries = await found.gateway.entries()
        assert [entry["provider"] for entry in entries if entry["amount_nano"]] == ["b"]
        asked: list[tuple[dict[str, Any], str]] = [
            ({"logprobs": True}, "refuses logprobs"),
            ({"n": 2}, "tells no log probabilities"),
        ]
        for asks, verdict in asked:
            told = await found.ask(1, **asks)
            rungs = (await found.explained(told.headers["x-request-id"]))["why"]["cascade"]["rungs"]
            assert (told.headers["x-nearhit-provider"], rungs[0]["verdict"]) == ("b", verdict)


async def _rehearsed(found: Stage, model: str = "smart") -> Any:
    headers = {"x-nearhit-dry-run": "1"}
    return (await found.gateway.chat(model=model, max_tokens=100, headers=headers)).json


async def test_a_dry_run_of_several_answers_tells_the_rule_and_what_all_of_them_cost(tmp_path: Path) -> None:
    """Three votes are three bills: who asks what a request can cost must not be told the price of one."""
    several = {
        "votes": {"route": ["a/m", "b/m"], "strategy": "ensemble", "of": 3},
        "rungs": {"route": ["a/m", "b/m"], "strategy": "cascade", "min_logprob": -0.3},
        "hedge": {"route": ["a/m", "b/m"], "hedge": "1s"},
    }
    async with stage(tmp_path, {"a": QUICK, "b": QUICK}, {}, prices={"b": ("3.00", "6.00")}, models=several) as found:
        one = await _rehearsed(found)
        small, dear = (float(place["worst_case_usd"]) for place in one["route"])
        assert dear == pytest.approx(3 * small)
        assert (one["routing"]["strategy"], float(one["worst_case_usd"])) == ("ordered", dear)
        told = await _rehearsed(found, "votes")
        assert (told["routing"]["strategy"], told["routing"]["of"]) == ("ensemble", 3)
        assert [place["target"] for place in told["route"]] == ["a/m", "b/m", "a/m"]
        assert float(told["worst_case_usd"]) == pytest.approx(2 * small + dear)
        told = await _rehearsed(found, "rungs")
        assert (told["routing"]["strategy"], told["routing"]["min_logprob"]) == ("cascade", -0.3)
        assert float(told["worst_case_usd"]) == pytest.approx(small + dear)
        assert float((await _rehearsed(found, "hedge"))["worst_case_usd"]) == pytest.approx(small + dear)


async def test_the_majority_of_an_ensemble_answers(tmp_path: Path) -> None:
    """Two of three say the same but for case: theirs is the answer, and all three are paid for."""
    upstreams = {"a": Options(say="No."), "b": Options(say="Yes."), "c": Options(say="yes")}
    async with stage(tmp_path, upstreams, {"strategy": "ensemble", "of": 3}) as found:
        told = await found.ask()
        assert told.text == "Yes."
        assert len(await found.gateway.entries()) == 3
        voted = (await found.explained(told.headers["x-request-id"]))["why"]["ensemble"]
        assert voted["won_by"] == 2


@pytest.mark.parametrize("stream", [False, True])
async def test_a_filtered_answer_goes_to_the_next_where_that_is_wanted(tmp_path: Path, stream: bool) -> None:
    """Content filters differ; with the switch on a filtered answer is another model's chance, and is paid for."""
    upstreams = {"a": Options(say="", finish="content_filter"), "b": QUICK}
    async with stage(tmp_path, upstreams, {"fallback_on": ["content_filter"]}) as found:
        told = await found.ask(stream=stream)
        assert told.headers["x-nearhit-provider"] == "b"
        assert [entry["provider"] for entry in await found.gateway.entries()] == ["a", "b"]


async def test_from_a_share_of_the_budget_on_the_price_decides(tmp_path: Path) -> None:
    """Quality first while there is money, the cheaper one when most of it is gone."""
    from policies.budget import Budget

    smart = {"cheapest_from": 0.5}
    async with stage(
        tmp_path, {"a": QUICK, "b": QUICK}, smart, prices={"a": ("10.00", "10.00"), "b": ("0.10", "0.10")}
    ) as found:
        assert (await found.ask(0, max_tokens=8)).headers["x-nearhit-provider"] == "a"
        spent = sum(entry["amount_nano"] for entry in await found.gateway.entries())
        budget = Budget(scope="team:acme", limit_nano=spent * 2, window="day")
        await found.gateway.services.ledger.set_budget(budget, "test")
        told = await found.ask(1, max_tokens=8)
        assert told.headers["x-nearhit-provider"] == "b"
        routing = (await found.explained(told.headers["x-request-id"]))["why"]["routing"]
        assert (routing["strategy"], routing["instead_of"]) == ("cheapest", "ordered")


async def test_a_shadow_is_compared_and_costs_the_client_nothing(tmp_path: Path) -> None:
    """A new model is judged on real questions; its lines are the gateway's own and end at their cap."""
    upstreams = {"a": Options(say="The sky is blue."), "b": Options(say="the sky is blue")}
    smart = {"route": ["a/m"], "shadow": {"to": "b/m", "share": 1.0, "budget_usd": "0.02"}}
    async with stage(tmp_path, upstreams, smart) as found:
        told = await found.ask(max_tokens=20)
        assert told.headers["x-nearhit-provider"] == "a"
        shadow = await found.told_later(told.headers["x-request-id"], "shadow")
        assert shadow["verdict"] == "same"
        assert float(shadow["fresh"]["cost_usd"]) > 0
        entries = {entry["provider"]: entry for entry in await found.gateway.entries()}
        assert entries["a"]["team"] == "acme"
        assert (entries["b"]["team"], entries["b"]["project"]) == ("nearhit", "shadow")
        assert told.headers["x-nearhit-cost-usd"] == f"{entries['a']['amount_nano'] / 1e9:f}".rstrip("0")


async def test_a_key_that_must_wait_is_replaced_by_another(tmp_path: Path) -> None:
    """A pool of keys answers as long as one of them may be used; when none may, the client is told for how long."""
    language = Keyed({"good"})
    async with wire_upstream(language, Manner()) as up:
        keyed = {"kind": "openai", "base_url": f"http://127.0.0.1:{up.port}/v1", "api_keys": ["good", "tired"]}
        async with stage(tmp_path, {"a": QUICK}, {}, more={"a": keyed}) as found:
            for number in range(4):
                told = await found.ask(number)
                assert told.headers["x-nearhit-attempts"] == "1"
                (attempt,) = (await found.explained(told.headers["x-request-id"]))["attempts"]
                assert attempt["key"] == "key 1"
            assert language.heard.count("Bearer tired") == 1
            language.good.clear()
            told = await found.gateway.chat(model="smart", headers={"x-nearhit-timeout": "2"})
            assert told.status == 429
            assert int(told.headers["retry-after"]) >= 20
            calls = len(language.heard)
            assert (await found.gateway.chat(model="smart")).status == 429
            assert len(language.heard) == calls


class Keyed:
    """Answers to some keys; tells all others to wait half a minute."""

    def __init__(self, good: set[str]) -> None:
        self.good = good
        self.heard: list[str] = []

    async def answer(self, asked: Request) -> Answer:
        key = asked.headers.get("authorization", "")
        self.heard.append(key)
        if key.removeprefix("Bearer ") not in self.good:
            error = {"error": {"message": "slow down", "type": "requests", "code": "rate_limit_exceeded"}}
            status, headers = "429 Too Many Requests", ("retry-after: 30",)
            return Answer(status=status, headers=headers, body=msgspec.json.encode(error))
        choice = {"index": 0, "message": {"role": "assistant", "content": "yes"}, "finish_reason": "stop"}
        usage = {"prompt_tokens": 3, "completion_tokens": 1, "total_tokens": 4}
        return Answer(body=msgspec.json.encode({"choices": [choice], "usage": usage}))

    def failure(self) -> Answer:
        return Answer(status="500 Internal Server Error")


@pytest.mark.parametrize("stream", [False, True])
async def test_a_hit_of_a_route_of_several_places_is_booked_at_one_of_them(tmp_path: Path, stream: bool) -> None:
    """All of them in one were told as a model, which stood first in the price book as one without a price."""
    cache = {"store": "memory", "mode": "exact"}
    async with stage(tmp_path, {"a": QUICK, "b": QUICK}, {}, cache=cache) as found:
        for mark in ("miss", "hit-exact"):
            told = await found.ask(1, stream=stream)
            assert told.headers["x-nearhit-cache"] == mark
            assert (told.headers["x-nearhit-provider"], told.headers["x-nearhit-model"]) == ("a", "m")
        assert {(row["provider"], row["model_used"]) for row in await found.gateway.rows()} == {("a", "m")}
