"""Scripted upstreams on loopback and everything between a call and its begun answer, in one process.

Knows: how those parts are put together without a gateway's HTTP around them. Does not know: what is measured.
"""

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing, asynccontextmanager, suppress
from pathlib import Path

from gateway.answering import answering
from gateway.attempts import Live
from gateway.call import Call, Directives, Principal
from gateway.catalog import Catalog
from gateway.db.session import Database
from gateway.deployments import Deployments
from gateway.errors import GatewayError
from gateway.flights import Landing
from gateway.ids import uuid7
from gateway.ledger import Ledger
from gateway.model_settings import ModelSettings
from gateway.parts import build_upstream
from gateway.prices import PriceBook
from gateway.scripted_calls import Options
from gateway.scripted_server import ScriptedServer
from gateway.settings import LedgerSettings, ProviderSettings, Settings
from gateway.tasks import Tasks
from gateway.transport.direct import DirectTransport
from gateway.upstreams import Upstreams
from policies.money import Usage

_PATIENCE = 30.0


class Stand:
    """`both` leads to every upstream in their order, `<name>/m` to one."""

    def __init__(self, parts: "_Parts", servers: dict[str, ScriptedServer], catalog: Catalog) -> None:
        self._parts = parts
        self._servers = servers
        self._catalog = catalog
        self.forget()

    def forget(self) -> None:
        """What is known of the upstreams: circuits are closed again, the budget of retries is full."""
        parts = self._parts
        parts.deployments = Deployments(monotonic=time.monotonic)
        self._several = answering(parts.upstreams, parts.deployments, parts.prices, parts.ledger, parts.tasks)

    def calls(self) -> int:
        return sum(server.books.counters.calls for server in self._servers.values())

    async def ask(self, model: str, number: int) -> bool:
        """One request, read to its end and settled; False where it was refused."""
        now = time.monotonic()
        call = Call(
            id=uuid7(),
            operation="chat",
            principal=Principal(key_id="bench", team="acme", project="app"),
            body={"model": model, "messages": [{"role": "user", "content": f"question {number}"}], "max_tokens": 8},
            model=model,
            stream=False,
            include_usage=False,
            directives=Directives(),
            received=now,
            at=time.time(),
            deadline=now + _PATIENCE,
            size=100,
        )
        with suppress(GatewayError):
            live = await self._several.begin(call, self._catalog.resolve(model), Landing())
            await self._end(live)
            return True
        return False

    async def _end(self, live: Live) -> None:
        async with aclosing(live.rest) as rest:
            async for _ in rest:
                pass
        self._several.settle(live, live.first.usage, "complete", Usage(), "")


class _Parts:
    """What outlives `Stand.forget`."""

    def __init__(self, upstreams: Upstreams, prices: PriceBook, ledger: Ledger, tasks: Tasks) -> None:
        self.upstreams, self.prices, self.ledger, self.tasks = upstreams, prices, ledger, tasks
        self.deployments = Deployments(monotonic=time.monotonic)


@asynccontextmanager
async def stand(home: Path, upstreams: dict[str, Options]) -> AsyncGenerator[Stand, None]:
    """Until left. Money is journalled but not synced to the disk, whose pace is not what is measured."""
    await asyncio.to_thread(home.mkdir, parents=True)
    tasks, transport = Tasks(), DirectTransport()
    servers = {name: ScriptedServer(options) for name, options in upstreams.items()}
    ports = {name: await server.start() for name, server in servers.items()}
    chosen = {
        name: ProviderSettings(kind="vllm", base_url=f"http://127.0.0.1:{port}/v1") for name, port in ports.items()
    }
    routes = {"both": list(upstreams), **{f"{name}/m": [name] for name in upstreams}}
    models = {
        name: ModelSettings.model_validate({"route": [f"{one}/m" for one in names], "free": True})
        for name, names in routes.items()
    }
    settings = Settings(home=home, providers=chosen, models=models, ledger=LedgerSettings(durability="write"))
    database = Database(settings.database_url)
    await database.start()
    ledger = Ledger(database, home / "journal", settings=settings, now=time.time, monotonic=time.monotonic, tasks=tasks)
    await ledger.start()
    providers = {name: build_upstream(name, one, transport, tasks) for name, one in chosen.items()}
    parts = _Parts(Upstreams(providers, settings), PriceBook(database, settings=settings, now=time.time), ledger, tasks)
    try:
        yield Stand(parts, servers, Catalog(models, {name: [] for name in upstreams}, {}))
    finally:
        await ledger.close()
        await database.close()
        await transport.close()
        for server in servers.values():
            await server.close()
        await tasks.finish(1.0)
