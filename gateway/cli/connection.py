"""How a control command reaches the gateway: its admin socket when it runs, the files themselves when it does not.

Both ways speak the same HTTP, so a command never knows which one it got. Knows: the socket, the lock, which parts the
control plane needs. Does not know: commands.
"""

import asyncio
import socket
import time
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any, BinaryIO

import httpx
import msgspec

from gateway.cli.in_process import SINK, InProcess
from gateway.cli.wrong import Wrong
from gateway.serve_home import is_held
from gateway.settings import Settings

if TYPE_CHECKING:
    from litestar.types import ASGIApp

_TIMEOUT = 60.0
_LONGEST = 3_600.0  # checking, closing and adding up whole months take minutes; a gateway that dies ends it at once
_STARTING_SECONDS = 10.0
_AGAIN_SECONDS = 0.1
_decode = msgspec.json.Decoder().decode


class Control:
    """Asks the control plane. Raises Wrong with the gateway's own message for every refusal."""

    def __init__(self, client: httpx.AsyncClient, runner: asyncio.Runner) -> None:
        self._client = client
        self._runner = runner

    def ask(
        self,
        method: str,
        path: str,
        *,
        params: dict[str, Any] | None = None,
        body: object = None,
        content: bytes | None = None,
    ) -> Any:
        """The decoded answer; None for an empty one."""
        given = {name: value for name, value in (params or {}).items() if value is not None}
        raw = msgspec.json.encode(body) if body is not None else content
        answer = self._runner.run(self._send(method, path, given, raw))
        if answer.status_code >= 400:
            raise Wrong(_problem(answer))
        return _decode(answer.content) if answer.content else None

    def save(self, path: str, params: dict[str, Any], file: BinaryIO) -> None:
        """Write the answer's body into `file` as it comes. Raises Wrong with the gateway's own message."""
        given = {name: value for name, value in params.items() if value is not None}
        self._runner.run(self._save(path, given, file))

    async def _save(self, path: str, params: dict[str, Any], file: BinaryIO) -> None:
        try:
            async with self._client.stream("GET", path, params=params, extensions={SINK: file}) as answer:
                if answer.status_code >= 400:
                    await answer.aread()
                    raise Wrong(_problem(answer))
                async for block in answer.aiter_bytes():
                    file.write(block)
        except httpx.HTTPError as error:
            raise Wrong(f"the gateway broke off: {error!r}") from error

    async def _send(self, method: str, path: str, params: dict[str, Any], raw: bytes | None) -> httpx.Response:
        headers = {} if raw is None else {"content-type": "application/json"}
        try:
            return await self._client.request(method, path, params=params, content=raw, headers=headers)
        except (httpx.ReadError, httpx.ReadTimeout, httpx.RemoteProtocolError) as error:
            if method == "GET":
                raise Wrong(f"the gateway did not answer: {error!r}") from error
            lost = f"the gateway went away before it answered ({error!r}): what was asked may be done all the same"
            raise Wrong(f"{lost}; look before you ask again") from error
        except httpx.HTTPError as error:
            raise Wrong(f"the gateway did not answer: {error!r}") from error


def _problem(answer: httpx.Response) -> str:
    try:
        return str(_decode(answer.content)["error"]["message"])
    except (msgspec.DecodeError, KeyError, TypeError):
        return f"the gateway answered {answer.status_code}"


def running(settings: Settings) -> bool:
    """Whether a gateway listens on this home's admin socket."""
    path = str(settings.home / "run" / "admin.sock")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(2.0)
        try:
            probe.connect(path)
        except OSError:
            return False
    return True


def _reached(settings: Settings) -> bool:
    """Whether to ask over the socket. A gateway that holds the home but does not listen yet is given a moment."""
    until = time.monotonic() + _STARTING_SECONDS
    while not running(settings):
        if not is_held(settings.home) or time.monotonic() > until:
            return False
        time.sleep(_AGAIN_SECONDS)
    return True


@contextmanager
def control(settings: Settings) -> Generator[Control, None, None]:
    """A way to ask the control plane as administrator. Raises Wrong when neither way is open."""
    with asyncio.Runner() as runner:
        stack = _over_socket(settings) if _reached(settings) else _opened(settings)
        client = runner.run(stack.__aenter__())
        try:
            yield Control(client, runner)
        finally:
            runner.run(stack.__aexit__(None, None, None))


@asynccontextmanager
async def _over_socket(settings: Settings) -> AsyncGenerator[httpx.AsyncClient, None]:
    transport = httpx.AsyncHTTPTransport(uds=str(settings.home / "run" / "admin.sock"))
    patience = httpx.Timeout(_TIMEOUT, read=_LONGEST)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost", timeout=patience) as client:
        yield client


@asynccontextmanager
async def _opened(settings: Settings) -> AsyncGenerator[httpx.AsyncClient, None]:
    """Nothing runs: hold the home's lock, open what the control plane needs, and ask it in this process."""
    from gateway.cli.offline import offline_app

    async with (
        offline_app(settings) as app,
        httpx.AsyncClient(transport=_transport(app), base_url="http://localhost") as client,
    ):
        yield client


def _transport(app: "ASGIApp") -> httpx.AsyncBaseTransport:
    return InProcess(app)
