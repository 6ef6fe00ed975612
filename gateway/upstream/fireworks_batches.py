"""Fireworks' batch inference jobs: a dataset in, a dataset out, the model beside both.

Knows: datasets, jobs under ids of ours, files at addresses that are told for some minutes. Does not know: how requests
and answers are spoken (`gateway.upstream.openai_http`), money.
Source: docs.fireworks.ai/guides/batch-inference and its API reference: datasets, batch inference jobs; the shapes of
its client, fireworks-ai (types/batch_inference_job, types/dataset).
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from urllib.parse import quote

import msgspec
import structlog

from gateway.call import Body, Operation
from gateway.errors import GatewayError, InvalidRequest, UpstreamFailed, UpstreamRefused
from gateway.ids import uuid7
from gateway.providers import Sending
from gateway.transport import ConnectFailed
from gateway.upstream.batching import Line, Returned, Row, only_chats, told_row
from gateway.upstream.fields import mapping, words
from gateway.upstream.passing import form

_ANSWERED = frozenset({"COMPLETED", "EXPIRED", "EARLY_STOPPED", "CANCELLED"})
_OVER = _ANSWERED | {"FAILED", "DELETING", "DELETING_CLEANING_UP", "DELETED", "ARCHIVED"}
_LOOKS, _PAUSE = 240, 0.5  # for a dataset to be ready: two minutes
_encode = msgspec.json.Encoder().encode
log = structlog.get_logger("nearhit.batches")


class FireworksBatches:
    """Obeys gateway.upstream.batching.Batching. `account`: the address of all that is one account's; `body`: a request
    as the service gets it.

    A job that is under way cannot be called off: to delete it is all there is, and nobody would tell what was run and
    billed by then.
    """

    chats_alone = True

    def __init__(self, line: Line, account: str, body: Callable[[Sending], Body]) -> None:
        self._line = line
        self._account = account
        self._body = body

    async def hand_in(self, name: str, operation: Operation, rows: Sequence[Row]) -> str:
        only_chats(self._line.name, operation)
        lines = [_encode({"custom_id": row.name, "body": _without_model(self._body(row.sending))}) for row in rows]
        dataset = await self._uploaded(b"\n".join(lines), len(rows))
        job = f"nearhit-{name}"
        wanted = {"displayName": job, "model": rows[0].sending.model, "inputDatasetId": dataset}
        try:
            await self._line.ask("POST", self._url(f"batchInferenceJobs?batchInferenceJobId={job}"), _encode(wanted))
        except UpstreamRefused as error:
            await self._delete(dataset)
            if error.http_status == 409:  # ours, of an earlier try
                return job
            raise
        except UpstreamFailed as error:  # a proxy's 504 may stand before a job that runs: `find` knows
            error.doubtful = not isinstance(error.__cause__, ConnectFailed)
            raise
        return job

    async def find(self, name: str, since: float) -> str | None:  # noqa: ARG002 - its id is ours
        try:
            await self._told(f"nearhit-{name}")
        except UpstreamRefused as error:
            if error.http_status == 404:
                return None
            raise
        return f"nearhit-{name}"

    async def look(self, batch: str) -> str | None:
        told = await self._told(batch)
        if _state(told) not in _OVER:
            return None
        status = mapping(told.get("status"))
        return words(status.get("message")) if status.get("code") not in (None, "OK") else ""

    async def collect(self, batch: str) -> AsyncGenerator[Returned, None]:
        told = await self._told(batch)
        output = words(told.get("outputDatasetId"))
        if _state(told) not in _ANSWERED or not output:
            return
        url = self._dataset(output, ":getDownloadEndpoint")
        files = mapping((await self._line.ask("GET", url)).get("filenameToSignedUrls"))
        for file in sorted(files):
            async for row in self._line.lines(words(files[file]), told_by=url):
                yield told_row(row)

    async def call_off(self, batch: str) -> None:  # noqa: ARG002 - none of them can be
        message = f"{self._line.name} cannot stop a batch without losing what it has run; its end is waited for."
        raise InvalidRequest(message, code="unsupported_operation")

    async def forget(self, batch: str) -> None:
        told = await self._told(batch)
        for dataset in (words(told.get("inputDatasetId")), words(told.get("outputDatasetId"))):
            if dataset:
                await self._delete(dataset)
        await self._line.tell("DELETE", self._url(f"batchInferenceJobs/{batch}"))

    # -- datasets ------------------------------------------------------------------------------------------------

    async def _uploaded(self, content: bytes, rows: int) -> str:
        """The name of a dataset that is ready."""
        dataset = f"nearhit-{uuid7()}"
        made: Body = {"datasetId": dataset, "dataset": {"userUploaded": {}, "exampleCount": str(rows)}}
        kind, told = form({}, [("file", "requests.jsonl", "application/jsonl", content)])
        try:
            name = words((await self._line.ask("POST", self._url("datasets"), _encode(made))).get("name"))
            await self._line.tell("POST", self._dataset(dataset, ":upload"), told, kind)
            for _ in range(_LOOKS):
                if (await self._line.ask("GET", self._dataset(dataset))).get("state") == "READY":
                    return name or dataset
                await asyncio.sleep(_PAUSE)
        except UpstreamFailed as error:
            error.doubtful = False  # a dataset that no job names costs nothing
            raise
        await self._delete(dataset)
        raise UpstreamFailed(f"{self._line.name} did not make a dataset ready in time.")

    async def _delete(self, dataset: str) -> None:
        try:
            await self._line.tell("DELETE", self._dataset(dataset))
        except GatewayError as error:
            log.warning("a provider keeps a batch's file", provider=self._line.name, error=error.message[:200])

    async def _told(self, batch: str) -> Body:
        return await self._line.ask("GET", self._url(f"batchInferenceJobs/{batch}"))

    def _dataset(self, name: str, verb: str = "") -> str:
        return self._url(f"datasets/{quote(name.rpartition('/')[2], safe='')}{verb}")

    def _url(self, path: str) -> str:
        return f"{self._account}/{path}"


def _state(told: Body) -> str:
    return words(told.get("state")).removeprefix("JOB_STATE_")


def _without_model(body: Body) -> Body:
    return {name: value for name, value in body.items() if name not in ("model", "stream")}
