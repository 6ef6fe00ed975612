"""Is this worker alive, is it ready, are its upstreams, and the metrics. Decides nothing."""

import asyncio
from typing import Any

from litestar import Response, get
from litestar.status_codes import HTTP_200_OK, HTTP_503_SERVICE_UNAVAILABLE
from msgspec.structs import replace

from gateway.deployments import Deployments
from gateway.readiness import Readiness
from gateway.routes.asker import AnyRequest
from gateway.routes.desks import desk
from gateway.telemetry import CONTENT_TYPE, Telemetry
from gateway.upstreams import Upstreams


class Probes:
    """What probes and monitors are told of one worker."""

    def __init__(
        self, readiness: Readiness, upstreams: Upstreams, deployments: Deployments, telemetry: Telemetry
    ) -> None:
        self._readiness = readiness
        self._upstreams = upstreams
        self._deployments = deployments
        self._telemetry = telemetry

    def ready(self) -> Response[dict[str, object]]:
        found = self._readiness.look()
        status = HTTP_503_SERVICE_UNAVAILABLE if found.waiting else HTTP_200_OK
        told: dict[str, object] = {"status": "starting" if found.waiting else "ready", "waiting_for": found.waiting}
        if found.down:
            told["down"] = found.down
        return Response(told, status_code=status)

    def of_upstreams(self) -> dict[str, object]:
        states = {name: provider.ready() or "ready" for name, provider in self._upstreams.providers.items()}
        places = self._deployments.told()
        good = set(states.values()) <= {"ready"} and all(place.circuit == "closed" for place in places)
        # Open to everyone: which servers these are, and what their limits leave, is told on the Upstreams page.
        places = [replace(place, server="") for place in places]
        return {"status": "ok" if good else "degraded", "upstreams": states, "deployments": places}

    async def metrics(self) -> Response[bytes]:
        # In multi-process mode this reads the files of every worker.
        text = await asyncio.to_thread(self._telemetry.exposition)
        return Response(text, headers={"content-type": CONTENT_TYPE})


def route_handlers() -> list[Any]:
    @get("/health/live", sync_to_thread=False)
    def live() -> dict[str, str]:
        return {"status": "alive"}

    # `/health` is where vLLM, SGLang and llama.cpp are asked, so scripts that wait for a server ask there.
    @get(["/health/ready", "/health"], sync_to_thread=False)
    def ready(request: AnyRequest) -> Response[dict[str, object]]:
        return desk(Probes, request).ready()

    @get("/health/upstreams", sync_to_thread=False)
    def of_upstreams(request: AnyRequest) -> dict[str, object]:
        return desk(Probes, request).of_upstreams()

    @get("/metrics")
    async def metrics(request: AnyRequest) -> Response[bytes]:
        return await desk(Probes, request).metrics()

    return [live, ready, of_upstreams, metrics]
