"""What a check is given: a gateway in front of the servers, OpenAI's own client of it, and the servers themselves.

Knows: how the three are put together, and what is said of a server that does otherwise. Does not know: checks.
"""

import asyncio
import re
import tempfile
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
from anthropic import AsyncAnthropic
from msgspec import Struct
from openai import AsyncOpenAI

from tests.live import Live, live, settings

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode
USD = {"input_usd": "1.00", "output_usd": "2.00"}


class Unlike(Exception):
    """What the gateway or the server did is not what is relied on."""


class NotThere(Exception):
    """The server has no such thing, and says so in a way that reaches the client."""


class Place(Struct, frozen=True, kw_only=True):
    """`urls`: the servers, `/v1` included. `model`: as they call it; clients ask for `m`, for `m2` by prefix,
    for `gone` where they are to be refused.
    """

    kind: str
    urls: Sequence[str]
    model: str
    gateway: Live
    client: AsyncOpenAI
    messages: AsyncAnthropic

    async def direct(self, path: str, body: dict[str, Any], at: int = 0) -> tuple[int, Any]:
        """The same asked of the server itself: status and body."""
        url = f"{self.urls[at]}/{path}"
        async with self.gateway.client.post(url, json={"model": self.model, **body}) as told:
            return told.status, _decode(await told.read())

    async def chat(self, text: str, **more: Any) -> Any:
        """By OpenAI's client, through the gateway."""
        asked: dict[str, Any] = {"model": "m", "max_tokens": 12, "temperature": 0, **more}
        return await self.client.chat.completions.create(messages=[{"role": "user", "content": text}], **asked)

    async def last(self) -> dict[str, Any]:
        """The newest line of the ledger."""
        return (await self.gateway.entries())[-1]

    async def metric(self, name: str, at: int = 0) -> float:
        """The sum of a metric of the server's own over its labels."""
        base = self.urls[at].removesuffix("/v1")
        async with self.gateway.client.get(f"{base}/metrics") as told:
            text = await told.text()
        found = re.findall(rf"^{re.escape(name)}(?:\{{[^}}\n]*\}})? ([0-9.e+-]+)$", text, re.MULTILINE)
        if not found:
            raise Unlike(f"its metrics have no {name}")
        return sum(map(float, found))


Check = Callable[[Place], Awaitable[str]]


def same(what: str, found: object, wanted: object) -> None:
    """Raises Unlike."""
    if found != wanted:
        raise Unlike(f"{what}: {found!r:.200}, not {wanted!r:.200}")


def holds(fact: object, what: str) -> None:
    """Raises Unlike."""
    if not fact:
        raise Unlike(what)


async def within(seconds: float, fact: Callable[[], Awaitable[bool]], what: str) -> float:
    """How long it took until it was so. Raises Unlike."""
    began = time.monotonic()
    while not await fact():
        if time.monotonic() - began > seconds:
            raise Unlike(f"after {seconds:g} s still not: {what}")
        await asyncio.sleep(0.05)
    return time.monotonic() - began


@asynccontextmanager
async def placed(kind: str, provider: dict[str, Any], urls: Sequence[str], model: str) -> AsyncGenerator[Place]:
    """A gateway without a cache, so that every request is an upstream call, at one dollar in and two dollars out."""
    models = {
        "m": {"route": [f"up/{model}"], "strategy": "least_busy"},
        "m2": {"route": [f"up/{model}"], "strategy": "prefix_affine"},
        "gone": {"route": ["up/none-such"], "free": True},
    }
    with tempfile.TemporaryDirectory(prefix="nearhit-servers-") as folder:
        chosen = settings(Path(folder), providers={"up": provider}, models=models, cache={"mode": "off"})
        async with live(chosen) as gateway:
            await gateway.services.prices.set(f"up/{model}", **USD, actor="test", effective_from=0.0)
            url = f"{gateway.url}/v1"
            client = AsyncOpenAI(base_url=url, api_key=gateway.key, max_retries=0, timeout=120)
            messages = AsyncAnthropic(base_url=gateway.url, api_key=gateway.key, max_retries=0, timeout=120)
            async with client, messages:
                yield Place(kind=kind, urls=urls, model=model, gateway=gateway, client=client, messages=messages)


async def first_model(url: str) -> str:
    """The first that a server lists."""
    async with aiohttp.ClientSession() as client, client.get(f"{url}/models") as told:
        return str(_decode(await told.read())["data"][0]["id"])
