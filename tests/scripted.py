"""Scripted upstreams on real sockets, and a gateway whose providers they are."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from gateway.scripted_calls import Counters, Options
from gateway.scripted_server import ScriptedServer
from tests.live import Live, live, settings


class Stage:
    """`gateway` and the counters of every upstream, by name."""

    def __init__(self, gateway: Live, servers: dict[str, ScriptedServer]) -> None:
        self.gateway = gateway
        self.servers = servers

    def counters(self, name: str) -> Counters:
        return self.servers[name].books.counters

    def calls(self) -> dict[str, int]:
        return {name: server.books.counters.calls for name, server in self.servers.items()}

    async def ask(self, number: int = 0, model: str = "smart", **more: Any) -> Any:
        """One question of its own; the answer must be there."""
        told = await self.gateway.chat(
            model=model, messages=[{"role": "user", "content": f"question {number}"}], **more
        )
        assert told.status == 200, told.raw
        return told

    async def told_later(self, request_id: str, name: str) -> Any:
        """A part of the explanation that is added once it is known."""
        async with asyncio.timeout(60):
            while not (found := (await self.explained(request_id))["why"][name]):  # noqa: ASYNC110 - seen from outside
                await asyncio.sleep(0.02)
        return found

    async def explained(self, request_id: str) -> dict[str, Any]:
        """What the control plane tells of a request."""
        await self.gateway.settled()
        url = f"{self.gateway.url}/api/v1/requests/{request_id}"
        headers = {"authorization": "Bearer sk-test-admin-key-of-some-length"}
        async with self.gateway.client.get(url, headers=headers) as response:
            assert response.status == 200, await response.text()
            return await response.json()


@asynccontextmanager
async def stage(
    home: Path, upstreams: dict[str, Options], smart: dict[str, Any], **values: Any
) -> AsyncGenerator[Stage, None]:
    """A model `smart` over scripted upstreams, each priced at 1 USD in and 2 out per million tokens as `m`.

    `prices`: others, by upstream; `more`: settings of an upstream instead of the scripted server's, by name.
    """
    prices, more = values.pop("prices", {}), values.pop("more", {})
    plain: dict[str, Any] = {"cache": {"mode": "off"}, "ledger": {"durability": "off"}}
    async with AsyncExitStack() as stack:
        servers = {name: ScriptedServer(options) for name, options in upstreams.items()}
        providers: dict[str, Any] = {"up": {"kind": "scripted"}}
        for name, server in servers.items():
            port = await server.start()
            stack.push_async_callback(server.close)
            base: dict[str, Any] = {"kind": "openai", "base_url": f"http://127.0.0.1:{port}/v1", "api_key": "none"}
            providers[name] = more.get(name) or base
        models = {"smart": {"route": [f"{name}/m" for name in upstreams], **smart}} | values.pop("models", {})
        chosen = settings(
            home,
            providers=providers,
            models=models,
            **(plain | values),
        )
        gateway = await stack.enter_async_context(live(chosen))
        for name in upstreams:
            input_usd, output_usd = prices.get(name, ("1.00", "2.00"))
            await gateway.services.prices.set(
                f"{name}/m", input_usd=input_usd, output_usd=output_usd, actor="test", effective_from=0.0
            )
        yield Stage(gateway, servers)
