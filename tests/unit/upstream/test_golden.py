"""Recorded-shape traffic of real services through the provider: what we send, and what we make of the answer."""

from collections import Counter
from contextlib import aclosing
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gateway.call import Chunk
from gateway.providers import Sending, known, load
from gateway.settings import ProviderSettings
from gateway.stream import fold
from gateway.tasks import Tasks
from gateway.transport.direct import DirectTransport
from tests.unit.upstream.raw_upstream import RawUpstream, fixed, raw_upstream, response

GOLDEN = Path(__file__).parents[2] / "golden"
CASES = sorted(f"{path.parent.name}/{path.name.removesuffix('.asked.json')}" for path in GOLDEN.glob("*/*.asked.json"))
# Languages that do not tell when an answer was made take it from a clock.
CLOCKS: dict[str, Any] = {kind: {"now": lambda: 1_800_000_000.0} for kind in ("anthropic", "bedrock", "gemini")}
decode = msgspec.json.Decoder().decode


def as_pinned(up: RawUpstream, chunks: list[Chunk]) -> dict[str, Any]:
    heard = up.heard[0]
    final = chunks[0].final
    usages = [chunk.usage for chunk in chunks if chunk.usage is not None]
    return {
        "line": heard.line,
        "body": decode(heard.body),
        "answer": chunks[0].data if final else fold(chunk.data for chunk in chunks),
        "usage": msgspec.to_builtins(usages[-1]),
        "finishes": [chunk.finish for chunk in chunks if chunk.finish],
        "chunks": len(chunks),
    }


@pytest.mark.parametrize("name", CASES)
async def test_the_wire_is_as_pinned(name: str) -> None:
    """A change of what we send or of how we read is a change for every user; it must be seen in a diff."""
    asked = decode((GOLDEN / f"{name}.asked.json").read_bytes())
    kind = name.partition("/")[0]
    media = "text/event-stream" if asked["stream"] else "application/json"
    raw = response("200 OK", (GOLDEN / f"{name}.answer").read_bytes(), f"content-type: {media}")
    transport, tasks = DirectTransport(), Tasks()
    async with raw_upstream(fixed(raw)) as up:
        settings = ProviderSettings(kind=kind, base_url=up.url, **asked.get("settings", {}))
        provider = load(kind).build("up", settings, transport=transport, tasks=tasks, **CLOCKS.get(kind, {}))
        sending = Sending(
            id="a-1",
            operation=asked["operation"],
            model="upstream-model",
            body={**asked["body"], "model": "upstream-model", "stream": asked["stream"]},
            stream=asked["stream"],
            tenant="t",
            timeout=5.0,
            idle=5.0,
        )
        async with aclosing(provider.send(sending)) as sent:
            chunks = [chunk async for chunk in sent]
        found = as_pinned(up, chunks)
    await transport.close()
    assert found == decode((GOLDEN / f"{name}.pinned.json").read_bytes())


def test_there_are_cases() -> None:
    """An empty folder would pass every comparison."""
    told = Counter(name.partition("/")[0] for name in CASES)
    assert told["openai"] >= 8
    assert all(told[kind] >= 3 for kind in set(known()) - {"local", "scripted", "prefill_decode"})
