"""nearhit against its own description: whatever the document allows, no answer is a 5xx or one it does not tell of.

Reduced in the ordinary run; `proof` asks every operation often and keeps what came of it.
"""

import asyncio
import re
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import requests
import schemathesis
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from tests import proofs
from tests.live import decode, live, settings
from tests.shapes.drawing import answered, checked, drawn

ADMIN = "sk-test-admin-key-of-some-length"
CHECKS = [status_code_conformance, content_type_conformance, response_schema_conformance]
LEFT_OUT = "/ui"  # the dashboard's forms
# Schemathesis draws some forms with `random` inside a strategy; hypothesis warns, and a warning is an error here.
pytestmark = pytest.mark.filterwarnings("ignore:Do not use the `random` module inside strategies")


class Asked(NamedTuple):
    """How often each operation was asked, with which status; what was wrong, in words."""

    statuses: Counter[int]
    operations: int
    faults: list[str]


def failed(path: str, answer: Any) -> bool:
    """Whether an answer tells of a fault of nearhit's. Not ready is what a gateway without an encoder must say."""
    return answer.status_code >= 500 and not (path in ("/health", "/health/ready") and answer.status_code == 503)


def ask_all(address: str, document: Any, most: int, paths: tuple[str, ...] = ("",)) -> Asked:
    """Ask every operation under `paths`."""
    told = Asked(Counter(), 0, [])
    session, headers = requests.Session(), {"authorization": f"Bearer {ADMIN}"}
    described: list[Any] = list(schemathesis.openapi.from_dict(document).get_all_operations())
    chosen = [
        one
        for one in (found.ok() for found in described)
        if not one.path.startswith(LEFT_OUT) and one.path.startswith(paths)
    ]

    def ask(case: Any) -> str | None:
        if isinstance(case.body, dict) and "model" in case.body:
            case.body["model"] = "local/sim"  # a name that exists: else nothing behind the look-up is reached
        answer = answered(case, address, headers, session)
        told.statuses[answer.status_code] += 1
        if failed(case.operation.path, answer):
            return f"{answer.status_code} {answer.content[:300]!r}"
        return checked(case, answer, CHECKS)

    for operation in chosen:
        told.faults.extend(drawn(operation, most, ask))
    return told._replace(operations=len(chosen))


async def asked(home: Path, most: int, paths: tuple[str, ...] = ("",)) -> Asked:
    """The gateway never turns anybody away for its event loop's being late: that is no part of this."""
    patient: Any = {"lag_target": 60.0}
    async with live(settings(home, admin_key=ADMIN, server=patient)) as gateway:
        headers = {"authorization": f"Bearer {ADMIN}"}
        async with gateway.client.get(f"{gateway.url}/docs/openapi.json", headers=headers) as answer:
            document = decode(await answer.read())
        return await asyncio.to_thread(ask_all, gateway.url, document, most, paths)


async def test_everything_described_has_a_section_and_a_title(tmp_path: Path) -> None:
    """`/docs` had a section "Other", of six with HEAD, which every GET answers, and titles like `GetItems`."""
    async with (
        live(settings(tmp_path, admin_key=ADMIN)) as gateway,
        gateway.client.get(f"{gateway.url}/docs/openapi.json") as answer,
    ):
        paths = decode(await answer.read())["paths"]
    told = {(verb, path): one for path, item in paths.items() for verb, one in item.items()}
    assert [place for place in told if place[0] == "head"] == []
    assert [place for place, one in told.items() if not one.get("tags")] == []
    made = [one["summary"] for one in told.values() if re.search("[a-z][A-Z]", one["summary"].replace("OpenAI", ""))]
    assert made == []
    assert "security" not in told["get", "/"]


async def test_the_data_plane_keeps_to_its_description(tmp_path: Path) -> None:
    """A request or two for each operation that applications use, and for what tells how the gateway is."""
    assert not (await asked(tmp_path, 1, ("/v1/", "/health"))).faults


@pytest.mark.proof
@pytest.mark.timeout(3_600)
async def test_everything_keeps_to_its_description(tmp_path: Path) -> None:
    """Many requests for each operation, the control plane included."""
    found = await asked(tmp_path, 60)
    statuses = {str(status): count for status, count in sorted(found.statuses.items())}
    proofs.keep(
        "own-openapi",
        operations=found.operations,
        requests=found.statuses.total(),
        statuses=statuses,
        faults=len(found.faults),
    )
    assert not found.faults, "\n".join(found.faults)
