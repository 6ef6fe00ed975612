"""A gateway on a real loopback socket inside the test's own event loop, with its parts within reach.

Time to first byte, disconnects and drains can only be seen through a real server; in-process transports hide them.
"""

import asyncio
import socket
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import uvicorn

from gateway.app import create_app
from gateway.auth import ADMIN, NewKey
from gateway.call import Role
from gateway.rereading import Rereading
from gateway.server_limits import Limits
from gateway.server_socket import Socket, protocol
from gateway.services import Services
from gateway.settings import Settings

PROMPT = [{"role": "user", "content": "What is a KV block?"}]
decode = msgspec.json.Decoder().decode


class Live:
    """`url` without `/v1`; `key` an application key of team `acme`; `services` the running worker's own parts.

    `server`: what the sockets are read by.
    """

    server: uvicorn.Server

    def __init__(self, url: str, key: str, services: Services, client: aiohttp.ClientSession) -> None:
        self.url = url
        self.key = key
        self.services = services
        self.client = client

    async def chat(self, *, key: str | None = None, headers: dict[str, str] | None = None, **body: Any) -> "Told":
        """One chat completion, read whole; defaults: the test's model and prompt."""
        return await self.post(
            "/v1/chat/completions", {"model": "up/scripted", "messages": PROMPT, **body}, key, headers
        )

    async def post(
        self, path: str, body: object, key: str | None = None, headers: dict[str, str] | None = None
    ) -> "Told":
        sent = {"authorization": f"Bearer {key or self.key}", "content-type": "application/json", **(headers or {})}
        async with self.client.post(self.url + path, data=msgspec.json.encode(body), headers=sent) as response:
            names = {name.lower(): value for name, value in response.headers.items()}
            return Told(response.status, names, await response.read())

    async def new_key(self, team: str, project: str = "app", role: Role = "app") -> str:
        wanted = NewKey(name=f"{team} key", team=team, project=project, role=role)
        made = await self.services.keyring.create(ADMIN, wanted)
        return made.key

    async def rows(self) -> list[dict[str, Any]]:
        """Every request row, oldest first, after the books have been written."""
        await self.settled()
        async with self.services.database.read() as connection:
            found = await connection.exec_driver_sql("SELECT * FROM request ORDER BY at")
            return [dict(row) for row in found.mappings()]

    async def entries(self) -> list[dict[str, Any]]:
        """Every ledger entry."""
        await self.settled()
        async with self.services.database.read() as connection:
            found = await connection.exec_driver_sql("SELECT * FROM entry ORDER BY id")
            return [dict(row) for row in found.mappings()]

    async def settled(self) -> None:
        await asyncio.sleep(0.05)
        await self.services.ledger.flush()


class Told(msgspec.Struct):
    """What came back."""

    status: int
    headers: dict[str, str]
    raw: bytes

    @property
    def json(self) -> Any:
        return decode(self.raw)

    @property
    def text(self) -> str:
        return self.json["choices"][0]["message"]["content"]

    @property
    def events(self) -> list[Any]:
        """Decoded events of a stream, `[DONE]` as the string it is."""
        pieces = [line[6:] for line in self.raw.decode().split("\n\n") if line]
        return [piece if piece == "[DONE]" else decode(piece) for piece in pieces]


def settings(home: Path, **values: Any) -> Settings:
    """One scripted upstream called `up` that is priced by `live`, a simulated engine, no encoder."""
    upstream = values.pop("upstream", {})
    base: dict[str, Any] = {
        "home": home,
        "providers": {"up": {"kind": "scripted", **upstream}},
        "engines": {"local": {"model": "sim"}},
        "cache": {"store": "memory", "mode": "exact"},
        "admin_key": "sk-test-admin-key-of-some-length",
    }
    # A busy machine keeps newcomers waiting and would turn them away, which is the matter of other tests.
    base["server"] = {"lag_target": 60.0, **values.pop("server", {})}
    return Settings(**{**base, **values})


@asynccontextmanager
async def live(chosen: Settings, rereading: Rereading | None = None) -> AsyncGenerator[Live, None]:
    """Serve until the block ends. The prices of `up/scripted` are 1 USD in and 2 USD out per million tokens.

    `rereading`: how the settings are read again.
    """
    app = create_app(chosen, rereading or Rereading())
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        server = uvicorn.Server(
            uvicorn.Config(
                app,
                http=protocol(Limits(), app.doors, app.sockets),
                ws=Socket,
                log_config=None,  # as the product: how a process logs is not for each of its gateways to set
                log_level="error",
                lifespan="on",
                access_log=False,
                proxy_headers=False,
            )
        )
        serving = asyncio.get_running_loop().create_task(server.serve(sockets=[listening]))
        try:
            while not server.started:
                if serving.done():
                    raise RuntimeError("the gateway did not start")
                await asyncio.sleep(0.01)
            services: Services = app.control.services
            await services.prices.set(
                "up/scripted", input_usd="1.00", output_usd="2.00", actor="test", effective_from=0.0
            )
            made = await services.keyring.create(ADMIN, NewKey(name="test", team="acme", project="app"))
            async with aiohttp.ClientSession() as client:
                gateway = Live(f"http://127.0.0.1:{port}", made.key, services, client)
                gateway.server = server
                yield gateway
        finally:
            server.should_exit = True
            await serving
