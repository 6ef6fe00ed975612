"""Traffic in the documented shape of real services through the provider: what we send, what we make of the answer."""

from collections import Counter
from contextlib import aclosing
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec import Struct

from gateway.allowance import Accounted
from gateway.call import Chunk
from gateway.errors import GatewayError, UpstreamFailed, UpstreamRefused
from gateway.providers import Sending, known, load
from gateway.settings import ProviderSettings
from gateway.stream import fold
from gateway.tasks import Tasks
from gateway.transport.direct import DirectTransport
from tests.unit.upstream.raw_upstream import RawUpstream, fixed, raw_upstream, response

GOLDEN = Path(__file__).parents[2] / "golden"
CASES = sorted(f"{path.parent.name}/{path.name.removesuffix('.asked.json')}" for path in GOLDEN.glob("*/*.asked.json"))
KINDS = set(known()) - {"local", "scripted", "prefill_decode"}
# They have no limits of their own to tell of, or no documented answer for it.
NEVER_BUSY = {"lmstudio"}
NO_IMAGES = {"deepseek"}
# Languages that do not tell when an answer was made take it from a clock.
CLOCKS: dict[str, Any] = {kind: {"now": lambda: 1_800_000_000.0} for kind in ("anthropic", "bedrock", "gemini")}
FEES = ("web_searches", "file_searches", "unpriced")
decode = msgspec.json.Decoder().decode


class Case(Struct, frozen=True):
    """`asked`: what the dispatcher hands over. `status`, `headers`, `body`: the upstream's whole answer."""

    kind: str
    asked: Any
    status: str
    headers: tuple[str, ...]
    body: bytes

    @classmethod
    def of(cls, name: str) -> "Case":
        head, _, body = (GOLDEN / f"{name}.answer").read_bytes().partition(b"\n\n")
        first, *headers = head.decode().split("\n")
        asked = decode((GOLDEN / f"{name}.asked.json").read_bytes())
        return cls(name.partition("/")[0], asked, first.removeprefix("HTTP/1.1 "), tuple(headers), body)


def as_pinned(up: RawUpstream, chunks: list[Chunk], error: GatewayError | None, accounts: Accounted) -> dict[str, Any]:
    heard = up.heard[0]
    sent = {"line": heard.line, "body": decode(heard.body)}
    if error is not None:
        refused = {
            "kind": type(error).__name__,
            "status": error.http_status,
            "error": error.detail() if isinstance(error, UpstreamRefused) else {"message": error.message},
            "retry_after": error.retry_after if isinstance(error, UpstreamRefused) else None,
        }
        return {**sent, "refused": refused, "left": [msgspec.to_builtins(one) for one in accounts.accounts()[0].left]}
    final = chunks[0].final
    usages = [chunk.usage for chunk in chunks if chunk.usage is not None]
    return {
        **sent,
        "answer": chunks[0].data if final else fold(chunk.data for chunk in chunks),
        "usage": {name: n for name, n in msgspec.to_builtins(usages[-1]).items() if n or name not in FEES},
        "finishes": [chunk.finish for chunk in chunks if chunk.finish],
        "chunks": len(chunks),
    }


async def played(case: Case) -> dict[str, Any]:
    """The case through its provider, over a real socket."""
    transport, tasks = DirectTransport(), Tasks()
    asked, chunks, error = case.asked, list[Chunk](), None
    async with raw_upstream(fixed(response(case.status, case.body, *case.headers))) as up:
        settings = ProviderSettings(kind=case.kind, base_url=up.url, **asked.get("settings", {}))
        provider = load(case.kind).build("up", settings, transport=transport, tasks=tasks, **CLOCKS.get(case.kind, {}))
        model = asked.get("model", "upstream-model")  # some go by the name
        sending = Sending(
            id="a-1",
            operation=asked["operation"],
            model=model,
            body={**asked["body"], "model": model, "stream": asked["stream"]},
            stream=asked["stream"],
            tenant="t",
            timeout=30.0,
            idle=30.0,
        )
        try:
            async with aclosing(provider.send(sending)) as sent:
                chunks = [chunk async for chunk in sent]
        except UpstreamFailed as problem:
            error = problem
        found = as_pinned(up, chunks, error, provider)
    await transport.close()
    return found


@pytest.mark.parametrize("name", CASES)
async def test_the_wire_is_as_pinned(name: str) -> None:
    """A change of what we send or of how we read is a change for every user; it must be seen in a diff."""
    assert await played(Case.of(name)) == decode((GOLDEN / f"{name}.pinned.json").read_bytes())


def test_there_are_cases() -> None:
    """An empty folder would pass every comparison."""
    told = Counter(name.partition("/")[0] for name in CASES)
    assert told["openai"] >= 8
    assert all(told[kind] >= 3 for kind in KINDS)


def of(kind: str) -> dict[str, Any]:
    """Its pinned cases by name."""
    return {
        name: decode((GOLDEN / f"{name}.pinned.json").read_bytes()) for name in CASES if name.startswith(f"{kind}/")
    }


def calls(pinned: Any) -> list[Any]:
    choices = pinned.get("answer", {}).get("choices") or []
    return [call for choice in choices for call in (choice.get("message") or {}).get("tool_calls") or []]


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_every_kind_has_what_breaks_clients_first(kind: str) -> None:
    """A call of a tool whole and streamed, in a form that OpenAI's clients read; a picture; both sorts of refusal."""
    cases = of(kind)
    with_calls = {name: calls(pinned) for name, pinned in cases.items() if calls(pinned)}
    assert {Case.of(name).asked["stream"] for name in with_calls} == {True, False}
    for call in (call for found in with_calls.values() for call in found):
        assert (call["type"], bool(call["id"]), type(call["function"]["arguments"])) == ("function", True, str)
    pictures = [name for name in cases if b"image_url" in msgspec.json.encode(Case.of(name).asked)]
    assert pictures
    assert all(("refused" in cases[name]) == (kind in NO_IMAGES) for name in pictures)
    statuses = [Case.of(name).status[:3] for name in cases]
    assert any(status in ("400", "404", "422") for status in statuses)
    assert kind in NEVER_BUSY or any(status in ("429", "503", "529") for status in statuses)
