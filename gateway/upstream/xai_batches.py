"""xAI's batches: a file in, answers by the page, and counts instead of states.

Knows: how a batch is made of a file and named, when its counts say that it is over. Does not know: files, the order of
steps (`gateway.upstream.openai_batches`).
Source: docs.x.ai/developers/advanced-api-usage/batch-api; its client, xai-sdk (proto v6, batch).
"""

from collections.abc import AsyncGenerator
from urllib.parse import quote

import msgspec

from gateway.call import Body
from gateway.errors import UpstreamFailed
from gateway.upstream.batching import LARGEST_ANSWER, RPC_STATUS, Returned
from gateway.upstream.fields import mapping, objects, whole_number, words
from gateway.upstream.openai_batches import PAGE, OpenAIBatches

_MOST_PAGES = 200
_CANCELLED = 1  # google.rpc.Code
_encode = msgspec.json.Encoder().encode


class XAIBatches(OpenAIBatches):
    """Obeys gateway.upstream.batching.Batching. Answers stay there: none can be deleted."""

    chats_alone = True

    async def find(self, name: str, since: float) -> str | None:  # noqa: ARG002 - the list's order is nowhere promised
        token = ""
        for _ in range(_MOST_PAGES):
            page = await self._line.ask("GET", self._places.url(f"{self.path}?{_page(token)}"))
            for row in objects(page.get("batches")):
                if row.get("name") == name:
                    return self._id(row)
            token = words(page.get("pagination_token"))
            if not token:
                return None
        raise LookupError(f"{self._line.name} has made too many batches, so {name} cannot be looked for")

    async def look(self, batch: str) -> str | None:
        """Before its file is read all counts are zero, and so they stay where the file is refused or the batch is
        called off: the words of the refusal and the time of the end tell those from the first.
        """
        told = await self._told(batch)
        if refused := words(told.get("cancel_by_xai_message")):
            return refused
        counts = mapping(told.get("state"))
        if whole_number(counts.get("num_pending")):
            return None
        return "" if whole_number(counts.get("num_requests")) or told.get("cancel_time") else None

    async def collect(self, batch: str) -> AsyncGenerator[Returned, None]:
        token, seen = "", set[str]()
        while True:
            url = self._places.url(f"{self.path}/{batch}/results?{_page(token)}")
            page = await self._line.ask("GET", url, limit=LARGEST_ANSWER)
            for row in objects(page.get("results")):
                yield _returned(row)
            token = words(page.get("pagination_token"))
            if not token:
                return
            if token in seen:
                raise UpstreamFailed(f"{self._line.name} told the same page of a batch twice.")
            seen.add(token)

    async def call_off(self, batch: str) -> None:
        await self._line.ask("POST", self._places.url(f"{self.path}/{batch}:cancel"))

    def _upload(self, name: str) -> tuple[str, Body]:  # noqa: ARG002 - the file's own name is told with it
        return "files", {}

    def _id(self, told: Body) -> str:
        return super()._id({"id": words(told.get("batch_id")) or told.get("id")})

    def _wanted(self, name: str, file: str, endpoint: str, model: str) -> Body:  # noqa: ARG002 - each line has them
        return {"name": name, "input_file_id": file}


def _page(token: str) -> str:
    return f"limit={PAGE}" + (f"&pagination_token={quote(token, safe='')}" if token else "")


def _returned(row: Body) -> Returned:
    name, result = words(row.get("batch_request_id")), mapping(row.get("batch_result"))
    answer = mapping(result.get("response")).get("chat_get_completion")
    if isinstance(answer, dict):
        return Returned(name, 200, _encode(answer))
    error = mapping(result.get("error")) or mapping(row.get("error"))
    code, message = whole_number(error.get("code")), words(error.get("message")) or words(row.get("error_message"))
    if code == _CANCELLED:
        return Returned(name, code="cancelled", message=message)
    return Returned(name, RPC_STATUS.get(code or 0, 500), _encode({"error": {"message": message, "code": code}}))
