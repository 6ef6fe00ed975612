"""Batches at the scripted upstream, as OpenAI, Mistral and Anthropic have them: handed in, run after a while, fetched.

Knows: files and batches in memory, bounded, their states, and one line in the bill for each request that was run. Does
not know: HTTP beyond a method, a path and a body; what is said (`scripted_answers`).
"""

import asyncio
import re
import time
from collections.abc import Callable
from typing import Literal
from urllib.parse import parse_qsl

import msgspec
from msgspec import Struct

from gateway.call import Body, Operation
from gateway.scripted_answers import Lines, Request, Script, count, misfortune, script, texts, vector
from gateway.scripted_calls import Books, bytes_response, response, usage_body
from policies.money import Usage

_MOST = 1_000  # files and batches
_PAGE = 100
_ENDPOINTS: dict[str, Operation] = {
    "/v1/chat/completions": "chat",
    "/chat/completions": "chat",
    "/v1/completions": "completion",
    "/v1/embeddings": "embedding",
}
_PART = re.compile(rb'name="(\w+)"[^\r]*\r\n(?:[^\r\n]+\r\n)*\r\n(.*?)\r\n--', re.DOTALL)
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(dict[str, object]).decode
_request = msgspec.json.Decoder(Request).decode


class Told(Struct, frozen=True):
    """A whole response. `cut`: of which half is sent, and then the connection is closed."""

    raw: bytes
    cut: bool = False


class Asked(Struct, frozen=True):
    """A request as it arrived."""

    method: str
    path: str
    query: str
    body: bytes


class _Row(Struct):
    custom_id: str
    body: msgspec.Raw = msgspec.Raw(b"{}")
    params: msgspec.Raw = msgspec.Raw(b"{}")


class _Wanted(Struct):
    """Any protocol's request for a batch."""

    endpoint: str = "/v1/chat/completions"
    input_file_id: str = ""
    input_files: list[str] = []
    model: str = ""
    metadata: dict[str, str] = {}
    requests: list[_Row] = []


Speaks = Literal["openai", "mistral", "anthropic"]


class _Batch(Struct, kw_only=True):
    id: str
    speaks: Speaks
    wanted: _Wanted
    rows: list[_Row]
    state: Literal["running", "over", "cancelled"] = "running"
    told: bytes = b""
    timer: asyncio.TimerHandle | None = None
    made: float = msgspec.field(default_factory=time.time)


_rows = msgspec.json.Decoder(_Row).decode
_wanted = msgspec.json.Decoder(_Wanted).decode


class ScriptedBatches:
    """All of one server. A batch is run `batch_ms` after it was handed in."""

    def __init__(self, books: Books) -> None:
        self._books = books
        self._files: dict[str, bytes] = {}
        self._batches: dict[str, _Batch] = {}
        self._made = 0
        self._uploaded = 0

    @property
    def known(self) -> int:
        """How many have been handed in."""
        return self._made

    @property
    def kept(self) -> int:
        """Files, and batches with their answers, that nobody has deleted."""
        return len(self._files) + sum(batch.speaks == "anthropic" for batch in self._batches.values())

    def hurry(self) -> None:
        """Run at once what waits for its time."""
        for batch in self._batches.values():
            if batch.state == "running" and batch.timer is not None:
                batch.timer.cancel()
                self._run(batch)

    def close(self) -> None:
        """What has not been run never is."""
        for batch in self._batches.values():
            if batch.timer is not None:
                batch.timer.cancel()

    def answer(self, asked: Asked) -> Told | None:
        """None for what is no business of batches. What is cut has been done all the same."""
        before = self.known
        raw = self._answer(asked)
        fate = misfortune(self._books.options.seed, self.known, 0.0, self._books.options.cut_rate)[0]
        return None if raw is None else Told(raw, cut=self.known > before and fate == "cut")

    def _answer(self, asked: Asked) -> bytes | None:
        path = asked.path.removeprefix("/openai").removeprefix("/v1")  # the former is Azure's
        try:
            if path.startswith("/files"):
                return self._file(asked, path)
            if path.startswith("/batch/jobs"):
                return self._batch(asked, path.removeprefix("/batch/jobs").strip("/"), "mistral")
            if path.startswith("/batches"):
                return self._batch(asked, path.removeprefix("/batches").strip("/"), "openai")
            if path.startswith("/messages/batches"):
                return self._batch(asked, path.removeprefix("/messages/batches").strip("/"), "anthropic")
        except (msgspec.MsgspecError, ValueError) as error:
            return _refused(400, str(error)[:200])
        return None

    # -- files ---------------------------------------------------------------------------------------------------

    def _file(self, asked: Asked, path: str) -> bytes:
        name = path.removeprefix("/files").strip("/").removesuffix("/content")
        if asked.method == "DELETE":
            gone = self._files.pop(name, None) is not None
            return response(200, {"id": name, "deleted": True}) if gone else _refused(404, "no such file")
        if asked.method == "GET":
            found = self._files.get(name)
            return _refused(404, "no such file") if found is None else bytes_response(found)
        parts = dict(_PART.findall(asked.body))
        if parts.get(b"purpose") != b"batch" or b"file" not in parts or len(self._files) >= _MOST:
            return _refused(400, "a form with the purpose batch and a file is wanted")
        return response(200, {"id": self._kept(parts[b"file"]), "object": "file", "purpose": "batch"})

    def _kept(self, content: bytes) -> str:
        self._uploaded += 1
        name = f"file-{self._books.boot}-{self._uploaded}"
        self._files[name] = content
        return name

    # -- batches -------------------------------------------------------------------------------------------------

    def _batch(self, asked: Asked, rest: str, speaks: Speaks) -> bytes:
        name, _, verb = rest.partition("/")
        if not name:
            return self._make(asked, speaks) if asked.method == "POST" else self._listed(asked, speaks)
        batch = self._batches.get(name)
        if batch is None:
            return _refused(404, "no such batch")
        if verb == "results":
            return bytes_response(batch.told)
        if asked.method == "DELETE" and speaks == "anthropic":
            del self._batches[name]
            return response(200, {"id": name, "type": "message_batch_deleted"})
        if verb == "cancel" and batch.state == "running":
            batch.state = "cancelled"
            if batch.timer is not None:
                batch.timer.cancel()
        return response(200, self._shown(batch))

    def _make(self, asked: Asked, speaks: Speaks) -> bytes:
        wanted = _wanted(asked.body)
        rows = wanted.requests
        if speaks != "anthropic":
            content = self._files.get("".join(wanted.input_files) or wanted.input_file_id)
            if content is None or wanted.endpoint not in _ENDPOINTS:
                return _refused(400, "no such file, or an endpoint that batches do not have")
            rows = [_rows(line) for line in content.splitlines() if line.strip()]
        if len(self._batches) >= _MOST:
            return _refused(429, "too many batches")
        self._made += 1
        name = f"batch_{self._books.boot}_{self._made}"
        batch = self._batches[name] = _Batch(id=name, speaks=speaks, wanted=wanted, rows=rows)
        later = asyncio.get_running_loop().call_later
        batch.timer = later(self._books.options.batch_ms / 1_000, self._run, batch)
        return response(200, self._shown(batch))

    def _listed(self, asked: Asked, speaks: Speaks) -> bytes:
        """A page of the newest, those before `after` first, or the `page`th."""
        query = dict(parse_qsl(asked.query))
        newest = [self._shown(batch) for batch in reversed(self._batches.values()) if batch.speaks == speaks]
        if speaks == "mistral":
            size = max(1, min(_PAGE, int(query.get("page_size", "100"))))
            begin = int(query.get("page", "0")) * size
            return response(200, {"object": "list", "data": newest[begin : begin + size], "total": len(newest)})
        names = [batch["id"] for batch in newest]
        begin = names.index(query["after"]) + 1 if query.get("after") in names else 0
        end = begin + max(1, min(_PAGE, int(query.get("limit", "20"))))
        return response(200, {"object": "list", "data": newest[begin:end], "has_more": end < len(newest)})

    def _shown(self, batch: _Batch) -> Body:
        if batch.speaks == "anthropic":
            state = "in_progress" if batch.state == "running" else "ended"
            return {"id": batch.id, "type": "message_batch", "processing_status": state, "results_url": None}
        output = f"file-{batch.id}" if batch.state == "over" else None
        if batch.speaks == "mistral":
            return {
                "id": batch.id,
                "object": "batch",
                "endpoint": batch.wanted.endpoint,
                "model": batch.wanted.model,
                "created_at": int(batch.made),
                "status": {"running": "RUNNING", "over": "SUCCESS", "cancelled": "CANCELLED"}[batch.state],
                "errors": [],
                "input_files": batch.wanted.input_files,
                "output_file": output,
                "error_file": None,
                "metadata": batch.wanted.metadata,
            }
        states = {"running": "in_progress", "over": "completed", "cancelled": "cancelled"}
        return {
            "id": batch.id,
            "object": "batch",
            "endpoint": batch.wanted.endpoint,
            "created_at": int(batch.made),
            "status": states[batch.state],
            "input_file_id": batch.wanted.input_file_id,
            "output_file_id": output,
            "error_file_id": None,
            "metadata": batch.wanted.metadata,
        }

    # -- its requests --------------------------------------------------------------------------------------------

    def _run(self, batch: _Batch) -> None:
        batch.state = "over"
        tell = self._anthropic if batch.speaks == "anthropic" else self._openai
        batch.told = b"".join(_encode(tell(batch, row)) + b"\n" for row in batch.rows)
        if batch.speaks != "anthropic":
            self._files[f"file-{batch.id}"] = batch.told

    def _openai(self, batch: _Batch, row: _Row) -> Body:
        operation = _ENDPOINTS[batch.wanted.endpoint]
        raw = row.body
        if batch.wanted.model:  # it stands once, beside the lines
            raw = msgspec.Raw(_encode({**_decode(raw), "model": batch.wanted.model}))
        status, body = self._one(raw, operation, self._body)
        told = {"status_code": status, "request_id": row.custom_id, "body": body}
        return {"id": f"req_{row.custom_id}", "custom_id": row.custom_id, "response": told, "error": None}

    def _anthropic(self, batch: _Batch, row: _Row) -> Body:  # noqa: ARG002 - the other protocol's needs it
        status, body = self._one(row.params, "chat", _message)
        error = {"type": "error", "error": {"type": "api_error", "message": "scripted failure"}}
        result = {"type": "succeeded", "message": body} if status == 200 else {"type": "errored", "error": error}
        return {"custom_id": row.custom_id, "result": result}

    def _one(
        self, raw: msgspec.Raw, operation: Operation, told: Callable[[str, Request, Script], Body]
    ) -> tuple[int, Body]:
        """One request, run and billed."""
        options, number = self._books.options, self._books.begin()
        line: dict[str, object] = {"id": f"batched-{self._books.boot}-{number}", "attempt": "", "batch": True}
        try:
            request = _request(raw)
        except msgspec.MsgspecError as error:
            self._books.end(line, "refused", Usage())
            return 400, {"error": {"message": str(error)[:200], "type": "invalid_request_error"}}
        line |= {"model": request.model, "stream": False}
        fate, _ = misfortune(options.seed, number, options.fail_rate, 0.0)
        if fate != "none":
            self._books.end(line, "error", Usage())
            return 500, {"error": {"message": "scripted failure", "type": "server_error"}}
        if operation == "embedding":
            usage, body = _vectors(request)
        else:
            drawn = script(request, operation, options.tokens, Lines(options.say, options.finish))
            usage, body = drawn.usage(), told(str(line["id"]), request, drawn)
        self._books.end(line, "complete", usage)
        return 200, body

    @staticmethod
    def _body(name: str, request: Request, drawn: Script) -> Body:
        chat = bool(request.messages)
        choices: list[Body] = []
        for index, (tokens, finish) in enumerate(drawn.answers):
            text = "".join(tokens)
            said: Body = {"message": {"role": "assistant", "content": text}} if chat else {"text": text}
            choices.append({"index": index, **said, "logprobs": None, "finish_reason": finish})
        kind = "chat.completion" if chat else "text_completion"
        head: Body = {"id": name, "object": kind, "created": int(time.time()), "model": request.model}
        return {**head, "choices": choices, "usage": usage_body(drawn.usage())}


def _message(name: str, request: Request, drawn: Script) -> Body:
    tokens, finish = drawn.answers[0]
    usage = drawn.usage()
    return {
        "id": name,
        "type": "message",
        "role": "assistant",
        "model": request.model,
        "content": [{"type": "text", "text": "".join(tokens)}],
        "stop_reason": "max_tokens" if finish == "length" else "end_turn",
        "stop_sequence": None,
        "usage": {"input_tokens": usage.prompt, "output_tokens": usage.completion},
    }


def _vectors(request: Request) -> tuple[Usage, Body]:
    inputs = texts(request.input)
    rows = [
        {"object": "embedding", "index": index, "embedding": vector(text, request.dimensions)}
        for index, text in enumerate(inputs)
    ]
    usage = Usage(prompt=sum(count(text) for text in inputs))
    told = {"prompt_tokens": usage.prompt, "total_tokens": usage.prompt}
    return usage, {"object": "list", "data": rows, "model": request.model, "usage": told}


def _refused(status: int, message: str) -> bytes:
    return response(status, {"error": {"message": message, "type": "invalid_request_error"}})
