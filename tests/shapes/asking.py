"""Every documented operation and field, asked of a gateway on a socket; what does not keep to its shape, in words.

Knows: schemathesis, how refusals name a field. Does not know: what stands behind the address, what is served.
"""

from functools import cache
from typing import Any, NamedTuple

import msgspec
import requests
import schemathesis
from pydantic import TypeAdapter, ValidationError
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import content_type_conformance, status_code_conformance

from tests.shapes.drawing import answered, checked, drawn
from tests.shapes.published import FILES, OPERATIONS, Names, Operation, Published

CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance]
EXISTING = ("model", "input_file_id")  # must exist, so every other request has one that does
_decode = msgspec.json.Decoder().decode


class Asked(NamedTuple):
    """What came of a field: how often it was asked, taken and refused by its name; what was wrong."""

    operation: str
    field: str
    requests: int
    taken: int
    refused: int
    faults: list[str]


class Asker:
    """`known`: what exists there; `keys`: of an application, and of an administrator for the organization's paths."""

    def __init__(
        self,
        address: str,
        keys: tuple[str, str],
        known: Names,
        operations: tuple[Operation, ...] = OPERATIONS,
    ) -> None:
        self._address = address
        self._keys = keys
        self._known = known
        self._operations = operations
        self._published = Published(operations)
        self._session = requests.Session()
        self._read = cache(TypeAdapter[Any])

    def all(self, most: int, *, free: bool, step: int = 1) -> list[Asked]:
        """Ask every field of every operation as it is documented; `free`: and as anything at all.

        `step`: 2 is every second field, beginning with each operation's first.
        """
        found: list[Asked] = []
        for operation in self._operations:
            found.append(self._asked(operation, None, most))
            for field in list(self._published.fields(operation))[::step]:
                if field not in EXISTING:
                    found.append(self._asked(operation, field, most))
                if free:
                    found.append(self._asked(operation, field, most, free=True))
        return found

    def _asked(self, operation: Operation, field: str | None, most: int, *, free: bool = False) -> Asked:
        document = self._published.document(operation, field, self._known, free=free)
        described: Any = schemathesis.openapi.from_dict(document)[operation.path][operation.verb]
        statuses: list[int] = []

        def ask(case: Any) -> str | None:
            key = self._keys[operation.path.startswith("/v1/organization")]
            answer = answered(
                case, self._address, {"authorization": f"Bearer {key}", **operation.headers}, self._session
            )
            statuses.append(answer.status_code)
            fault = checked(case, answer, CHECKS) or self._read_whole(operation, field, answer)
            return None if fault is None else f"{field}: {fault}"

        faults = drawn(described, most, ask)
        taken = sum(status < 300 for status in statuses)
        refused = sum(400 <= status < 500 for status in statuses)
        return Asked(operation.name, field or "", len(statuses), taken, refused, faults)

    def _read_whole(self, operation: Operation, field: str | None, answer: Any) -> str | None:
        """What is wrong with an answer of a published status and media type."""
        if answer.status_code >= 400:
            return self._strange(operation.refuses, answer.content) or self._unnamed(operation, field, answer)
        if answer.headers["content-type"][0].startswith("text/event-stream"):
            return self._strange_events(operation, answer.content)
        return None if operation.tells is None else self._strange(operation.tells, answer.content)

    def _unnamed(self, operation: Operation, field: str | None, answer: Any) -> str | None:
        """A request that was whole but for one field must be refused by that field's name."""
        error = _decode(answer.content)["error"]
        if error.get("code") == "invalid_json":  # drawn integers may be beyond 64 bits, which is no field's fault
            return None
        if field is None and operation.ids and answer.status_code in (404, 409):  # it was deleted, or has ended
            return None
        names = {*(operation.beside or {}).get(field or "", {}), *([field] if field else ())}
        if operation.form:
            names.update(FILES)  # they are drawn too, and may be empty
        if not names:
            return f"refused what is whole: {error['message']}"
        told = str(error.get("param") or error["message"])
        if any(name in told for name in names):
            return None
        return f"refused by another name: {error}"

    def _strange(self, shape: Any, raw: bytes) -> str | None:
        """Whether that is not of the published shape: no type is bent, nothing that is needed may be missing."""
        try:
            self._read(shape).validate_json(raw, strict=True)
        except ValidationError as fault:
            return f"not as published: {str(fault)[:400]} in {raw[:400]!r}"
        return None

    def _strange_events(self, operation: Operation, raw: bytes) -> str | None:
        """Every event of a stream is one of those that are published, and none tells a failure."""
        for event in raw.split(b"\n\n"):
            data = event.rpartition(b"data: ")[2]
            if not data.strip() or data == b"[DONE]":
                continue
            if _decode(data).get("error") is not None:
                return f"an error in the stream: {data[:500]!r}"
            if (fault := self._strange(operation.events, data)) is not None:
                return fault
        return None
