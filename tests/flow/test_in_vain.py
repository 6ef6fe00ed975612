"""Calls that can only fail again, and those that were left out although they could have answered."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gateway.scripted_calls import Options
from gateway.tasks import Tasks
from policies.budget import Budget
from tests.scripted import stage
from tests.wire_upstream import Answer, Manner, Request, wire_upstream

QUICK = Options(tokens=4)
USAGE = {"prompt_tokens": 3, "completion_tokens": 1, "total_tokens": 4}
FINE = "200 OK"


def _told(status: str, finish: str = "stop") -> Answer:
    if status != FINE:
        return Answer(status=status, body=msgspec.json.encode({"error": {"message": status, "type": "x"}}))
    choice = {"index": 0, "message": {"role": "assistant", "content": ""}, "finish_reason": finish}
    return Answer(body=msgspec.json.encode({"choices": [choice], "usage": USAGE}))


class InTurn:
    """These statuses one after another, the last of them for ever."""

    def __init__(self, *statuses: str, finish: str = "stop") -> None:
        self._statuses, self._finish = list(statuses), finish

    async def answer(self, asked: Request) -> Answer:
        status = self._statuses.pop(0) if len(self._statuses) > 1 else self._statuses[0]
        return _told(status, self._finish)

    def failure(self) -> Answer:
        return Answer(status="500 Internal Server Error")


class ByKey:
    """A status for each key."""

    def __init__(self, **statuses: str) -> None:
        self._statuses = statuses
        self.heard: list[str] = []

    async def answer(self, asked: Request) -> Answer:
        key = asked.headers["authorization"].removeprefix("Bearer ")
        self.heard.append(key)
        return _told(self._statuses[key])

    def failure(self) -> Answer:
        return Answer(status="500 Internal Server Error")


def _at(port: int, **more: Any) -> dict[str, Any]:
    return {"kind": "openai", "base_url": f"http://127.0.0.1:{port}/v1", **(more or {"api_key": "none"})}


@pytest.mark.parametrize(
    "says",
    [
        InTurn("401 Unauthorized"),
        InTurn("402 Payment Required"),
        InTurn("403 Forbidden"),
        InTurn("501 Not Implemented"),
        InTurn(FINE, finish="content_filter"),
    ],
    ids=["key", "account", "rights", "nothing-such", "filtered"],
)
async def test_what_is_refused_for_good_is_not_asked_for_again(tmp_path: Path, says: InTurn) -> None:
    """The same place was asked three times: retries that others needed, time, and every filtered answer paid for."""
    async with wire_upstream(says, Manner()) as up:
        smart = {"fallback_on": ["content_filter"]}
        async with stage(tmp_path, {"a": QUICK}, smart, more={"a": _at(up.port)}) as found:
            assert (await found.gateway.chat(model="smart")).status >= 400
            assert len(up.heard) == 1


async def test_the_place_that_may_recover_is_the_one_asked_again(tmp_path: Path) -> None:
    """A wrong key at the first place took the repeat, and the next one's passing trouble became the client's."""
    recovers = InTurn("500 Internal Server Error", FINE)
    async with (
        wire_upstream(InTurn("401 Unauthorized"), Manner()) as keyless,
        wire_upstream(recovers, Manner()) as shaky,
    ):
        more = {"a": _at(keyless.port), "b": _at(shaky.port)}
        async with stage(tmp_path, {"a": QUICK, "b": QUICK}, {}, more=more) as found:
            assert (await found.ask()).headers["x-nearhit-provider"] == "b"
            assert (len(keyless.heard), len(shaky.heard)) == (1, 2)


@pytest.mark.parametrize(("status", "told"), [("401 Unauthorized", 502), ("402 Payment Required", 402)])
async def test_a_pool_of_refused_keys_is_never_told_as_patience(tmp_path: Path, status: str, told: int) -> None:
    """Clients were told to come back in a minute, with a key or an account that only an operator can mend."""
    language = ByKey(one=status, two=status)
    async with wire_upstream(language, Manner()) as up:
        pool = _at(up.port, api_keys=["one", "two"])
        async with stage(tmp_path, {"a": QUICK}, {}, more={"a": pool}) as found:
            for _ in range(3):
                refused = await found.gateway.chat(model="smart")
                assert (refused.status, "retry-after" in refused.headers) == (told, False)
            assert sorted(language.heard) == ["one", "two"]


async def test_all_keys_of_a_pool_share_the_time_of_one_attempt(tmp_path: Path) -> None:
    """Each was given all of it anew: a slow refusal made the client wait beyond the time that it had named."""

    class Slow(ByKey):
        async def answer(self, asked: Request) -> Answer:
            await asyncio.sleep(1.5 if not self.heard else 6.0)
            return await super().answer(asked)

    async with wire_upstream(Slow(one="429 Too Many Requests", two="429 Too Many Requests"), Manner()) as up:
        pool = _at(up.port, api_keys=["one", "two"])
        async with stage(tmp_path, {"a": QUICK}, {}, more={"a": pool}) as found:
            async with asyncio.timeout(3.0):
                told = await found.gateway.chat(model="smart", headers={"x-nearhit-timeout": "2"})
            assert told.status == 504


@pytest.mark.parametrize("order", [("tired", "wrong"), ("wrong", "tired")])
async def test_a_pool_with_a_key_that_only_waits_says_so(tmp_path: Path, order: Sequence[str]) -> None:
    """Which key happened to be asked last decided between "come back" and "the credential is refused"."""
    language = ByKey(tired="429 Too Many Requests", wrong="401 Unauthorized")
    async with wire_upstream(language, Manner()) as up:
        pool = _at(up.port, api_keys=list(order))
        async with stage(tmp_path, {"a": QUICK}, {}, more={"a": pool}) as found:
            told = await found.gateway.chat(model="smart", headers={"x-nearhit-timeout": "0.5"})
            assert told.status == 429


async def test_a_key_whose_account_is_empty_rests(tmp_path: Path) -> None:
    """It was asked in every other turn for ever, each time for a retry that failing upstreams may need."""
    language = ByKey(empty="402 Payment Required", good=FINE)
    async with wire_upstream(language, Manner()) as up:
        pool = _at(up.port, api_keys=["empty", "good"])
        async with stage(tmp_path, {"a": QUICK}, {}, more={"a": pool}) as found:
            told = [await found.ask(number) for number in range(4)]
            assert {one.headers["x-nearhit-attempts"] for one in told} == {"1"}
            assert language.heard.count("empty") == 1


async def test_a_budget_that_refuses_a_dearer_fallback_leaves_the_others(tmp_path: Path) -> None:
    """The first place fails, the next one costs more than is left: the third, which is cheap, was never asked."""
    upstreams = {"a": Options(fail_rate=1.0), "b": QUICK, "c": QUICK}
    prices = {"b": ("1000.00", "1000.00")}
    async with stage(tmp_path, upstreams, {}, prices=prices) as found:
        budget = Budget(scope="team:acme", limit_nano=1_000_000, window="day")
        await found.gateway.services.ledger.set_budget(budget, "test")
        told = await found.ask(max_tokens=8)
        assert told.headers["x-nearhit-provider"] == "c"
        assert found.calls() == {"a": 1, "b": 0, "c": 1}


async def test_a_place_that_asked_for_patience_meanwhile_is_no_hedge(tmp_path: Path) -> None:
    """It was well when the request chose; the second call was a certain refusal, and a retry fewer for others."""
    async with wire_upstream(InTurn("429 Too Many Requests"), Manner()) as up:
        slow, more = Options(tokens=2, ttft_ms=1_200.0), {"b": _at(up.port)}
        async with stage(tmp_path, {"a": slow, "b": QUICK}, {"hedge": 0.6}, more=more) as found:
            asked = Tasks().spawn(found.ask(), "slow")
            while found.calls()["a"] < 1:  # noqa: ASYNC110 - seen from outside
                await asyncio.sleep(0.01)
            assert (await found.gateway.chat(model="b/m", headers={"x-nearhit-timeout": "0.3"})).status == 429
            heard = len(up.heard)
            assert (await asked).headers["x-nearhit-attempts"] == "1"
            assert len(up.heard) == heard


@pytest.mark.parametrize("strategy", ["ordered", "fastest", "least_busy"])
@pytest.mark.parametrize(
    ("status", "why"),
    [
        ("401 Unauthorized", "credential refused"),
        ("402 Payment Required", "credential refused"),
        ("404 Model not found", "no such model"),  # where a name leads is the operator's: no fault of who asked
    ],
)
async def test_a_place_to_be_mended_draws_no_requests(tmp_path: Path, strategy: str, status: str, why: str) -> None:
    """It is never busy and never measured, so it was asked first by everybody, for as long as nobody mended it."""
    async with wire_upstream(InTurn(status), Manner()) as up:
        smart = {"strategy": strategy}
        async with stage(tmp_path, {"a": QUICK, "b": QUICK}, smart, more={"a": _at(up.port)}) as found:
            told = [await found.ask(number) for number in range(6)]
            assert {one.headers["x-nearhit-provider"] for one in told} == {"b"}
            assert len(up.heard) == 1
            routing = (await found.explained(told[-1].headers["x-request-id"]))["why"]["routing"]
            assert {"target": "a/m", "left_out": why} in routing["candidates"]


async def test_a_mended_key_works_at_once_where_there_is_no_other_place(tmp_path: Path) -> None:
    """What is remembered of a refusal must not outlive it, nor be told as something that passes."""
    mended = InTurn("401 Unauthorized", "401 Unauthorized", FINE)
    async with (
        wire_upstream(mended, Manner()) as up,
        stage(tmp_path, {"a": QUICK}, {}, more={"a": _at(up.port)}) as found,
    ):
        for number in range(2):
            refused = await found.gateway.chat(model="smart", messages=[{"role": "user", "content": f"{number}"}])
            assert (refused.status, refused.json["error"]["code"]) == (502, "upstream_credential_refused")
        for number in range(3):
            await found.ask(number)
        deployments = found.gateway.services.deployments
        assert deployments is not None
        assert [place.patient_for_s for place in deployments.told()] == [0.0]


async def test_a_model_that_a_place_does_not_have_is_told_as_it_says_where_nobody_has_it(tmp_path: Path) -> None:
    """Who is the last to be asked tells what is wrong, and is asked again as soon as somebody put the model there."""
    deployed = InTurn("404 Model not found", "404 Model not found", FINE)
    async with (
        wire_upstream(deployed, Manner()) as up,
        stage(tmp_path, {"a": QUICK}, {}, more={"a": _at(up.port)}) as found,
    ):
        for number in range(2):
            refused = await found.gateway.chat(model="smart", messages=[{"role": "user", "content": f"{number}"}])
            assert (refused.status, refused.json["error"]["code"]) == (404, "model_not_found")
        assert (await found.ask()).status == 200
        assert len(up.heard) == 3


async def test_a_canary_of_several_servers_stands_in_where_nothing_else_is_left(tmp_path: Path) -> None:
    """It is left out for those it is not tried on, but not where that leaves nobody."""
    async with (
        wire_upstream(InTurn("429 Too Many Requests"), Manner()) as up,
        wire_upstream(InTurn(FINE), Manner()) as one,
    ):
        fleet = {"kind": "vllm", "replicas": [f"http://127.0.0.1:{one.port}/x/v1", f"http://127.0.0.1:{one.port}/y/v1"]}
        smart = {"route": ["a/m"], "canary": {"to": "b/m", "share": 0.0001}}
        async with stage(tmp_path, {"a": QUICK, "b": QUICK}, smart, more={"a": _at(up.port), "b": fleet}) as found:
            hurried = {"x-nearhit-timeout": "0.5"}
            assert (await found.gateway.chat(model="smart", headers=hurried)).status == 429
            assert (await found.ask()).headers["x-nearhit-provider"] == "b"
