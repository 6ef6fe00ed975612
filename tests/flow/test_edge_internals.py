"""The rows of the edge-case table that need the inside: odd upstreams, what is kept, money while an answer runs."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec

from policies.budget import Budget
from tests.live import Live, live, settings
from tests.wire_upstream import Answer, Manner, Request, wire_upstream

USAGE = {"prompt_tokens": 3, "completion_tokens": 1, "total_tokens": 4}
CALL = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
encode = msgspec.json.encode


def said(finish: str = "stop", usage: Any = USAGE, **message: Any) -> Answer:
    """A whole chat completion of one choice."""
    told = {"role": "assistant", "content": "yes", **message}
    body = {"id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": "m"}
    choice = {"index": 0, "message": told, "finish_reason": finish}
    return Answer(body=encode({**body, "choices": [choice], **({"usage": usage} if usage else {})}))


class Says:
    """Answers by the model's name, and counts."""

    def __init__(self, answers: dict[str, Answer]) -> None:
        self._answers = answers
        self.asked: list[str] = []

    async def answer(self, asked: Request) -> Answer:
        self.asked.append(asked.body["model"])
        return self._answers[asked.body["model"]]

    def failure(self) -> Answer:
        return Answer(status="500 Internal Server Error")


@asynccontextmanager
async def odd_ones(home: Path, answers: dict[str, Answer]) -> AsyncGenerator[tuple[Live, Says], None]:
    """A gateway whose upstream `odd` says just that; every model of it is free under its own name."""
    says = Says(answers)
    async with wire_upstream(says, Manner()) as up:
        odd = {"kind": "openai", "base_url": f"http://127.0.0.1:{up.port}/v1", "api_key": "none"}
        models = {name: {"route": [f"odd/{name}"], "free": True} for name in answers}
        async with live(settings(home, providers={"odd": odd}, models=models)) as gateway:
            yield gateway, says


async def test_half_answers_refusals_and_calls_are_never_kept(tmp_path: Path) -> None:
    """Rows 150 and 153: the next one who asks would get somebody else's accident, or act on somebody else's call."""
    answers = {
        "whole": said(),  # is kept, or the others prove nothing
        "cut-short": said("length"),
        "filtered": said("content_filter"),
        "refused": said(refusal="I will not.", content=None),
        "calls": said("tool_calls", content=None, tool_calls=[CALL]),
    }
    async with odd_ones(tmp_path, answers) as (gateway, says):
        marks: dict[str, list[str]] = {}
        for _ in range(2):
            for name in answers:
                marks.setdefault(name, []).append((await gateway.chat(model=name)).headers["x-nearhit-cache"])
            await gateway.settled()
    assert marks.pop("whole") == ["miss", "hit-exact"]
    assert {name: told for name, told in marks.items() if told != ["miss", "miss"]} == {}
    assert len(says.asked) == 9


ERROR = {"message": "The odd parameter is odd.", "type": "invalid_request_error", "param": "odd", "code": "odd_one"}


async def test_an_upstreams_refusals_come_unchanged_and_are_not_asked_again(tmp_path: Path) -> None:
    """Rows 144 and 145: a retry gets the same no; clients branch on the upstream's own code, and wait as it says."""
    answers = {
        "no": Answer(status="400 Bad Request", body=encode({"error": ERROR})),
        "later": Answer(
            status="429 Too Many Requests", headers=("retry-after: 700",), body=encode({"error": {**ERROR}})
        ),
    }
    async with odd_ones(tmp_path, answers) as (gateway, says):
        refused, later = [await gateway.chat(model=name) for name in answers]
    assert (refused.status, refused.json["error"]) == (400, ERROR)
    assert later.status == 429
    assert int(later.headers["retry-after"]) >= 300
    assert says.asked == ["no", "later"]


async def test_a_200_that_is_no_answer_is_a_502(tmp_path: Path) -> None:
    """Row 142: LiteLLM passes `null` on with status 200."""
    bodies = [b"<html>bad gateway</html>", b"null", b"", b'{"choices": []}', b'{"object": "chat.completion"}']
    answers = {f"none-{number}": Answer(body=body) for number, body in enumerate(bodies)}
    async with odd_ones(tmp_path, answers) as (gateway, _):
        told = [await gateway.chat(model=name) for name in answers]
    assert {(one.status, one.json["error"]["code"]) for one in told} == {(502, "upstream_error")}


async def test_usage_that_is_not_told_is_counted_here_and_called_an_estimate(tmp_path: Path) -> None:
    """Row 146: a cost that nobody confirmed must not look like one that was."""
    async with odd_ones(tmp_path, {"silent": said(usage=None)}) as (gateway, _):
        await gateway.services.prices.set(
            "odd/silent", input_usd="1.00", output_usd="2.00", actor="test", effective_from=0.0
        )
        told = await gateway.chat(model="odd/silent")
        assert told.status == 200, told.raw
        assert told.headers["x-nearhit-cost-status"] == "estimated"
        (entry,) = await gateway.entries()
        assert entry["amount_nano"] > 0


async def test_a_stream_goes_on_when_others_use_its_budget_up(tmp_path: Path) -> None:
    """Row 147: what was begun was paid for when it began, so it is never cut for money."""
    async with live(settings(tmp_path, upstream={"tpot_ms": 40.0})) as gateway:
        asked: Any = {"max_tokens": 30, "stream": True}
        rehearsed = await gateway.chat(headers={"x-nearhit-dry-run": "1"}, **asked)
        worst = int(float(rehearsed.json["route"][0]["worst_case_usd"]) * 1e9)
        await gateway.services.ledger.set_budget(Budget(scope="team:acme", limit_nano=int(1.5 * worst)), "test")
        first = asyncio.get_running_loop().create_task(gateway.chat(**asked))
        while not (await gateway.chat(headers={"x-nearhit-dry-run": "1"}, **asked)).json["would_refuse"]:  # noqa: ASYNC110 - seen from outside
            await asyncio.sleep(0.01)
        other: Any = {"messages": [{"role": "user", "content": "another question"}], **asked}
        assert (await gateway.chat(**other)).json["error"]["code"] == "insufficient_quota"
        told = await first
        assert told.events[-1] == "[DONE]"
        assert [event["choices"][0]["finish_reason"] for event in told.events[:-1]][-1] == "stop"


async def test_an_unknown_model_is_told_alike_on_every_path(tmp_path: Path) -> None:
    """Rows 22 and 23: LiteLLM says 400 with the code "400"."""
    async with live(settings(tmp_path)) as gateway:
        for path, body in (
            ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}]}),
            ("/v1/completions", {"prompt": "x"}),
            ("/v1/embeddings", {"input": "x"}),
        ):
            told = await gateway.post(path, {"model": "nothing-at-all", **body})
            assert (told.status, told.json["error"]["code"]) == (404, "model_not_found"), path


async def test_a_prompt_beyond_the_window_is_named_as_that(tmp_path: Path) -> None:
    """Row 41: LangChain and the coding agents shorten their prompt on this code, and on no other."""
    async with live(settings(tmp_path)) as gateway:
        told = await gateway.chat(model="local/sim", messages=[{"role": "user", "content": "word " * 20_000}])
        assert (told.status, told.json["error"]["code"]) == (400, "context_length_exceeded"), told.raw[:300]
