"""The way from packets to chunks without a socket, so that every cut and every nonsense can be tried."""

import asyncio
from collections.abc import Mapping
from contextlib import aclosing
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import SecretStr

from gateway.call import Body
from gateway.errors import UpstreamFailed
from gateway.providers import Partial, Sending
from gateway.providers.openai import build
from gateway.settings import ProviderSettings
from gateway.tasks import Tasks

GOLDEN = Path(__file__).parents[2] / "golden" / "openai"
STREAMS = [path.read_bytes() for path in sorted(GOLDEN.glob("*stream*.answer"))]
SECRET = "sk-canary-4711"


class FakeExchange:
    """Packets from a list; counts how often it was closed."""

    def __init__(self, packets: list[bytes]) -> None:
        self.status = 200
        self.headers: Mapping[str, str] = {}
        self.packets = [packet for packet in packets if packet]
        self.closed = 0

    @property
    def ended(self) -> bool:
        return not self.packets

    async def piece(self, timeout: float) -> bytes:
        assert timeout > 0
        return self.packets.pop(0) if self.packets else b""

    async def whole(self, limit: int, timeout: float) -> bytes:
        whole, self.packets = b"".join(self.packets), []
        return whole

    def close(self) -> None:
        self.closed += 1


class FakeTransport:
    """Answers every call with the same packets and remembers what it was asked."""

    def __init__(self, packets: list[bytes]) -> None:
        self.exchange = FakeExchange(packets)
        self.asked: list[tuple[str, Mapping[str, str], bytes]] = []

    async def open(
        self, method: str, url: str, headers: Mapping[str, str], content: bytes, timeout: float
    ) -> FakeExchange:
        self.asked.append((url, headers, content))
        return self.exchange

    def check(self, url: str) -> None:
        """It goes nowhere."""

    async def close(self) -> None:
        """Nothing is held."""


def read(packets: list[bytes], body: Body | None = None) -> tuple[list[Body], str, FakeTransport]:
    """The events that came, how it ended, and the transport."""
    transport = FakeTransport(packets)

    async def run() -> tuple[list[Body], str]:
        settings = ProviderSettings(kind="openai", base_url="https://a.example/v1", api_key=SecretStr(SECRET))
        tasks = Tasks()
        provider = build("up", settings, transport=transport, tasks=tasks)
        full: Body = {**(body or {}), "model": "m", "stream": True}
        what = Sending(id="a", operation="chat", model="m", body=full, stream=True, tenant="", timeout=5.0, idle=5.0)
        seen: list[Body] = []
        try:
            async with aclosing(provider.send(what)) as chunks:
                async for chunk in chunks:
                    seen.append(chunk.data)  # noqa: PERF401 - kept also when an error follows
        except (UpstreamFailed, Partial) as error:
            return seen, type(error).__name__
        finally:
            await tasks.finish(1.0)
        return seen, "whole"

    seen, end = asyncio.run(run())
    return seen, end, transport


@pytest.mark.parametrize("raw", STREAMS)
def test_a_stream_cut_after_every_byte_is_the_same_stream(raw: bytes) -> None:
    """No packet boundary may change what a client gets."""
    expected = read([raw])
    assert expected[1] == "whole"
    found = read([raw[at : at + 1] for at in range(len(raw))])
    assert found[:2] == expected[:2]


@pytest.mark.parametrize("raw", STREAMS)
def test_a_stream_that_stops_anywhere_before_its_end_mark_is_never_whole(raw: bytes) -> None:
    """The connection may end cleanly after any byte; only after [DONE] was that the answer."""
    end = raw.rindex(b"data: [DONE]") + len(b"data: [DONE]")
    for stop in range(0, len(raw), 7):
        seen, how, transport = read([raw[:stop]])
        assert (how == "whole") is (stop >= end)
        assert how in ("whole", "Partial" if seen else "UpstreamFailed")
        assert transport.exchange.closed == 1


FRAGMENTS = st.sampled_from(
    [
        b'data: {"choices":[{"index":0,"delta":{"content":"x"}}]}\n\n',
        b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n',
        b'data: {"choices":[]}\n\n',
        b"data: [DONE]\n\n",
        b'data: {"error":{"message":"no"}}\n\n',
        b"data: {\n\n",
        b"data: null\n\n",
        b": ping\n\n",
        b"\x00\xff",
        b"\n\n",
        b"event: x\nid: 1\nretry: 5\n",
        b'data: {"choices":[{"index":"a"}]}\n\n',
        b'data: {"choices":[{"index":0,"finish_reason":1}],"usage":[]}\n\n',
    ]
)


@given(st.lists(FRAGMENTS, max_size=8), st.lists(st.integers(0, 400), max_size=6))
def test_nonsense_has_one_meaning_in_any_packets(fragments: list[bytes], cuts: list[int]) -> None:
    """Whatever comes ends in one of three ways, the same for every cut, and the connection is let go of once."""
    raw = b"".join(fragments)
    places = sorted({min(cut, len(raw)) for cut in cuts} | {0, len(raw)})
    one = read([raw])
    many = read([raw[start:end] for start, end in pairwise(places)])
    assert one[:2] == many[:2]
    assert one[1] in ("whole", "Partial", "UpstreamFailed")
    assert (one[1] == "UpstreamFailed") == (not one[0] and one[1] != "whole")
    assert many[2].exchange.closed == 1


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.sampled_from(["https://evil.example", "x", SECRET[:3]]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["api_base", "base_url", "headers", "Authorization", "proxy", "url", "extra_headers", "x"]),
            inner,
            max_size=3,
        )
    ),
    max_leaves=10,
)


@given(st.dictionaries(st.sampled_from(["api_base", "base_url", "headers", "extra_body", "metadata", "x"]), JSON))
def test_no_body_can_steer_a_call_elsewhere(body: dict[str, Any]) -> None:
    """Other gateways sent their credential to hosts named in a request; here a body is only ever a body."""
    transport = read([STREAMS[0]], body)[2]
    ((url, headers, content),) = transport.asked
    assert url == "https://a.example/v1/chat/completions"
    assert headers["Authorization"] == f"Bearer {SECRET}"
    assert [name for name, value in headers.items() if SECRET in value] == ["Authorization"]
    assert SECRET.encode() not in content
    sent = msgspec.json.decode(content)
    assert {name: sent[name] for name in body} == body
