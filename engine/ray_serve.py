# pyright: reportMissingImports=false, reportUntypedClassDecorator=false, reportAttributeAccessIssue=false
# (ray is an extra, and has no types for its decorators)
"""The engine on Ray Serve: replicas on as many machines as a Ray cluster has. Needs the extra `ray`.

Knows: one deployment whose replicas each keep an engine process. Does not know: placement, autoscaling, HTTP proxies,
health between machines: those are Ray Serve's (`num_replicas`, `autoscaling_config`, `ray_actor_options`).

    serve.run(application("demo", num_replicas=2))                    # from Python
    serve run engine.ray_serve:build model=demo num_replicas=2        # from a shell

POST a JSON `{"messages": […], "max_tokens": 64, "temperature": 0}` (or `prompt`): the answer is a stream of JSON lines,
one delta each; the last has `finish_reason` and `usage`.
"""

from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, aclosing
from itertools import count
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import asdict
from ray import serve
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from engine.api import Engine, EngineError, GenerateRequest, InvalidRequest, Overloaded, SamplingParams, left_open
from engine.host import open_engine
from engine.options import Options


class Asked(Struct, kw_only=True, forbid_unknown_fields=True):
    """What a request may hold."""

    messages: list[dict[str, object]] | None = None
    prompt: str | None = None
    max_tokens: int = 256
    temperature: float | None = None
    top_p: float | None = None
    seed: int | None = None
    stop: tuple[str, ...] = ()


_STATUS: tuple[tuple[type[EngineError], int], ...] = ((InvalidRequest, 400), (Overloaded, 429), (EngineError, 503))


@serve.deployment(max_ongoing_requests=256)
class EngineReplica:
    """One engine process and its client. Ray restarts the replica when `check_health` fails."""

    def __init__(self, model: str, options: dict[str, Any]) -> None:
        self._model = model
        self._options = msgspec.convert(options, Options)
        self._stack = AsyncExitStack()
        self._engine: Engine | None = None
        self._ids = count()

    async def check_health(self) -> None:
        """Raises EngineError or TimeoutError: this replica is of no use."""
        if self._engine is None:
            self._engine = await self._stack.enter_async_context(open_engine(self._model, self._options))

    async def generate(self, asked: dict[str, Any]) -> AsyncGenerator[dict[str, Any], None]:
        """Deltas as plain dictionaries, for callers with a handle of the deployment. Raises EngineError."""
        request = _request(msgspec.convert(asked, Asked), next(self._ids))
        await self.check_health()
        assert self._engine is not None
        async with aclosing(self._engine.generate(request)) as deltas:
            async for delta in deltas:
                yield msgspec.to_builtins(delta)

    async def __call__(self, http: Request) -> Response:
        """A stream of JSON lines; 400, 429 or 503 with the reason while nothing was said yet."""
        try:
            asked = msgspec.to_builtins(msgspec.json.decode(await http.body(), type=Asked))
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


def _request(asked: Asked, number: int) -> GenerateRequest:
    sampling = SamplingParams(
        max_tokens=asked.max_tokens,
        temperature=1.0 if asked.temperature is None else asked.temperature,
        top_p=1.0 if asked.top_p is None else asked.top_p,
        seed=asked.seed,
        stop=asked.stop,
    )
    return GenerateRequest(
        id=str(number), messages=asked.messages, text=asked.prompt, sampling=sampling, left=left_open(asdict(asked))
    )


def application(model: str, *, num_replicas: int = 1, **options: Any) -> serve.Application:
    """`options` as fields of engine.options.Options."""
    return EngineReplica.options(num_replicas=num_replicas).bind(model, options)


def build(arguments: dict[str, Any]) -> serve.Application:
    """For `serve run engine.ray_serve:build model=… num_replicas=…`."""
    given = dict(arguments)
    return application(str(given.pop("model")), num_replicas=int(given.pop("num_replicas", 1)), **given)
