"""Words that stand nowhere else are sent in every place that holds a secret, and then looked for everywhere."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.live import Live, live, settings
from tests.wire_upstream import Answer, Manner, Request, wire_upstream

UPSTREAM_KEY = "sk-canary-0f9d8c7b6a5e4d3c"
PROMPT, ANSWER, STRANGER = "canary-in-the-prompt", "canary-in-the-answer", "canary-of-a-stranger"
GOOD = {
    "id": "c",
    "object": "chat.completion",
    "created": 1,
    "model": "m",
    "choices": [{"index": 0, "message": {"role": "assistant", "content": ANSWER}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 3, "completion_tokens": 1, "total_tokens": 4},
}


class Indiscreet:
    """Answers `good`; for every other model it fails and says our own key back."""

    async def answer(self, asked: Request) -> Answer:
        if asked.body["model"] == "good":
            return Answer(body=msgspec.json.encode(GOOD))
        status = str(asked.body["model"]).replace("-", " ", 1)
        told = {"error": {"message": f"no: {asked.headers.get('authorization')}", "type": "t", "code": None}}
        return Answer(status=status, body=msgspec.json.encode(told))

    def failure(self) -> Answer:
        return Answer(status="500 Internal Server Error")


async def _errors(gateway: Live) -> list[bytes]:
    """The bodies of everything that goes wrong, from the outside in."""
    said: dict[str, Any] = {"messages": [{"role": "user", "content": PROMPT}]}
    told = [await gateway.chat(model=f"lab/{model}", **said) for model in ("400-Bad", "401-No", "429-Later", "500-Oh")]
    told.append(await gateway.chat(model="lab/unpriced-model", **said))
    told.append(await gateway.chat(model="lab/good", temperature="hot", **said))
    stranger = {"authorization": f"Bearer sk-nh-{STRANGER}"}
    told.append(await gateway.post("/v1/chat/completions", {"model": "lab/good", **said}, headers=stranger))
    assert {one.status // 100 for one in told} <= {4, 5}
    return [one.raw for one in told]


def _files(home: Path) -> bytes:
    return b"".join(path.read_bytes() for path in home.rglob("*") if path.is_file())


async def test_no_secret_reaches_a_log_a_trace_a_metric_an_error_or_the_disk(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whoever reads one of these must be able to spend nobody's money and to read nobody's questions."""
    async with wire_upstream(Indiscreet(), Manner()) as up:
        lab = {"kind": "openai", "base_url": f"http://127.0.0.1:{up.port}/v1", "api_key": UPSTREAM_KEY}
        chosen = settings(tmp_path, providers={"lab": lab}, cache={"mode": "off"}, telemetry={"sample": 1.0})
        async with live(chosen) as gateway:
            for model in ("good", "400-Bad", "401-No", "429-Later", "500-Oh"):
                await gateway.services.prices.set(
                    f"lab/{model}", input_usd="1", output_usd="1", actor="test", effective_from=0.0
                )
            said = [{"role": "user", "content": PROMPT}]
            assert (await gateway.chat(model="lab/good", messages=said)).text == ANSWER
            errors, key = await _errors(gateway), gateway.key
            await gateway.rows()  # all is in the database by now
            telemetry = gateway.services.telemetry
            assert telemetry is not None
            seen = {
                "traces": msgspec.json.encode(telemetry.traces()),
                "metrics": telemetry.exposition(),
                "errors": b"".join(errors),
            }
    seen |= {"log": "".join(capsys.readouterr()).encode(), "disk": _files(tmp_path)}
    assert all(seen.values())
    secrets = (UPSTREAM_KEY, key, STRANGER, PROMPT, ANSWER)
    assert [(place, secret) for place, text in seen.items() for secret in secrets if secret.encode() in text] == []
