"""Everything the control plane says it understands, with nonsense in it: an error in words, never a crash."""

import json
import random
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.clock import FrozenClock
from tests.unit.control.house import House, happened, house, request_row

ROUNDS = 3
ODD: list[Any] = [
    "", "x", "\x00", "☃" * 50, "'; DROP TABLE request;--", "../../etc/passwd", "a" * 3_000, "2026-13-45", "-1", "1e400",
    "NaN", "null", "%00", "team:", "=cmd()", 0, -1, 2**63, 1.5, True, None, [], {}, [[[]]], {"a": {"b": None}},
]  # fmt: skip


@pytest.fixture
async def home(tmp_path: Path, clock: FrozenClock) -> AsyncGenerator[House, None]:
    async with house(tmp_path, clock) as found:
        await happened(found.services.database, [request_row(clock, 1)])
        yield found


def filled(schema: Any, draw: random.Random, schemas: dict[str, Any], depth: int = 0) -> Any:
    """Something of the schema's shape in which now and then a value is anything."""
    if draw.random() < 0.35 or depth > 4:
        return draw.choice(ODD)
    if "$ref" in schema:
        return filled(schemas[schema["$ref"].rpartition("/")[2]], draw, schemas, depth)
    for name in ("oneOf", "anyOf"):
        if name in schema:
            return filled(draw.choice(schema[name]), draw, schemas, depth)
    if "enum" in schema:
        return draw.choice(schema["enum"])
    kind = schema.get("type")
    if kind == "object":
        found = {key: filled(part, draw, schemas, depth + 1) for key, part in schema.get("properties", {}).items()}
        return {key: value for key, value in found.items() if draw.random() < 0.8}
    if kind == "array":
        return [filled(schema.get("items", {}), draw, schemas, depth + 1) for _ in range(draw.randint(0, 3))]
    plain: dict[str, Any] = {"string": "acme", "integer": 3, "number": 0.5, "boolean": True}
    return plain.get(str(kind), draw.choice(ODD))


class Nonsense:
    """One operation's address, query and body, drawn from its description."""

    def __init__(self, path: str, operation: dict[str, Any], draw: random.Random, schemas: dict[str, Any]) -> None:
        self.path, self.query = path, dict[str, str]()
        for parameter in operation.get("parameters", []):
            value = str(filled(parameter.get("schema", {}), draw, schemas))[:300]
            if parameter["in"] == "path":
                safe = "".join(one if one.isalnum() else "%2e" for one in value[:40]) or "x"
                self.path = self.path.replace("{" + parameter["name"] + "}", safe)
            elif parameter["in"] == "query" and draw.random() < 0.7:
                self.query[parameter["name"]] = value
        body = operation.get("requestBody", {}).get("content", {}).get("application/json")
        self.body = filled(body["schema"], draw, schemas) if body else None

    async def sent(self, client: httpx.AsyncClient, method: str) -> str | None:
        """None for an answer or an error in words, else what came."""
        answer = await client.request(method, self.path, params=self.query, json=self.body)
        if answer.status_code == 500 or (answer.status_code >= 400 and "error" not in answer.json()):
            return f"{method} {self.path} {self.query} {self.body}: {answer.status_code} {answer.text[:200]}"
        return None


async def test_nonsense_is_refused_in_words_everywhere(home: House) -> None:
    """Operations are read from our own description, so those that are added later are asked too."""
    draw = random.Random(7)
    async with home.client() as admin:
        told = (await admin.get("/docs/openapi.json")).json()
        operations = [
            (path, method, operation)
            for path, methods in sorted(told["paths"].items())
            if path.startswith(("/api/", "/v1/organization"))
            for method, operation in methods.items()
        ]
        drawn = [
            (method, Nonsense(path, operation, draw, told["components"]["schemas"]))
            for path, method, operation in operations
            for _ in range(ROUNDS)
        ]
        found = [await one.sent(admin, method) for method, one in drawn]
    assert [one for one in found if one] == []
    assert len(found) > 100


async def test_numbers_that_no_database_holds_are_refused(home: House) -> None:
    """`/api/v1/audit?before=` was answered 500 for a number beyond 64 bits."""
    async with home.client() as admin:
        told = (await admin.get("/docs/openapi.json")).json()
        asked = [
            (path, parameter["name"])
            for path, methods in sorted(told["paths"].items())
            for parameter in methods.get("get", {}).get("parameters", [])
            if parameter["in"] == "query" and '"integer"' in json.dumps(parameter["schema"])
        ]
        statuses = {place: (await admin.get(place[0], params={place[1]: 2**80})).status_code for place in asked}
    assert ("/api/v1/audit", "before") in statuses
    assert {place: status for place, status in statuses.items() if status >= 500} == {}


async def test_no_header_is_a_key_by_accident(home: House) -> None:
    """Whatever is sent as a key: 401 or the right key, never a crash and never somebody."""
    draw = random.Random(11)
    real = await home.key("viewer", "acme")
    letters = "abcXYZ0189-_.=~ \t\x7f\xff"
    async with home.client(None) as nobody:
        for _ in range(150):
            cut = real[: draw.randint(0, len(real) - 1)]
            noise = "".join(draw.choice(letters) for _ in range(draw.randint(0, 30)))
            value = draw.choice(
                [noise, cut, cut + noise, "Bearer " + cut, "Bearer " + noise, "Basic " + real, real * 9]
            )
            name = draw.choice(["authorization", "x-api-key", "api-key"])
            if value.strip() in (real, f"Bearer {real}"):
                continue
            answer = await nobody.get("/api/v1/whoami", headers=[(name.encode(), value.encode("latin-1"))])
            assert answer.status_code == 401, value
            assert cut not in answer.text or len(cut) < 8
