"""Predicted outputs: the prediction reaches the service, what it kept and threw away comes back, both are charged."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.live import live, settings
from tests.unit.upstream.raw_upstream import RawUpstream, fixed, raw_upstream, response

PREDICTION = {"type": "content", "content": "def one(): return 1"}
# Of the 40 tokens 12 were predicted and used, 18 predicted and thrown away: OpenAI bills those as output, and counts
# them among the completion tokens (its API reference, completion_tokens_details).
USAGE = {
    "prompt_tokens": 50,
    "completion_tokens": 40,
    "total_tokens": 90,
    "completion_tokens_details": {
        "reasoning_tokens": 0,
        "accepted_prediction_tokens": 12,
        "rejected_prediction_tokens": 18,
    },
}
WHOLE = {
    "id": "c",
    "object": "chat.completion",
    "created": 1,
    "model": "m",
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "def two"}, "finish_reason": "stop"}],
    "usage": USAGE,
}


def events() -> bytes:
    head: dict[str, Any] = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    told: list[Any] = [
        {**head, "choices": [{"index": 0, "delta": {"role": "assistant"}, "finish_reason": None}]},
        {**head, "choices": [{"index": 0, "delta": {"content": "def two"}, "finish_reason": "stop"}]},
        {**head, "choices": [], "usage": USAGE},
    ]
    return b"".join(b"data: %b\n\n" % msgspec.json.encode(one) for one in told) + b"data: [DONE]\n\n"


def lab(kind: str, up: RawUpstream) -> dict[str, Any]:
    base = up.url.removesuffix("/v1") if kind == "azure" else up.url
    return {"lab": {"kind": kind, "base_url": base, "api_key": "none"}}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("kind", ["openai", "azure"])
async def test_a_prediction_goes_there_and_its_counts_come_back(tmp_path: Path, kind: str, stream: bool) -> None:
    """Who predicts badly pays for it: the client must see the counts, and the ledger must hold them as output."""
    raw = events() if stream else msgspec.json.encode(WHOLE)
    media = "content-type: text/event-stream" if stream else "content-type: application/json"
    async with raw_upstream(fixed(response("200 OK", raw, media))) as up:
        async with live(settings(tmp_path, providers=lab(kind, up))) as gateway:
            prices = gateway.services.prices
            await prices.set("lab/m", input_usd="1.00", output_usd="2.00", actor="test", effective_from=0.0)
            more: dict[str, Any] = {"stream": True, "stream_options": {"include_usage": True}} if stream else {}
            told = await gateway.chat(model="lab/m", prediction=PREDICTION, **more)
            (entry,) = await gateway.entries()
        sent = msgspec.json.decode(up.heard[0].body)
    assert sent["prediction"] == PREDICTION
    usage = told.events[-2]["usage"] if stream else told.json["usage"]
    details = usage["completion_tokens_details"]
    assert (details["accepted_prediction_tokens"], details["rejected_prediction_tokens"]) == (12, 18)
    assert (entry["completion"], entry["amount_nano"]) == (40, 50 * 1_000 + 40 * 2_000)
