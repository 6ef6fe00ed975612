# pyright: reportMissingImports=false, reportUntypedClassDecorator=false, reportAttributeAccessIssue=false
# (ray is an extra, and has no types for its decorators)
"""The engine on Ray Serve: replicas on as many machines as a Ray cluster has. Needs the extra `ray`.

Knows: one deployment whose replicas each keep an engine process. Does not know: placement, autoscaling, HTTP proxies,
health between machines: those are Ray Serve's (`num_replicas`, `autoscaling_config`, `ray_actor_options`).

    serve.run(application("demo", num_replicas=2))                    # from Python
    serve run engine.ray_serve:build model=demo num_replicas=2        # from a shell

POST a JSON `{"messages": […], "max_tokens": 64, "temperature": 0}` (or `prompt`), with what else an OpenAI request may
say of sampling, forms and tools (`engine.openai_body`): the answer is a stream of JSON lines, one delta each; the last
has `finish_reason` and `usage`.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, aclosing
from itertools import count
from typing import Any

import msgspec
from ray import serve
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from engine.api import Engine, EngineError, EngineFailed, GenerateRequest, InvalidRequest, Overloaded
from engine.host import open_engine
from engine.openai_body import Wrong, request
from engine.options import named

_MAX_TOKENS = 256
_STATUS: tuple[tuple[type[EngineError], int], ...] = ((InvalidRequest, 400), (Overloaded, 429), (EngineError, 503))


@serve.deployment(max_ongoing_requests=256)
class EngineReplica:
    """One engine process and its client. Ray restarts the replica when `check_health` fails."""

    def __init__(self, model: str, options: dict[str, Any]) -> None:
        self._model = model
        self._options = named(options)
        self._opening = asyncio.Lock()
        self._stack = AsyncExitStack()
        self._engine: Engine | None = None
        self._ids = count()

    async def check_health(self) -> None:
        """Raises EngineError or TimeoutError: this replica is of no use."""
        async with self._opening:  # Ray looks while requests wait for the same
            if self._engine is None:
                self._engine = await self._stack.enter_async_context(open_engine(self._model, self._options))
        if (stats := self._engine.stats()).failed:
            raise EngineFailed(stats.loading)

    async def generate(self, asked: dict[str, Any]) -> AsyncGenerator[dict[str, Any], None]:
        """Deltas as plain dictionaries, for callers with a handle of the deployment. Raises EngineError."""
        wanted = _request(asked, next(self._ids))
        await self.check_health()
        assert self._engine is not None
        async with aclosing(self._engine.generate(wanted)) as deltas:
            async for delta in deltas:
                yield msgspec.to_builtins(delta)

    async def __call__(self, http: Request) -> Response:
        """A stream of JSON lines; 400, 429 or 503 with the reason while nothing was said yet."""
        try:
            asked = msgspec.json.decode(await http.body(), type=dict[str, Any])
            deltas = self.generate(asked)
            first = await anext(deltas)
        except msgspec.MsgspecError as error:
            return JSONResponse({"error": {"message": str(error)}}, 400)
        except EngineError as error:
            status = next(code for kind, code in _STATUS if isinstance(error, kind))
            return JSONResponse({"error": {"message": str(error)}}, status)
        return StreamingResponse(_lines(first, deltas), media_type="application/jsonl")

    async def __del__(self) -> None:
        await self._stack.aclose()


async def _lines(first: dict[str, Any], rest: AsyncGenerator[dict[str, Any], None]) -> AsyncGenerator[bytes, None]:
    async with aclosing(rest) as deltas:
        yield msgspec.json.encode(first) + b"\n"
        async for delta in deltas:
            yield msgspec.json.encode(delta) + b"\n"


def _request(asked: dict[str, Any], number: int) -> GenerateRequest:
    """Raises InvalidRequest."""
    limit = {} if "max_tokens" in asked or "max_completion_tokens" in asked else {"max_tokens": _MAX_TOKENS}
    try:
        return request("/v1/completions" if "prompt" in asked else "/v1/chat/completions", asked | limit, str(number))
    except Wrong as error:
        raise InvalidRequest(str(error), param=error.param) from error


def application(model: str, *, num_replicas: int = 1, **options: Any) -> serve.Application:
    """`options` as fields of engine.options.Options. Raises ValueError for others."""
    named(options)  # here, where it is read, and not only in the log of a replica that never starts
    return EngineReplica.options(num_replicas=num_replicas).bind(model, options)


def build(arguments: dict[str, Any]) -> serve.Application:
    """For `serve run engine.ray_serve:build model=… num_replicas=… threads=…`, where every value is text."""
    given = dict(arguments)
    return application(str(given.pop("model")), num_replicas=int(given.pop("num_replicas", 1)), **given)
