"""Answers that go to another place although one was given, second attempts beside a first, votes as a stream."""

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gateway import several
from gateway.model_settings import ModelSettings
from gateway.scripted_calls import Options
from tests.scripted import Stage, stage
from tests.wire_upstream import Answer, Manner, Request, wire_upstream

QUICK = Options(tokens=4)
USAGE = {"prompt_tokens": 3, "completion_tokens": 1, "total_tokens": 4}


class Says:
    """Gives everybody this answer."""

    def __init__(self, body: dict[str, Any], status: str = "200 OK", *events: dict[str, Any]) -> None:
        self._answer = Answer(status=status, body=msgspec.json.encode(body))
        self._events = [b"data: %b\n\n" % msgspec.json.encode(event) for event in events]

    async def answer(self, asked: Request) -> Answer:
        if asked.body.get("stream") and self._events:
            first, *others = self._events
            kind = ("content-type: text/event-stream",)
            return Answer(headers=kind, opening=first, events=[*others, b"data: [DONE]\n\n"])
        return self._answer

    def failure(self) -> Answer:
        return Answer(status="500 Internal Server Error")


def _event(delta: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice]}


def _refusing() -> Says:
    message = {"role": "assistant", "content": None, "refusal": "I can't help with that."}
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    events = [_event({"role": "assistant", "content": None}), _event({"refusal": "I can't"}), _event({}, "stop")]
    last = _event({}) | {"choices": [], "usage": USAGE}
    return Says({"choices": [choice], "usage": USAGE}, "200 OK", *events, last)


TOO_LONG = {"message": "This model's maximum context length is 5.", "code": "context_length_exceeded", "type": "x"}


@pytest.mark.parametrize(("stream", "wanted"), [(False, True), (True, True), (True, False)])
async def test_a_refusal_goes_to_the_next_where_that_is_wanted(tmp_path: Path, stream: bool, wanted: bool) -> None:
    """One model's no is not another's: whoever asks for it gets the other's answer, and both are paid for."""
    async with wire_upstream(_refusing(), Manner()) as up:
        more = {"a": {"kind": "openai", "base_url": f"http://127.0.0.1:{up.port}/v1", "api_key": "none"}}
        smart = {"fallback_on": ["refusal"]} if wanted else {}
        async with stage(tmp_path, {"a": QUICK, "b": QUICK}, smart, more=more) as found:
            told = await found.ask(stream=stream)
            entries = [entry["provider"] for entry in await found.gateway.entries() if entry["amount_nano"]]
            assert entries == (["a", "b"] if wanted else ["a"])
            attempts = (await found.explained(told.headers["x-request-id"]))["attempts"]
            assert [attempt["why"] for attempt in attempts] == (["refusal", ""] if wanted else [""])


@pytest.mark.parametrize(("wanted", "status"), [(["context"], 200), ([], 400)])
async def test_a_prompt_too_long_for_one_goes_to_the_next_where_that_is_wanted(
    tmp_path: Path, wanted: list[str], status: int
) -> None:
    """A window that nobody wrote down is found out by asking; the refusal cost nothing."""
    async with wire_upstream(Says({"error": TOO_LONG}, "400 Bad Request"), Manner()) as up:
        more = {"a": {"kind": "openai", "base_url": f"http://127.0.0.1:{up.port}/v1", "api_key": "none"}}
        async with stage(tmp_path, {"a": QUICK, "b": QUICK}, {"fallback_on": wanted}, more=more) as found:
            told = await found.gateway.chat(model="smart")
            assert told.status == status
            paid = [entry["provider"] for entry in await found.gateway.entries() if entry["amount_nano"]]
            assert paid == (["b"] if wanted else [])
            if not wanted:
                assert told.json["error"]["code"] == "context_length_exceeded"


async def test_a_hedge_by_what_was_measured_waits_until_something_was(tmp_path: Path) -> None:
    """`p95` of nothing would ask everybody twice; what answers as it always does is asked alone."""
    async with stage(tmp_path, {"a": Options(tokens=2, ttft_ms=300.0), "b": QUICK}, {"hedge": "p95"}) as found:
        assert (await found.ask(0)).headers["x-nearhit-provider"] == "a"
        assert found.calls() == {"a": 1, "b": 0}
        found.servers["a"].books.options = Options(tokens=2, ttft_ms=120_000.0)
        told = await found.ask(1)
        assert told.headers["x-nearhit-provider"] == "b"
        assert (found.calls(), found.counters("a").closed_early) == ({"a": 2, "b": 1}, 1)


async def test_the_majority_of_an_ensemble_streams(tmp_path: Path) -> None:
    """Who asked for a stream gets one, whole: words, one finish, and the winner's usage where it was asked for."""
    upstreams = {"a": Options(say="No."), "b": Options(say="Yes indeed."), "c": Options(say="yes indeed")}
    async with stage(tmp_path, upstreams, {"strategy": "ensemble", "of": 3}) as found:
        told = await found.ask(stream=True, stream_options={"include_usage": True})
        *events, last = told.events
        assert last == "[DONE]"
        words = [event["choices"][0]["delta"].get("content") or "" for event in events if event["choices"]]
        assert "".join(words) == "Yes indeed."
        finishes = [event["choices"][0]["finish_reason"] for event in events if event["choices"]]
        assert [finish for finish in finishes if finish] == ["stop"]
        assert sum(bool(event.get("usage")) for event in events) == 1
        assert sorted(entry["provider"] for entry in await found.gateway.entries()) == ["a", "b", "c"]


async def test_a_vote_that_hangs_keeps_no_majority_waiting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two of three agreed at once, and the client waited its whole time, ten minutes, for the one that said nothing."""
    monkeypatch.setattr(several, "_STRAGGLERS", 0.2)
    upstreams = {"a": Options(say="Yes."), "b": Options(say="Yes."), "c": Options(ttft_ms=120_000.0)}
    async with stage(tmp_path, upstreams, {"strategy": "ensemble", "of": 3}) as found:
        async with asyncio.timeout(30):
            told = await found.ask(headers={"x-nearhit-timeout": "60"})
        assert float(told.headers["x-nearhit-cost-usd"]) > 0
        entries = await found.gateway.entries()
        assert sorted(entry["provider"] for entry in entries) == ["a", "b", "c"]
        cost = sum(entry["amount_nano"] for entry in entries)
        assert told.headers["x-nearhit-cost-usd"] == f"{cost / 1e9:f}".rstrip("0")
        ensemble = (await found.explained(told.headers["x-request-id"]))["why"]["ensemble"]
        assert ([row["vote"] for row in ensemble["votes"]], ensemble["won_by"]) == ([0, 0, None], 2)
        assert found.counters("c").closed_early == 1


@pytest.mark.parametrize("strategy", ["cascade", "ensemble"])
@pytest.mark.parametrize(
    "beside", [{"canary": {"to": "a/m", "share": 0.5}}, {"hedge": "p95"}, {"sticky": "user"}, {"cheapest_from": 0.5}]
)
def test_what_would_do_nothing_beside_several_answers_is_refused(strategy: str, beside: dict[str, Any]) -> None:
    """A canary that nobody is ever sent to was taken, and told nowhere."""
    with pytest.raises(ValueError, match=f"{strategy}.*{next(iter(beside))} would do nothing"):
        ModelSettings.model_validate({"route": ["a/m", "b/m"], "strategy": strategy, **beside})
    ModelSettings.model_validate({"route": ["a/m", "b/m"], "strategy": strategy, "sticky": "none", "hedge": None})


async def test_sessions_stay_where_they_are_beside_a_canary(tmp_path: Path) -> None:
    """Those that are not tried on it lost their home as soon as a canary was written down."""
    route = ["a/m", "b/m"]
    smart = {"route": route, "strategy": "weighted", "sticky": "session", "canary": {"to": "c/m", "share": 0.3}}
    async with stage(tmp_path, {"a": QUICK, "b": QUICK, "c": QUICK}, smart) as found:
        homes = set[str]()
        for session in range(12):
            headers = {"x-nearhit-session": f"s{session}"}
            seen = {(await found.ask(number, headers=headers)).headers["x-nearhit-provider"] for number in range(3)}
            assert len(seen) == 1
            homes |= seen
        assert homes == {"a", "b", "c"}


async def _by_provider(found: Stage) -> dict[str, dict[str, Any]]:
    await found.gateway.settled()
    url = f"{found.gateway.url}/api/v1/usage?group_by=provider"
    headers = {"authorization": "Bearer sk-test-admin-key-of-some-length"}
    async with found.gateway.client.get(url, headers=headers) as response:
        told = await response.json()
    return {row["provider"]: row for row in told["data"]}


async def test_a_canary_is_compared_in_usage(tmp_path: Path) -> None:
    """Whether the new one is worth it is read as requests, tokens and dollars of both, side by side."""
    smart = {"route": ["a/m"], "canary": {"to": "b/m", "share": 0.5}}
    prices = {"b": ("10.00", "20.00")}
    async with stage(tmp_path, {"a": QUICK, "b": QUICK}, smart, prices=prices) as found:
        answered = [(await found.ask(number)).headers["x-nearhit-provider"] for number in range(16)]
        rows = await _by_provider(found)
        entries = await found.gateway.entries()
        for name in ("a", "b"):
            own = [entry for entry in entries if entry["provider"] == name]
            assert len(own) == answered.count(name) == found.calls()[name] >= 1
            assert rows[name]["completion_tokens"] == sum(entry["completion"] for entry in own)
            assert float(rows[name]["cost_usd"]) == pytest.approx(sum(entry["amount_nano"] for entry in own) / 1e9)
