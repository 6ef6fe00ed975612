"""Gateways in one process share the registration of routes and nothing else."""

from pathlib import Path

import httpx

from gateway.app import create_app
from tests.live import settings


async def test_routes_are_registered_once_and_every_gateway_answers_for_itself(tmp_path: Path) -> None:
    """Registering costs more than all else that is made at the start; what is shared must not mix two gateways up."""
    apps = [
        create_app(settings(tmp_path / name, providers={name: {"kind": "scripted"}})) for name in ("first", "second")
    ]
    assert apps[0].routed.router is apps[1].routed.router
    told: list[dict[str, str]] = []
    for app in (*apps, apps[0]):
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://nearhit") as client:
            told.append((await client.get("/health/upstreams")).json()["upstreams"])
    assert [list(names) for names in told] == [["first", "local"], ["second", "local"], ["first", "local"]]
