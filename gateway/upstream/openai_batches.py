"""Batches as OpenAI has them, and those who have taken them over unchanged: a file in, two files out.

Knows: files, batches, their states and lines. Does not know: addresses (a provider hands them in), money.
Source: platform.openai.com/docs/guides/batch; learn.microsoft.com, batch deployments of Azure OpenAI;
console.groq.com/docs/batch.
"""

from collections.abc import AsyncGenerator, Callable, Sequence

import msgspec
from msgspec import Struct

from gateway.call import Body, Operation
from gateway.errors import GatewayError, UpstreamFailed
from gateway.providers import Sending
from gateway.upstream.batching import Line, Returned, Row
from gateway.upstream.fields import mapping, objects, whole_number, words
from gateway.upstream.passing import form

_OVER = frozenset({"completed", "failed", "expired", "cancelled"})
_LOOKED_THROUGH = 100  # of the newest batches, for one that was handed in and never confirmed
_encode = msgspec.json.Encoder().encode


class Places(Struct, frozen=True):
    """`url`: the address of a path such as `files/file-1/content`; `endpoint`: what a line and a batch name."""

    url: Callable[[str], str]
    endpoint: Callable[[Operation], str]


class OpenAIBatches:
    """Obeys gateway.upstream.batching.Batching. `body`: a request as the service gets it."""

    def __init__(self, line: Line, places: Places, body: Callable[[Sending], Body]) -> None:
        self._line = line
        self._places = places
        self._body = body

    async def hand_in(self, name: str, operation: Operation, rows: Sequence[Row]) -> str:
        endpoint = self._places.endpoint(operation)
        lines = [
            _encode({"custom_id": row.name, "method": "POST", "url": endpoint, "body": self._body(row.sending)})
            for row in rows
        ]
        kind, content = form({"purpose": "batch"}, [("file", f"{name}.jsonl", "application/jsonl", b"\n".join(lines))])
        try:
            file = words((await self._line.ask("POST", self._places.url("files"), content, kind)).get("id"))
        except UpstreamFailed as error:
            error.doubtful = False  # a file that nobody names costs nothing
            raise
        wanted = {
            "input_file_id": file,
            "endpoint": endpoint,
            "completion_window": "24h",
            "metadata": {"nearhit": name},
        }
        made = await self._line.ask("POST", self._places.url("batches"), _encode(wanted))
        return _id(made, self._line.name)

    async def find(self, name: str) -> str | None:
        rows = objects((await self._line.ask("GET", self._places.url(f"batches?limit={_LOOKED_THROUGH}"))).get("data"))
        mine = [row for row in rows if mapping(row.get("metadata")).get("nearhit") == name]
        return _id(mine[0], self._line.name) if mine else None

    async def look(self, batch: str) -> str | None:
        told = await self._told(batch)
        if told.get("status") not in _OVER:
            return None
        wrong = objects(mapping(told.get("errors")).get("data"))
        return words(wrong[0].get("message")) if wrong else ""

    async def collect(self, batch: str) -> AsyncGenerator[Returned, None]:
        told = await self._told(batch)
        for file in (words(told.get("output_file_id")), words(told.get("error_file_id"))):
            if file:
                async for row in self._line.lines(self._places.url(f"files/{file}/content")):
                    yield _returned(row)

    async def call_off(self, batch: str) -> None:
        try:
            await self._line.ask("POST", self._places.url(f"batches/{batch}/cancel"))
        except GatewayError:
            if await self.look(batch) is None:
                raise  # else it was quicker

    async def _told(self, batch: str) -> Body:
        return await self._line.ask("GET", self._places.url(f"batches/{batch}"))


def _returned(row: Body) -> Returned:
    response, error = mapping(row.get("response")), mapping(row.get("error"))
    status = whole_number(response.get("status_code"))
    name = words(row.get("custom_id"))
    if status:
        return Returned(name, status, _encode(response.get("body")))
    return Returned(name, code=words(error.get("code")), message=words(error.get("message")))


def _id(told: Body, name: str) -> str:
    if found := words(told.get("id")):
        return found
    raise UpstreamFailed(f"{name} did not say which batch it has made.")
