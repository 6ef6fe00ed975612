"""Batches at the scripted upstream, as OpenAI, Mistral and Anthropic have them: handed in, run after a while, fetched.

Knows: their files, batches and states; under `/together`, `/xai` and `/fireworks` those services' own
(`gateway.scripted_batch_services`). Does not know: HTTP beyond a method, a path and a body; how a row is run and billed
(`gateway.scripted_batch_shelf`).
"""

import re
from urllib.parse import parse_qsl

import msgspec
from msgspec import Struct

from gateway.call import Body
from gateway.scripted_answers import misfortune
from gateway.scripted_batch_services import SERVICES
from gateway.scripted_batch_shelf import ENDPOINTS, Asked, Batch, Shelf, Speaks, Wanted, rows_of
from gateway.scripted_calls import Books, bytes_response, response

__all__ = ["Asked", "ScriptedBatches", "Told"]

_PAGE = 100
_BATCHES: dict[str, Speaks] = {"/batch/jobs": "mistral", "/batches": "openai", "/messages/batches": "anthropic"}
_PART = re.compile(rb'name="(\w+)"[^\r]*\r\n(?:[^\r\n]+\r\n)*\r\n(.*?)\r\n--', re.DOTALL)
_encode = msgspec.json.Encoder().encode
_wanted = msgspec.json.Decoder(Wanted).decode


class Told(Struct, frozen=True):
    """A whole response. `cut`: of which half is sent, and then the connection is closed."""

    raw: bytes
    cut: bool = False


class ScriptedBatches:
    """All of one server."""

    def __init__(self, books: Books) -> None:
        self._books = books
        self._shelf = Shelf(books)
        self._services = {name: service(self._shelf) for name, service in SERVICES.items()}

    @property
    def known(self) -> int:
        """How many have been handed in."""
        return self._shelf.made

    @property
    def kept(self) -> int:
        """Files, and batches with their answers, that nobody has deleted."""
        with_answers = sum(batch.speaks in ("anthropic", "fireworks") for batch in self._shelf.batches.values())
        return len(self._shelf.files) + with_answers

    def hurry(self) -> None:
        """Run at once what waits for its time."""
        self._shelf.hurry()

    def close(self) -> None:
        """What has not been run never is."""
        self._shelf.close()

    def answer(self, asked: Asked) -> Told | None:
        """None for what is no business of batches. What is cut has been done all the same."""
        before = self.known
        raw = self._answer(asked)
        fate = misfortune(self._books.options.seed, self.known, 0.0, self._books.options.cut_rate)[0]
        return None if raw is None else Told(raw, cut=self.known > before and fate == "cut")

    def _answer(self, asked: Asked) -> bytes | None:
        first, _, rest = asked.path.removeprefix("/").partition("/")
        path = asked.path.removeprefix("/openai").removeprefix("/v1")  # the former is Azure's
        try:
            if (service := self._services.get(first)) is not None:
                return service.answer(msgspec.structs.replace(asked, path=f"/{rest}".removeprefix("/v1")))
            if path.startswith("/files"):
                return self._file(asked, path)
            for begins, speaks in _BATCHES.items():
                if path.startswith(begins):
                    return self._batch(asked, path.removeprefix(begins).strip("/"), speaks)
        except (msgspec.MsgspecError, ValueError) as error:
            return _refused(400, str(error)[:200])
        return None

    # -- files ---------------------------------------------------------------------------------------------------

    def _file(self, asked: Asked, path: str) -> bytes:
        name = path.removeprefix("/files").strip("/").removesuffix("/content")
        if asked.method == "DELETE":
            gone = self._shelf.files.pop(name, None) is not None
            return response(200, {"id": name, "deleted": True}) if gone else _refused(404, "no such file")
        if asked.method == "GET":
            found = self._shelf.files.get(name)
            return _refused(404, "no such file") if found is None else bytes_response(found)
        parts = dict(_PART.findall(asked.body))
        if parts.get(b"purpose") != b"batch" or b"file" not in parts or self._shelf.is_full:
            return _refused(400, "a form with the purpose batch and a file is wanted")
        return response(200, {"id": self._shelf.keep(parts[b"file"]), "object": "file", "purpose": "batch"})

    # -- batches -------------------------------------------------------------------------------------------------

    def _batch(self, asked: Asked, rest: str, speaks: Speaks) -> bytes:
        name, _, verb = rest.partition("/")
        if not name:
            return self._make(asked, speaks) if asked.method == "POST" else self._listed(asked, speaks)
        batch = self._shelf.batches.get(name)
        if batch is None:
            return _refused(404, "no such batch")
        if verb == "results":
            return bytes_response(_lines(batch))
        if asked.method == "DELETE" and speaks == "anthropic":
            del self._shelf.batches[name]
            return response(200, {"id": name, "type": "message_batch_deleted"})
        if verb == "cancel":
            self._shelf.cancel(batch)
        return response(200, self._shown(batch))

    def _make(self, asked: Asked, speaks: Speaks) -> bytes:
        wanted = _wanted(asked.body)
        rows = wanted.requests
        if speaks != "anthropic":
            content = self._shelf.files.get("".join(wanted.input_files) or wanted.input_file_id)
            if content is None or wanted.endpoint not in ENDPOINTS:
                return _refused(400, "no such file, or an endpoint that batches do not have")
            rows = [rows_of(line) for line in content.splitlines() if line.strip()]
        if self._shelf.is_full:
            return _refused(429, "too many batches")
        return response(200, self._shown(self._shelf.begin(speaks, wanted, rows)))

    def _listed(self, asked: Asked, speaks: Speaks) -> bytes:
        """A page of the newest, those before `after` first, or the `page`th."""
        query = dict(parse_qsl(asked.query))
        newest = [self._shown(batch) for batch in self._shelf.of(speaks)]
        if speaks == "mistral":
            size = max(1, min(_PAGE, int(query.get("page_size", "100"))))
            begin = int(query.get("page", "0")) * size
            return response(200, {"object": "list", "data": newest[begin : begin + size], "total": len(newest)})
        names = [batch["id"] for batch in newest]
        begin = names.index(query["after"]) + 1 if query.get("after") in names else 0
        end = begin + max(1, min(_PAGE, int(query.get("limit", "20"))))
        return response(200, {"object": "list", "data": newest[begin:end], "has_more": end < len(newest)})

    def _shown(self, batch: Batch) -> Body:
        if batch.state == "over" and batch.speaks != "anthropic":
            self._shelf.files.setdefault(f"file-{batch.id}", _lines(batch))
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


def _lines(batch: Batch) -> bytes:
    tell = _result if batch.speaks == "anthropic" else _output
    return b"".join(_encode(tell(*row)) + b"\n" for row in batch.told)


def _output(name: str, status: int, body: Body) -> Body:
    told = {"status_code": status, "request_id": name, "body": body}
    return {"id": f"req_{name}", "custom_id": name, "response": told, "error": None}


def _result(name: str, status: int, body: Body) -> Body:
    error = {"type": "error", "error": {"type": "api_error", "message": "scripted failure"}}
    result = {"type": "succeeded", "message": body} if status == 200 else {"type": "errored", "error": error}
    return {"custom_id": name, "result": result}


def _refused(status: int, message: str) -> bytes:
    return response(status, {"error": {"message": message, "type": "invalid_request_error"}})
