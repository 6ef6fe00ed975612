"""Amazon Bedrock's model invocation jobs: requests in a file in S3, answers in another beside it.

Knows: jobs, their states and records in the words of Converse, the objects that one reads and writes, errors of S3.
Does not know: signatures (`gateway.upstream.sigv4`), how requests and answers are translated
(`gateway.upstream.bedrock_*`), money.
Source: AWS's API reference of Bedrock (2023-04-20): CreateModelInvocationJob and those beside it; its user guide: batch
inference; S3's API reference: PutObject, GetObject, DeleteObject.
"""

import re
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from urllib.parse import quote

import msgspec
import structlog
from msgspec import Struct

from gateway.call import Body, Operation
from gateway.errors import GatewayError, UpstreamFailed, UpstreamRefused
from gateway.providers import Sending
from gateway.transport import ConnectFailed
from gateway.transport.refusal import in_doubt
from gateway.upstream.batching import Line, Returned, Row, only_chats
from gateway.upstream.fields import mapping, objects, whole_number, words
from gateway.upstream.native import Answered

_OVER = frozenset({"Completed", "PartiallyCompleted", "Failed", "Stopped", "Expired"})
_ANSWERED = frozenset({"Completed", "PartiallyCompleted"})
_HOURS = 24
_LONGEST_RECORD = 11  # digits of a record's id: older models take ids of eleven letters and digits alone
_PAGE, _MOST_PAGES = 100, 50
_IN = "requests.jsonl"
_XML = re.compile(rb"<(Code|Message)>([^<]*)</\1>")
_encode = msgspec.json.Encoder().encode
log = structlog.get_logger("nearhit.batches")


class Store(Struct, frozen=True, kw_only=True):
    """Where jobs and their files are. `control`: the address of Bedrock's jobs; `url`: that of the bucket's objects;
    `role`: what Bedrock reads and writes them as.
    """

    control: str
    url: str
    bucket: str
    prefix: str
    role: str
    least: int


class BedrockBatches:
    """Obeys gateway.upstream.batching.Batching. `body`: a request in Converse's words."""

    chats_alone = True

    def __init__(self, line: Line, store: Store, body: Callable[[Sending], Body]) -> None:
        self._line = line
        self._store = store
        self._body = body
        self.least_rows = store.least

    async def hand_in(self, name: str, operation: Operation, rows: Sequence[Row]) -> str:
        only_chats(self._line.name, operation)
        records = [{"recordId": row.name.zfill(_LONGEST_RECORD), "modelInput": self._body(row.sending)} for row in rows]
        try:
            content = b"\n".join(_encode(record) for record in records)
            await self._line.tell("PUT", self._object(f"{name}/{_IN}"), content, "application/jsonl")
        except UpstreamFailed as error:
            error.doubtful = False  # an object that no job names costs nothing
            raise
        wanted: Body = {
            "jobName": f"nearhit-{name}",
            "clientRequestToken": name,
            "roleArn": self._store.role,
            "modelId": rows[0].sending.model,
            "modelInvocationType": "Converse",
            "inputDataConfig": {"s3InputDataConfig": {"s3InputFormat": "JSONL", "s3Uri": self._uri(f"{name}/{_IN}")}},
            "outputDataConfig": {"s3OutputDataConfig": {"s3Uri": self._uri(f"{name}/out/")}},
            "timeoutDurationInHours": _HOURS,
        }
        try:
            made = await self._line.ask("POST", f"{self._store.control}/model-invocation-job", _encode(wanted))
        except UpstreamRefused as refused:
            if refused.upstream_error.get("type") == "ConflictException":  # nobody but us gives such a name
                raise in_doubt(f"{self._line.name} has a job of that name: {refused.message}") from refused
            try:
                await self._delete(f"{name}/{_IN}")
            except GatewayError as error:  # the refusal is what has to be told
                log.warning("a provider keeps a batch's file", provider=self._line.name, error=error.message[:200])
            raise
        except UpstreamFailed as error:  # a proxy's 504 may stand before a job that runs: `find` knows
            error.doubtful = not isinstance(error.__cause__, ConnectFailed)
            raise
        if arn := words(made.get("jobArn")):
            return arn
        raise UpstreamFailed(f"{self._line.name} did not say which job it has made.")

    async def find(self, name: str, since: float) -> str | None:  # noqa: ARG002 - they are asked for by name
        token = ""
        for _ in range(_MOST_PAGES):
            more = f"&nextToken={quote(token, safe='')}" if token else ""
            query = f"maxResults={_PAGE}&nameContains=nearhit-{name}{more}"
            page = await self._line.ask("GET", f"{self._store.control}/model-invocation-jobs?{query}")
            for job in objects(page.get("invocationJobSummaries")):
                if job.get("jobName") == f"nearhit-{name}":
                    return words(job.get("jobArn")) or None
            token = words(page.get("nextToken"))
            if not token:
                return None
        raise LookupError(f"{self._line.name} lists too many jobs, so {name} cannot be looked for")

    async def look(self, batch: str) -> str | None:
        told = await self._told(batch)
        return words(told.get("message")) if words(told.get("status")) in _OVER else None

    async def collect(self, batch: str) -> AsyncGenerator[Returned, None]:
        told = await self._told(batch)
        try:
            async for record in self._line.lines(self._object(self._output(told, f"{_IN}.out"))):
                yield _returned(record)
        except UpstreamRefused as error:
            # A job that was stopped, or never began, may have written nothing.
            if error.http_status != 404 or words(told.get("status")) in _ANSWERED:
                raise UpstreamFailed(f"{self._line.name} wrote no answers where they were to be.") from error

    async def call_off(self, batch: str) -> None:
        await self._line.tell("POST", f"{self._job(batch)}/stop")

    async def forget(self, batch: str) -> None:
        told = await self._told(batch)
        failed: GatewayError | None = None
        outputs = (self._output(told, f"{_IN}.out"), self._output(told, "manifest.json.out"))
        for key in (f"{self._name(told)}/{_IN}", *outputs):
            try:
                await self._delete(key)
            except GatewayError as error:
                failed = error
        if failed is not None:
            raise failed

    # -- where things are ----------------------------------------------------------------------------------------

    async def _told(self, batch: str) -> Body:
        return await self._line.ask("GET", self._job(batch))

    def _job(self, batch: str) -> str:
        return f"{self._store.control}/model-invocation-job/{quote(batch, safe='')}"

    @staticmethod
    def _name(told: Body) -> str:
        return words(told.get("jobName")).removeprefix("nearhit-")

    def _output(self, told: Body, file: str) -> str:
        """The job makes a folder of its own id."""
        return f"{self._name(told)}/out/{words(told.get('jobArn')).rpartition('/')[2]}/{file}"

    def _object(self, key: str) -> str:
        return f"{self._store.url}/{quote(self._store.prefix + key, safe='/-_.~')}"

    def _uri(self, key: str) -> str:
        return f"s3://{self._store.bucket}/{self._store.prefix}{key}"

    async def _delete(self, key: str) -> None:
        await self._line.tell("DELETE", self._object(key))


def as_json(answered: Answered) -> Answered:
    """S3 refuses in XML; its code and words as Bedrock would tell them."""
    found = {name.decode().lower(): text.decode("utf-8", "replace") for name, text in _XML.findall(answered.raw)}
    if not found or not answered.raw.lstrip().startswith(b"<"):
        return answered
    headers: Mapping[str, str] = {**answered.headers, "x-amzn-errortype": found.get("code", "")}
    return Answered(answered.status, headers, _encode({"message": found.get("message") or found.get("code", "")}))


def _returned(record: Body) -> Returned:
    name = words(record.get("recordId")).lstrip("0") or "0"
    if isinstance(record.get("modelOutput"), dict):
        return Returned(name, 200, _encode(record["modelOutput"]))
    error = mapping(record.get("error"))
    code = whole_number(error.get("errorCode"))
    status = code if code is not None and 400 <= code < 600 else 500
    return Returned(name, status, _encode({"message": words(error.get("errorMessage"))}))
