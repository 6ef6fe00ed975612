"""Is this worker alive, is it ready, are its upstreams, and the metrics. Decides nothing."""

import asyncio
from collections.abc import Callable
from typing import Any

from litestar import HttpMethod, Response, get, route
from litestar.status_codes import HTTP_200_OK, HTTP_503_SERVICE_UNAVAILABLE
from msgspec.structs import replace

from gateway.deployments import Deployments
from gateway.telemetry import CONTENT_TYPE, Telemetry
from gateway.upstreams import Upstreams

Missing = Callable[[], dict[str, str]]
_LOOKED_AT = [HttpMethod.GET, HttpMethod.HEAD]  # monitors ask with HEAD, and read 405 as an outage


def route_handlers(missing: Missing, upstreams: Upstreams, deployments: Deployments, telemetry: Telemetry) -> list[Any]:
    """`missing`: what is still loading or down, by part; empty when every request can be served."""

    @route("/health/live", http_method=_LOOKED_AT, sync_to_thread=False)
    def live() -> dict[str, str]:
        return {"status": "alive"}

    @route("/health/ready", http_method=_LOOKED_AT, sync_to_thread=False)
    def ready() -> Response[dict[str, object]]:
        waiting = missing()
        status = HTTP_503_SERVICE_UNAVAILABLE if waiting else HTTP_200_OK
        return Response({"status": "starting" if waiting else "ready", "waiting_for": waiting}, status_code=status)

    @route("/health/upstreams", http_method=_LOOKED_AT, sync_to_thread=False)
    def of_upstreams() -> dict[str, object]:
        states = {name: provider.ready() or "ready" for name, provider in upstreams.providers.items()}
        places = deployments.told()
        good = set(states.values()) <= {"ready"} and all(place.circuit == "closed" for place in places)
        # Open to everyone: which servers these are, and what their limits leave, is told on the Upstreams page.
        places = [replace(place, server="") for place in places]
        return {"status": "ok" if good else "degraded", "upstreams": states, "deployments": places}

    @get("/metrics")
    async def metrics() -> Response[bytes]:
        # In multi-process mode this reads the files of every worker.
        text = await asyncio.to_thread(telemetry.exposition)
        return Response(text, headers={"content-type": CONTENT_TYPE})

    return [live, ready, of_upstreams, metrics]
