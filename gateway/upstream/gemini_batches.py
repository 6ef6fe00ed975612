"""Google's batches: all requests in one body, all answers in the batch itself once it is over.

Knows: its operations, their states, what an answer that failed is as an error alone. Does not know: how requests and
answers are translated (`gateway.upstream.gemini_*`), files (what is sent here fits into a body), money.
Source: ai.google.dev/gemini-api/docs/batch-api; the shapes of its Python client, google-genai 3.4.0.
"""

from collections.abc import AsyncGenerator, Callable, Sequence
from datetime import datetime
from urllib.parse import quote

import msgspec

from gateway.call import Body, Operation
from gateway.errors import UpstreamFailed, UpstreamRefused
from gateway.providers import Sending
from gateway.transport import ConnectFailed
from gateway.upstream.batching import LARGEST_ANSWER, RPC_STATUS, Line, Returned, Row, only_chats
from gateway.upstream.fields import mapping, objects, whole_number, words

_OVER = frozenset({"SUCCEEDED", "FAILED", "CANCELLED", "EXPIRED"})
_PAGE, _MOST_PAGES = 100, 100
_CLOCKS_APART = 3_600.0  # seconds by which the service's clock may be behind ours
_encode = msgspec.json.Encoder().encode


class GeminiBatches:
    """Obeys gateway.upstream.batching.Batching. `base`: of all addresses; `body`: a request in Google's words."""

    chats_alone = True
    most_rows, most_bytes = 1_000, 16 << 20  # what fits into one body of 20 MB, and the answers into one as well

    def __init__(self, line: Line, base: str, path: Callable[[Sending], str], body: Callable[[Sending], Body]) -> None:
        self._line = line
        self._base = base
        self._path = path
        self._body = body

    async def hand_in(self, name: str, operation: Operation, rows: Sequence[Row]) -> str:
        only_chats(self._line.name, operation)
        requests = [{"request": self._body(row.sending), "metadata": {"key": row.name}} for row in rows]
        wanted: Body = {"batch": {"displayName": name, "inputConfig": {"requests": {"requests": requests}}}}
        url = f"{self._base}/{self._path(rows[0].sending)}:batchGenerateContent"
        try:
            made = await self._line.ask("POST", url, _encode(wanted))
        except UpstreamRefused:
            raise
        except UpstreamFailed as error:  # a proxy's 504 may stand before a batch that runs: `find` knows
            error.doubtful = not isinstance(error.__cause__, ConnectFailed)
            raise
        if found := words(made.get("name")):
            return found
        raise UpstreamFailed(f"{self._line.name} did not say which batch it has made.")

    async def find(self, name: str, since: float) -> str | None:
        token = ""
        for _ in range(_MOST_PAGES):
            more = f"&pageToken={quote(token, safe='')}" if token else ""
            page = await self._line.ask("GET", f"{self._base}/batches?pageSize={_PAGE}{more}")
            rows = objects(page.get("operations"))
            for row in rows:
                if mapping(row.get("metadata")).get("displayName") == name:
                    return words(row.get("name")) or None
            token = words(page.get("nextPageToken"))
            oldest = _seconds(mapping(rows[-1].get("metadata")).get("createTime")) if rows else None
            if not token or oldest is None or oldest < since - _CLOCKS_APART:
                return None
        raise LookupError(f"{self._line.name} has made too many batches since, so {name} cannot be looked for")

    async def look(self, batch: str) -> str | None:
        told = await self._told(batch)
        if _state(told) not in _OVER:
            return None
        return words(mapping(told.get("error")).get("message"))

    async def collect(self, batch: str) -> AsyncGenerator[Returned, None]:
        told = await self._told(batch)
        output = mapping(mapping(told.get("metadata")).get("output")) or mapping(told.get("response"))
        for row in objects(mapping(output.get("inlinedResponses")).get("inlinedResponses")):
            yield _returned(row)

    async def call_off(self, batch: str) -> None:
        await self._line.ask("POST", f"{self._base}/{batch}:cancel")

    async def forget(self, batch: str) -> None:
        await self._line.ask("DELETE", f"{self._base}/{batch}")

    async def _told(self, batch: str) -> Body:
        return await self._line.ask("GET", f"{self._base}/{batch}", limit=LARGEST_ANSWER)


def _state(told: Body) -> str:
    """`BATCH_STATE_SUCCEEDED` is also written `JOB_STATE_SUCCEEDED`."""
    return words(mapping(told.get("metadata")).get("state")).rpartition("STATE_")[2]


def _returned(row: Body) -> Returned:
    name = words(mapping(row.get("metadata")).get("key"))
    if isinstance(row.get("response"), dict):
        return Returned(name, 200, _encode(row["response"]))
    error = mapping(row.get("error"))
    status = RPC_STATUS.get(whole_number(error.get("code")) or 0, 500)
    return Returned(name, status, _encode({"error": {**error, "code": status}}))


def _seconds(value: object) -> float | None:
    """Of a timestamp; None for what is none."""
    try:
        return datetime.fromisoformat(words(value)).timestamp()
    except ValueError:
        return None
