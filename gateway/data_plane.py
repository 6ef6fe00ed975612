"""Everything clients of models talk to, put together over one worker's parts: endpoints, files, batches, responses.

Knows: constructors. Does not know: what any part does, the control plane.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from gateway.attempts import Attempts
from gateway.batches.asking import Asking
from gateway.batches.office import Office
from gateway.batches.reach import Reach
from gateway.batches.runner import Means
from gateway.idempotency import Idempotency
from gateway.journey import Answer
from gateway.pipeline import Pipeline
from gateway.prompt_tokens import Counter
from gateway.repeats import Repeats
from gateway.response_streams import Streams
from gateway.routes import batches, conversations, files, media, messages, openai, responses, tokens
from gateway.routes.desks import Desks
from gateway.routes.responses_background import Background
from gateway.routes.responses_socket import Sockets
from gateway.server_protocol import Door

if TYPE_CHECKING:
    from gateway.app import Worker

Direct = Callable[[Any, Any, Any], Awaitable[None]]


class Plane(Struct, frozen=True, kw_only=True):
    """`direct`: endpoints by path, to be asked before any router, and `doors` before those.

    `endpoints`, `desks`: who answers on routes (`gateway.data_routes`).
    `sockets`: the paths that WebSockets are spoken on. `office` runs batches and has to be started. `drain`: to be
    called when no request is let in any more.
    """

    direct: Mapping[str, Direct]
    sockets: Mapping[str, Direct]
    doors: Mapping[str, Door]
    endpoints: openai.Endpoints
    desks: Desks
    office: Office
    drain: Callable[[], None]


def data_plane_of(worker: "Worker", pipeline: Pipeline) -> Plane:
    """Nothing is started."""
    settings = worker.settings
    once = Idempotency(worker.database, worker.ledger.boot, now=worker.ledger.instant, tasks=worker.answering)
    office = _office(worker, pipeline, once)
    edge = openai.Edge(
        gate=worker.gate,
        pipeline=pipeline,
        keyring=worker.keyring,
        ledger=worker.ledger,
        rates=worker.rates,
        tasks=worker.answering,
        server=settings.server,
        repeats=Repeats(),
        idempotency=once,
        ignored=partial(_ignored, worker.upstreams.providers),
        refused=worker.telemetry.refused,
        now=worker.ledger.instant,  # a request's hour, day and month, and the price in force
        wall=time.time,
        monotonic=time.monotonic,
    )
    counter = Counter(worker.catalog, worker.upstreams.providers)
    background = _background(worker, edge)
    making = responses.Continuing(edge, worker.responses, background=background)
    found = {
        **openai.endpoints(edge),
        **media.endpoints(edge),
        **messages.endpoints(edge, counter),
        **responses.endpoints(edge, counter, making),
    }
    kept = worker.responses.conversations
    desks: Desks = {
        responses.Desk: responses.Desk(worker.responses, worker.keyring, background),
        conversations.Desk: conversations.Desk(kept, worker.keyring, settings.server, monotonic=time.monotonic),
        files.Desk: files.Desk(worker.files, worker.keyring, patience=settings.server.body_timeout),
        batches.Desk: _batch_desk(worker, office),
        tokens.Desk: tokens.Desk(
            worker.catalog, worker.upstreams.providers, worker.keyring, settings.server, monotonic=time.monotonic
        ),
    }
    return Plane(
        direct=openai.data_plane(found),
        sockets=dict.fromkeys(("/responses", "/v1/responses"), Sockets(edge, worker.responses).serve),
        doors=openai.doors(found),
        endpoints=found,
        desks=desks,
        office=office,
        drain=background.streams.drain,
    )


def _background(worker: "Worker", edge: openai.Edge) -> Background:
    most = worker.settings.kept.project_responses
    streams = Streams(worker.database, worker.responses, worker.answering, now=worker.ledger.instant, most=most)
    return Background(edge, worker.responses, streams)


def _office(worker: "Worker", pipeline: Pipeline, once: Idempotency) -> Office:
    kept = worker.settings.kept
    attempts = Attempts(worker.upstreams, worker.deployments, worker.prices, worker.ledger, monotonic=time.monotonic)
    means = Means(
        database=worker.database,
        files=worker.files,
        keyring=worker.keyring,
        asking=Asking(
            pipeline, now=worker.ledger.instant, monotonic=time.monotonic, yields=lambda: worker.gate.yielding
        ),
        settings=kept,
        places=asyncio.Semaphore(kept.batch_in_flight),
        reach=Reach(catalog=worker.catalog, upstreams=worker.upstreams, attempts=attempts, ledger=worker.ledger),
        now=worker.ledger.instant,
    )
    sweeps = (worker.files.sweep, worker.responses.sweep, once.sweep)
    return Office(means, worker.ledger.boot, worker.answering, sweeps)


def _batch_desk(worker: "Worker", office: Office) -> batches.Desk:
    settings = worker.settings
    return batches.Desk(
        office,
        worker.files,
        worker.keyring,
        settings.kept,
        settings.server,
        now=worker.ledger.instant,
        monotonic=time.monotonic,
    )


def _ignored(providers: Mapping[str, Any], answer: Answer) -> list[str]:
    """What of the request the provider which answered was not told, or does not know where it says so; and headers."""
    call, provider = answer.journey.call, providers.get(answer.flight.landing.provider)
    if call.native is not None and getattr(provider, "speaks", None) == call.native.dialect:
        return list(call.directives.ignored)
    name = getattr(provider, "ignored_fields", None)
    return [*call.ignored, *(name(call.body) if name is not None else ()), *call.directives.ignored]
