"""Azure OpenAI as a fake: the scripted answers under Azure's addresses, with the filter results it adds."""

from contextlib import aclosing

import msgspec

from gateway.call import Body, Chunk, Operation
from gateway.providers import Sending, load
from gateway.settings import ProviderSettings
from gateway.tasks import Tasks
from gateway.transport.direct import DirectTransport
from tests.wire_upstream import Answer, Request

encode = msgspec.json.encode
OPERATIONS: dict[str, Operation] = {
    "chat/completions": "chat",
    "completions": "completion",
    "embeddings": "embedding",
}
FILTERED: Body = {"id": "", "object": "", "created": 0, "model": "", "choices": [], "prompt_filter_results": []}


class Azure:
    """Refuses what the service refuses without fail: an unknown deployment, a request without a version, and
    `max_tokens` for a model that reasons.
    """

    def __init__(self, deployments: frozenset[str] = frozenset({"m", "cohere.embed-x"})) -> None:
        self.deployments = deployments
        settings = ProviderSettings(kind="scripted")
        self._scripted = load("scripted").build("azure", settings, transport=DirectTransport(), tasks=Tasks())

    async def answer(self, asked: Request) -> Answer:
        path, _, query = asked.path.partition("?")
        start, _, rest = path.removeprefix("/openai/deployments/").partition("/")
        if asked.line.startswith("GET "):
            return Answer(body=encode({"data": [{"id": "gpt-fake"}]}))
        if not query.startswith("api-version=") or start not in self.deployments or rest not in OPERATIONS:
            error = {"code": "DeploymentNotFound", "message": "The API deployment for this resource does not exist."}
            return Answer(status="404 Not Found", body=encode({"error": error}))
        if start.startswith("gpt-5") and "max_tokens" in asked.body:
            error = {"code": "unsupported_parameter", "param": "max_tokens", "message": "Use 'max_completion_tokens'."}
            return Answer(status="400 Bad Request", body=encode({"error": error}))
        chunks = await self._chunks(asked.body, OPERATIONS[rest])
        if not asked.body.get("stream"):
            return Answer(body=encode(chunks[0].data))
        events = [b"data: %b\n\n" % encode(body) for body in (FILTERED, *(chunk.data for chunk in chunks))]
        kind = ("content-type: text/event-stream",)
        return Answer(headers=kind, opening=b"".join(events[:2]), events=[*events[2:], b"data: [DONE]\n\n"])

    async def _chunks(self, body: Body, operation: Operation) -> list[Chunk]:
        sending = Sending(
            id="a",
            operation=operation,
            model=str(body["model"]),
            body=body,
            stream=body.get("stream") is True,
            tenant="",
            timeout=5.0,
            idle=5.0,
        )
        async with aclosing(self._scripted.send(sending)) as chunks:
            return [chunk async for chunk in chunks]

    def failure(self) -> Answer:
        return Answer(status="500 Internal Server Error", body=encode({"error": {"message": "no"}}))
