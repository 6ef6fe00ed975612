"""Batches as OpenAI has them, and those who have taken them over unchanged: a file in, two files out.

Knows: files, batches, their states and lines. Does not know: addresses (a provider hands them in), money.
Source: platform.openai.com/docs/guides/batch; learn.microsoft.com, batch deployments of Azure OpenAI;
console.groq.com/docs/batch.
"""

from collections.abc import AsyncGenerator, Callable, Sequence
from urllib.parse import quote

import msgspec
import structlog
from msgspec import Struct

from gateway.call import Body, Operation
from gateway.errors import GatewayError, UpstreamFailed, UpstreamRefused
from gateway.providers import Sending
from gateway.transport import ConnectFailed
from gateway.upstream.batching import Line, Returned, Row, only_chats, status_of
from gateway.upstream.fields import mapping, objects, whole_number, words
from gateway.upstream.passing import form

_OVER = frozenset({"completed", "failed", "expired", "cancelled"})
# For one that was handed in and never confirmed the newest are looked through, back to when that may have been.
PAGE, _MOST_PAGES = 100, 100
_CLOCKS_APART = 3_600.0  # seconds by which the service's clock may be behind ours
_encode = msgspec.json.Encoder().encode
log = structlog.get_logger("nearhit.batches")


class Places(Struct, frozen=True):
    """`url`: the address of a path such as `files/file-1/content`; `endpoint`: what a line and a batch name."""

    url: Callable[[str], str]
    endpoint: Callable[[Operation], str]


class OpenAIBatches:
    """Obeys gateway.upstream.batching.Batching. `body`: a request as the service gets it.

    What has its own batches beside such files says in what they differ (`gateway.upstream.mistral_batches`).
    """

    path = "batches"
    chats_alone = False

    def __init__(self, line: Line, places: Places, body: Callable[[Sending], Body]) -> None:
        self._line = line
        self._places = places
        self._body = body

    async def hand_in(self, name: str, operation: Operation, rows: Sequence[Row]) -> str:
        if self.chats_alone:
            only_chats(self._line.name, operation)
        endpoint = self._places.endpoint(operation)
        lines = [_encode(self._asked(row.name, self._body(row.sending), endpoint)) for row in rows]
        file = await self._uploaded(f"{name}.jsonl", b"\n".join(lines))
        wanted = self._wanted(name, file, endpoint, rows[0].sending.model)
        try:
            return self._id(await self._line.ask("POST", self._places.url(self.path), _encode(wanted)))
        except UpstreamRefused:
            await self._delete(file)
            raise
        except UpstreamFailed as error:  # a proxy's 504 may stand before a batch that runs: `find` knows
            error.doubtful = not isinstance(error.__cause__, ConnectFailed)
            raise

    async def find(self, name: str, since: float) -> str | None:
        last = ""
        for number in range(_MOST_PAGES):
            page = await self._line.ask("GET", self._places.url(f"{self.path}?{self._page(number, last)}"))
            rows = objects(page.get("data"))
            for row in rows:
                if mapping(row.get("metadata")).get("nearhit") == name:
                    return self._id(row)
            oldest = whole_number(rows[-1].get("created_at")) if rows else None
            if not self._has_more(number, page) or oldest is None or oldest < since - _CLOCKS_APART:
                return None
            last = words(rows[-1].get("id"))
        raise LookupError(f"{self._line.name} has made too many batches since, so {name} cannot be looked for")

    async def look(self, batch: str) -> str | None:
        told = await self._told(batch)
        if words(told.get("status")) not in _OVER:
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
        await self._line.ask("POST", self._places.url(f"{self.path}/{batch}/cancel"))

    async def forget(self, batch: str) -> None:
        told = await self._told(batch)
        for kind in ("input_file_id", "output_file_id", "error_file_id"):
            if file := words(told.get(kind)):
                await self._delete(file)

    async def _uploaded(self, name: str, content: bytes) -> str:
        path, fields = self._upload(name)
        kind, told = form(fields, [("file", name, "application/jsonl", content)])
        try:
            return words((await self._line.ask("POST", self._places.url(path), told, kind)).get("id"))
        except UpstreamFailed as error:
            error.doubtful = False  # a file that nobody names costs nothing
            raise

    async def _delete(self, file: str) -> None:
        try:
            await self._line.ask("DELETE", self._places.url(f"files/{file}"))
        except GatewayError as error:
            log.warning("a provider keeps a batch's file", provider=self._line.name, error=error.message[:200])

    async def _told(self, batch: str) -> Body:
        return self._as_openai(await self._line.ask("GET", self._places.url(f"{self.path}/{batch}")))

    # -- what others do differently ------------------------------------------------------------------------------

    def _upload(self, name: str) -> tuple[str, Body]:  # noqa: ARG002 - others want it told apart
        """Where a file goes, and what is told of it."""
        return "files", {"purpose": "batch"}

    def _id(self, told: Body) -> str:
        """Raises UpstreamFailed where none is told."""
        if found := words(told.get("id")):
            return found
        raise UpstreamFailed(f"{self._line.name} did not say which batch it has made.")

    def _asked(self, name: str, body: Body, endpoint: str) -> Body:
        return {"custom_id": name, "method": "POST", "url": endpoint, "body": body}

    def _wanted(self, name: str, file: str, endpoint: str, model: str) -> Body:  # noqa: ARG002 - it stands in each line
        window = {"completion_window": "24h", "metadata": {"nearhit": name}}
        return {"input_file_id": file, "endpoint": endpoint, **window}

    def _page(self, number: int, last: str) -> str:  # noqa: ARG002 - others count them
        return f"limit={PAGE}" + (f"&after={quote(last, safe='')}" if last else "")

    def _has_more(self, number: int, page: Body) -> bool:  # noqa: ARG002 - as above
        return bool(page.get("has_more"))

    def _as_openai(self, told: Body) -> Body:
        return told


def _returned(row: Body) -> Returned:
    response, error = mapping(row.get("response")), mapping(row.get("error"))
    name = words(row.get("custom_id"))
    if status := status_of(response):
        return Returned(name, status, _encode(response.get("body")))
    return Returned(name, code=words(error.get("code")), message=words(error.get("message")))
