"""nearhit against its own description: whatever the document allows, no answer is a 5xx or one it does not tell of.

Reduced in the ordinary run; `proof` asks every operation often.
"""

import asyncio
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given
from hypothesis import settings as chosen
from schemathesis.checks import not_a_server_error
from schemathesis.core.failures import FailureGroup
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from tests.live import decode, live, settings

ADMIN = "sk-test-admin-key-of-some-length"
CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]
SLOW: Any = list(HealthCheck)  # of generated data: it is large
# Not asked: the dashboard's forms, and what says 503 by design (no encoder runs here).
LEFT_OUT = ("/ui", "/health/ready")
AWAY = (502, 504)  # there is no upstream; `only-if-cached` without a kept answer


def ask_all(address: str, document: Any, most: int, paths: tuple[str, ...] = ("",)) -> list[str]:
    """Ask every operation under `paths`; what was wrong, in words."""
    faults: list[str] = []
    known: list[Any] = list(schemathesis.openapi.from_dict(document).get_all_operations())
    for found in known:
        operation: Any = found.ok()
        if operation.path.startswith(LEFT_OUT) or not operation.path.startswith(paths):
            continue

        @chosen(
            max_examples=most,
            deadline=None,
            database=None,
            derandomize=True,
            phases=[Phase.explicit, Phase.generate],
            suppress_health_check=SLOW,
        )
        @given(case=operation.as_strategy())
        def ask(case: Any) -> None:
            if isinstance(case.body, dict) and "model" in case.body:
                case.body["model"] = "local/sim"  # a name that exists: else nothing behind the look-up is reached
            answer = case.call(base_url=address, headers={"authorization": f"Bearer {ADMIN}"}, timeout=20)
            if answer.status_code not in AWAY:
                case.validate_response(answer, checks=CHECKS)

        try:
            ask()
        except (Exception, FailureGroup) as fault:  # noqa: BLE001 - each is told, none hides the others
            faults.append(f"{operation.method.upper()} {operation.path}: {fault}"[:1_500])
    return faults


async def asked(home: Path, most: int, paths: tuple[str, ...] = ("",)) -> list[str]:
    async with live(settings(home, admin_key=ADMIN)) as gateway:
        headers = {"authorization": f"Bearer {ADMIN}"}
        async with gateway.client.get(f"{gateway.url}/docs/openapi.json", headers=headers) as answer:
            document = decode(await answer.read())
        return await asyncio.to_thread(ask_all, gateway.url, document, most, paths)


async def test_the_data_plane_keeps_to_its_description(tmp_path: Path) -> None:
    """A request or two for each operation that applications use."""
    assert not await asked(tmp_path, 1, ("/v1/",))


@pytest.mark.proof
async def test_everything_keeps_to_its_description(tmp_path: Path) -> None:
    """Many requests for each operation, the control plane included."""
    assert not await asked(tmp_path, 60)
