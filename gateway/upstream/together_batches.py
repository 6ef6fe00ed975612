"""Together's batches: OpenAI's files under an address of their own, jobs without names, states in capitals.

Knows: how a file is told, that a job is known by the file it was made of, which has a name. Does not know: the order
of steps (`gateway.upstream.openai_batches`).
Source: docs.together.ai/docs/inference/batch, docs.together.ai/reference: upload-file, batch-create, batch-list.
"""

from collections.abc import AsyncGenerator

from gateway.call import Body
from gateway.upstream.batching import Returned, told_row
from gateway.upstream.fields import mapping, words
from gateway.upstream.openai_batches import OpenAIBatches


class TogetherBatches(OpenAIBatches):
    """Obeys gateway.upstream.batching.Batching. Its batches hold chats."""

    chats_alone = True

    async def find(self, name: str, since: float) -> str | None:  # noqa: ARG002 - both lists come whole
        """By its file, which is uploaded before and has our name."""
        files = await self._line.listed(self._places.url("files"))
        mine = {words(row.get("id")) for row in files if row.get("filename") == f"{name}.jsonl"}
        if not mine:
            return None
        for row in await self._line.listed(self._places.url(self.path)):
            if words(row.get("input_file_id")) in mine:
                return self._id(row)
        return None

    async def collect(self, batch: str) -> AsyncGenerator[Returned, None]:
        told = await self._told(batch)
        for file in (words(told.get("output_file_id")), words(told.get("error_file_id"))):
            if file:
                async for row in self._line.lines(self._places.url(f"files/{file}/content")):
                    yield told_row(row)

    def _upload(self, name: str) -> tuple[str, Body]:
        return "files/upload", {"purpose": "batch-api", "file_name": name, "file_type": "jsonl"}

    def _id(self, told: Body) -> str:
        return super()._id(mapping(told.get("job")) or told)

    def _asked(self, name: str, body: Body, endpoint: str) -> Body:  # noqa: ARG002 - the batch has the address
        return {"custom_id": name, "body": body}

    def _wanted(self, name: str, file: str, endpoint: str, model: str) -> Body:  # noqa: ARG002 - it keeps no names
        return {"input_file_id": file, "endpoint": endpoint, "completion_window": "24h"}

    def _as_openai(self, told: Body) -> Body:
        job = mapping(told.get("job")) or told
        wrong = words(job.get("error"))
        return {
            **job,
            "status": words(job.get("status")).lower(),
            "errors": {"data": [{"message": wrong}] if wrong else []},
        }
