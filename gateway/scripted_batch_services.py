"""Batches at the scripted upstream as Together, xAI and Fireworks have them, each under its own name: `/together/v1`, …

Knows: their addresses, what they tell of a batch and of a row. Does not know: how a row is run and billed
(`gateway.scripted_batch_shelf`).
"""

import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Protocol
from urllib.parse import parse_qsl

import msgspec

from gateway.call import Body
from gateway.scripted_batch_shelf import Asked, Batch, Row, Shelf, Wanted, rows_of
from gateway.scripted_calls import bytes_response, response

_PAGE = 100
_PART = re.compile(rb'name="(\w+)"[^\r]*\r\n(?:[^\r\n]+\r\n)*\r\n(.*?)\r\n--', re.DOTALL)
_FILE_NAME = re.compile(rb'filename="([^"]*)"')
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(dict[str, object]).decode
_wanted = msgspec.json.Decoder(Wanted).decode


class Service(Protocol):
    """`asked.path` begins behind the service's name and `/v1`."""

    def answer(self, asked: Asked) -> bytes | None: ...


class _Files:
    """Those of OpenAI, under names that are told. `path`: where they are uploaded; `purpose`: what they must be for."""

    path, purpose = "/files", b""

    def __init__(self, shelf: Shelf) -> None:
        self._shelf = shelf
        self._names: dict[str, str] = {}

    def _file(self, asked: Asked) -> bytes:
        name = asked.path.removeprefix("/files").strip("/").removesuffix("/content")
        if asked.method == "POST":
            parts = dict(_PART.findall(asked.body))
            if asked.path != self.path or parts.get(b"purpose", b"") != self.purpose or b"file" not in parts:
                return refused(400, "a form with a file is wanted")
            made = self._shelf.keep(parts[b"file"])
            self._names[made] = _FILE_NAME.findall(asked.body)[0].decode()
            return response(200, {"id": made, "object": "file", "filename": self._names[made]})
        if not name:
            rows = [{"id": made, "filename": self._names.get(made, "")} for made in self._shelf.files]
            return response(200, {"data": rows})
        if asked.method == "DELETE":
            gone = self._shelf.files.pop(name, None) is not None
            return response(200, {"id": name, "deleted": True}) if gone else refused(404, "no such file")
        found = self._shelf.files.get(name)
        return refused(404, "no such file") if found is None else bytes_response(found)

    def _rows(self, wanted: Wanted) -> list[Row]:
        """Raises ValueError where there is no such file."""
        if (content := self._shelf.files.get(wanted.input_file_id)) is None:
            raise ValueError("no such file")
        return [rows_of(line) for line in content.splitlines() if line.strip()]


class Together(_Files):
    """Jobs that are told bare, but for the first time; refusals in a file of their own; no names, no pages."""

    path, purpose = "/files/upload", b"batch-api"

    def answer(self, asked: Asked) -> bytes | None:
        if asked.path.startswith("/files"):
            return self._file(asked)
        if not asked.path.startswith("/batches"):
            return None
        name, _, verb = asked.path.removeprefix("/batches").strip("/").partition("/")
        if not name and asked.method == "POST":
            wanted = _wanted(asked.body)
            return response(
                200, {"job": self._shown(self._shelf.begin("together", wanted, self._rows(wanted))), "warning": ""}
            )
        if not name:
            return response(200, [self._shown(batch) for batch in self._shelf.of("together")])
        if (batch := self._shelf.batches.get(name)) is None:
            return refused(404, "no such batch")
        if verb == "cancel":
            self._shelf.cancel(batch)
        return response(200, self._shown(batch))

    def _shown(self, batch: Batch) -> Body:
        states = {"running": "IN_PROGRESS", "over": "COMPLETED", "cancelled": "CANCELLED"}
        told: Body = {
            "id": batch.id,
            "input_file_id": batch.wanted.input_file_id,
            "endpoint": batch.wanted.endpoint,
            "status": states[batch.state],
            "created_at": _stamp(batch.made),
        }
        if batch.state == "over":
            good = [
                {"custom_id": n, "response": {"status_code": 200, "body": body}}
                for n, s, body in batch.told
                if s == 200
            ]
            bad = [{"custom_id": n, "error": body.get("error")} for n, s, body in batch.told if s != 200]
            for kind, rows in (("output_file_id", good), ("error_file_id", bad)):
                if rows:
                    told[kind] = f"{kind}-{batch.id}"
                    self._shelf.files.setdefault(f"{kind}-{batch.id}", _lines(rows))
        return told


class XAI(_Files):
    """Counts instead of states, which are zero until the file is read; answers by the page."""

    def answer(self, asked: Asked) -> bytes | None:
        if asked.path.startswith("/files"):
            return self._file(asked)
        if not asked.path.startswith("/batches"):
            return None
        rest, _, verb = asked.path.removeprefix("/batches").strip("/").partition(":")
        name, _, what = rest.partition("/")
        if not name and asked.method == "POST":
            wanted = _wanted(asked.body)
            return response(200, self._shown(self._shelf.begin("xai", wanted, self._rows(wanted))))
        if not name:
            rows = [self._shown(batch) for batch in self._shelf.of("xai")]
            return response(200, _page(asked, "batches", rows))
        if (batch := self._shelf.batches.get(name)) is None:
            return refused(404, "no such batch")
        if verb == "cancel":
            self._shelf.cancel(batch)
        results = [_result(*row) for row in batch.told]
        return response(200, _page(asked, "results", results) if what == "results" else self._shown(batch))

    def _shown(self, batch: Batch) -> Body:
        good, bad = (sum((status == 200) == wanted for _, status, _ in batch.told) for wanted in (True, False))
        rows = len(batch.rows)
        return {
            "batch_id": batch.id,
            "name": batch.wanted.name,
            "create_time": _stamp(batch.made),
            "cancel_time": _stamp(batch.made) if batch.state == "cancelled" else None,
            "cancel_by_xai_message": None,
            "input_file_id": batch.wanted.input_file_id,
            "state": {
                "num_requests": rows,
                "num_pending": rows if batch.state == "running" else 0,
                "num_success": good,
                "num_error": bad,
                "num_cancelled": rows if batch.state == "cancelled" else 0,
            },
        }


class Fireworks:
    """Datasets of an account; jobs under the client's ids; answers in a dataset, at addresses that are told."""

    def __init__(self, shelf: Shelf) -> None:
        self._shelf = shelf
        self._datasets: dict[str, str] = {}

    def answer(self, asked: Asked) -> bytes | None:
        path, _, verb = asked.path.partition(":")
        _, account, *rest = path.strip("/").split("/") if path.startswith("/accounts/") else ("", "", "")
        what, name = (*rest, "", "")[:2]
        if what == "datasets":
            return self._dataset(asked, account, name, verb)
        if what == "batchInferenceJobs":
            return self._job(asked, name)
        if path.startswith("/signed/"):
            found = self._shelf.files.get(path.removeprefix("/signed/"))
            return refused(404, "no such file") if found is None else bytes_response(found)
        return None

    def _dataset(self, asked: Asked, account: str, name: str, verb: str) -> bytes:
        if not name:
            name = str(_decode(asked.body)["datasetId"])
            self._datasets[name] = ""
        elif verb == "upload":
            self._datasets[name] = self._shelf.keep(dict(_PART.findall(asked.body))[b"file"])
        elif verb == "getDownloadEndpoint":
            url = f"{self._shelf.books.address}/fireworks/v1/signed/{self._datasets[name]}"
            return response(200, {"filenameToSignedUrls": {"BIJOutputSet.jsonl": url, "error-data": f"{url}-errors"}})
        elif asked.method == "DELETE":
            file = self._datasets.pop(name, "")
            gone = [self._shelf.files.pop(each, None) for each in (file, f"{file}-errors")]
            return response(200, {}) if gone else refused(404, "resource not found")
        if name not in self._datasets:
            return refused(404, "resource not found")
        state = "READY" if self._datasets[name] else "UPLOADING"
        return response(200, {"name": f"accounts/{account}/datasets/{name}", "state": state})

    def _job(self, asked: Asked, name: str) -> bytes:
        if asked.method == "POST":
            name = dict(parse_qsl(asked.query)).get("batchInferenceJobId", "")
            if name in self._shelf.batches:
                return refused(409, "already exists")
            given = _decode(asked.body)
            file = self._datasets[str(given["inputDatasetId"]).rpartition("/")[2]]
            rows = [rows_of(line) for line in self._shelf.files[file].splitlines() if line.strip()]
            wanted = Wanted(model=str(given["model"]), input_file_id=str(given["inputDatasetId"]))
            return response(200, self._shown(self._shelf.begin("fireworks", wanted, rows, name)))
        if (batch := self._shelf.batches.get(name)) is None:
            return refused(404, "resource not found")
        if asked.method == "DELETE":
            del self._shelf.batches[name]
            return response(200, {})
        return response(200, self._shown(batch))

    def _shown(self, batch: Batch) -> Body:
        output = f"bij-{batch.id}"
        if batch.state == "over" and output not in self._datasets:
            good = [{"custom_id": name, "response": body} for name, status, body in batch.told if status == 200]
            bad = [{"custom_id": name, "error": body.get("error")} for name, s, body in batch.told if s != 200]
            self._datasets[output] = self._shelf.keep(_lines(good))
            self._shelf.files[f"{self._datasets[output]}-errors"] = _lines(bad)
        return {
            "name": f"accounts/a/batchInferenceJobs/{batch.id}",
            "state": "JOB_STATE_COMPLETED" if batch.state == "over" else "JOB_STATE_RUNNING",
            "status": {"code": "OK", "message": ""},
            "inputDatasetId": batch.wanted.input_file_id,
            "outputDatasetId": f"accounts/a/datasets/{output}",
        }


SERVICES: Mapping[str, Callable[[Shelf], Service]] = {"together": Together, "xai": XAI, "fireworks": Fireworks}


def refused(status: int, message: str) -> bytes:
    return response(status, {"error": {"message": message, "type": "invalid_request_error"}})


def _page(asked: Asked, kind: str, rows: list[Body]) -> Body:
    """`pagination_token`: where the next one begins."""
    query = dict(parse_qsl(asked.query))
    begin = int(query.get("pagination_token", "0"))
    end = begin + min(_PAGE, int(query.get("limit", "100")))
    return {kind: rows[begin:end], "pagination_token": str(end) if end < len(rows) else None}


def _result(name: str, status: int, body: Body) -> Body:
    error: Body = {"error": {"code": 13 if status >= 500 else 3, "message": "scripted failure"}}
    result: Body = {"response": {"chat_get_completion": body}} if status == 200 else error
    return {"batch_request_id": name, "batch_result": result}


def _lines(rows: Sequence[Mapping[str, object]]) -> bytes:
    return b"".join(_encode(row) + b"\n" for row in rows)


def _stamp(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat()
