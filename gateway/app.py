"""The one place where real parts are built and put together: `create_app(settings)`.

Knows every part's constructor and the order of starting and stopping. Does not know what any part does.
"""

import asyncio
import random
import signal
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from litestar import Litestar
from msgspec import Struct

from cache.embedder import EncoderClient
from cache.judging.offline import OfflineJudge
from cache.semantic import SemanticCache
from engine.api import Engine
from gateway import logs
from gateway.agreement import agree
from gateway.alert_channels import channels
from gateway.alerts import Courier
from gateway.anomaly_alerts import AnomalyAlerts
from gateway.answering import answering
from gateway.application import App
from gateway.asking import Asking
from gateway.audits import Audits, watch_of
from gateway.auth import Keyring
from gateway.batches.office import Office
from gateway.cache_alerts import CacheAlerts
from gateway.catalog import Catalog
from gateway.charging import Charging
from gateway.cheaper import Cheaper
from gateway.clock import steady
from gateway.control_parts import reloader_of, services_of
from gateway.control_plane import ControlPlane
from gateway.data_plane import data_plane_of
from gateway.data_routes import DataRoutes
from gateway.db.session import Database
from gateway.deployments import Deployments
from gateway.distilling import FOLDER as DISTILLED
from gateway.distilling import Distilling, tell_consent
from gateway.elsewhere import Elsewhere
from gateway.engine_figures import Watched
from gateway.errands import Errands
from gateway.errands import Means as ErrandMeans
from gateway.exports.schedule import Scheduler
from gateway.fetching import Parts
from gateway.file_limits import check as check_limits
from gateway.file_limits import put_per_minute, said_of_money
from gateway.files import Files
from gateway.firstrun import AdminKey, first_api_key, installation_secret
from gateway.fleet_load import LoadWatch, keep_current
from gateway.flights import Flights
from gateway.gate import Gate
from gateway.herds import Herds
from gateway.journey import Recorder
from gateway.keywatch import KeyWatch
from gateway.ledger import Ledger
from gateway.parts import (
    build_cache,
    build_catalog,
    build_encoder,
    build_engines,
    build_judge,
    build_providers,
    label,
)
from gateway.pipeline import Pipeline
from gateway.prices import PriceBook
from gateway.pump import Pumps
from gateway.rate_leases import Keeper
from gateway.rates import Rates, names_of
from gateway.readiness import Readiness
from gateway.rereading import Rereading
from gateway.responses import Responses
from gateway.routes.desks import Desks
from gateway.routes.health import Probes
from gateway.routes.models import Listing
from gateway.routes.statements import statement_file
from gateway.serve_home import leave_first_key
from gateway.settings import Settings
from gateway.shadows import Shadows
from gateway.start_trouble import StartTrouble
from gateway.tasks import Tasks
from gateway.telemetry import Standing, Telemetry
from gateway.transport.direct import DirectTransport
from gateway.transport.proxies import of_environment
from gateway.upstreams import Upstreams
from gateway.watchdog import Watchdog
from policies.money import nano

_LAST_ALERT = 5.0  # of those that a worker gets beyond its drain (gateway.serve)
_LAST_GRACE = 2.0
_LAST_ANSWERS = 3.0  # seconds for answers whose clients have gone, where the drain is over
_NEVER_AGAIN = Rereading()
_LOOK_UP_EVERY = 10.0  # seconds between two look-ups of the servers that the network names


class Worker(Struct, kw_only=True):
    """Everything one gateway worker is made of. A stop waits for `answering`, not for `background`."""

    settings: Settings
    answering: Tasks
    background: Tasks
    database: Database
    ledger: Ledger
    rates: Rates
    courier: Courier
    cache_alerts: CacheAlerts
    anomaly_alerts: AnomalyAlerts
    exports: Scheduler
    prices: PriceBook
    keyring: Keyring
    key_watch: KeyWatch
    gate: Gate
    watchdog: Watchdog
    encoder: EncoderClient
    cache: SemanticCache
    engines: dict[str, Engine]
    transport: DirectTransport
    upstreams: Upstreams
    deployments: Deployments
    catalog: Catalog
    telemetry: Telemetry
    distilling: Distilling
    files: Files
    responses: Responses
    errands: Errands | None = None
    office: Office | None = None
    audits: Audits | None = None
    shadows: Shadows | None = None
    watches: list[asyncio.Task[None]] = []
    drained: float | None = None  # when no request was let in any more, monotonic

    def drain(self) -> None:
        """From now on the time counts that answers in the making may take."""
        self.drained = time.monotonic()

    async def start(self) -> None:
        """Durable things first, then what may take its time: engines and encoder load while requests are answered."""
        self.gate.start()
        await self.database.start(apart=True)
        await self.prices.load()
        await self.ledger.start(said=said_of_money(self.ledger.instant))
        self.ledger.follow(self.prices.refresh)
        await put_per_minute(self.rates, self.settings, self.ledger.instant)
        self.ledger.follow(self.rates.refresh)
        self.ledger.follow(self.rates.tend)
        self.background.spawn(self.courier.run(), "alerts")
        self.background.spawn(self.cache_alerts.run(), "cache alerts")
        self.background.spawn(self.anomaly_alerts.run(), "alerts of dear days")
        self.background.spawn(self.exports.run(), "exports")
        if self.database.dialect == "postgresql":  # SQLite has one worker, which hears of every change itself
            self.background.spawn(self.key_watch.run(), "keys")
        load = LoadWatch(self.upstreams, self.deployments, self.transport)
        self.watches = [
            self.background.spawn(load.run(), "load of fleets"),
            self.background.spawn(keep_current(self.upstreams, every=_LOOK_UP_EVERY), "servers of fleets"),
        ]
        await tell_consent(services_of(self))
        if self.distilling.projects:
            self.background.spawn(self.distilling.run(), "distilling")
        await self.encoder.start()
        await self.cache.start()
        for engine in self.engines.values():
            await engine.start()
        await agree(self.database, self.ledger, self.settings)
        await self._first_key()
        if self.office is not None:
            self.background.spawn(self.office.run(), "batches")
        self.telemetry.start()
        self.watchdog.start()  # last: what is loaded on the way here may hold the loop up

    async def _first_key(self) -> None:
        """A newcomer's key, handed to the supervisor that prints it; without one nobody could read it."""
        if (self.settings.home / "run").is_dir() and (made := await first_api_key(self.keyring)) is not None:
            leave_first_key(self.settings.home, made.key)

    async def stop(self) -> None:
        """Answers in the making are finished or given up, then the books are closed, then the rest."""
        if self.audits is not None:
            await self.audits.close()
        if self.office is not None:
            self.office.stop()
        if self.shadows is not None:
            await self.shadows.close()
        for watch in self.watches:
            watch.cancel()
        self.courier.stop()
        self.cache_alerts.stop()
        self.anomaly_alerts.stop()
        self.exports.stop()
        self.key_watch.stop()
        # Clients were waited for already: beyond that time the supervisor would kill what has not closed its books.
        over = 0.0 if self.drained is None else time.monotonic() - self.drained
        await self.answering.finish(max(_LAST_ANSWERS, self.settings.server.drain_timeout - over))
        await self.ledger.close()
        await self.courier.ended(_LAST_ALERT)
        await asyncio.to_thread(self.distilling.flush)
        for provider in self.upstreams.providers.values():
            await provider.close()
        await self.transport.close()
        for engine in self.engines.values():
            await engine.stop()
        await self.cache.close()
        await self.encoder.close()
        self.telemetry.stop()
        await asyncio.to_thread(self.telemetry.close)
        await self.database.close()
        self.gate.stop()
        self.watchdog.stop()
        await self.background.finish(_LAST_GRACE)


def _prepared(settings: Settings) -> bytes:
    """The installation's secret, in a home that is there. Raises ValueError for limits that make no sense."""
    check_limits(settings)  # they are read again when they are put in force: too late to say so plainly
    settings.home.mkdir(mode=0o700, parents=True, exist_ok=True)
    return installation_secret(settings)


def build(settings: Settings) -> Worker:
    """Every part, built and wired but not started. Raises ValueError for settings that cannot work."""
    secret = _prepared(settings)
    answering, background = Tasks(), Tasks()
    database = Database(settings.database_url)
    ledger = Ledger(
        database,
        settings.home / "journal",
        settings=settings,
        now=time.time,
        monotonic=steady,
        tasks=background,
    )
    encoder = build_encoder(settings)
    engines = build_engines(settings)
    transport = DirectTransport(proxies=of_environment())
    providers = build_providers(settings, engines, encoder, transport, background)
    prices = PriceBook(database, settings=settings, now=ledger.instant)
    catalog = build_catalog(settings, providers)
    check_limits(settings, catalog)
    telemetry = Telemetry(settings.telemetry, now=time.time, models=catalog.names())
    keyring = Keyring(database, secret, now=ledger.instant, monotonic=time.monotonic, admin_key=AdminKey(settings))
    cache_alerts = CacheAlerts(database, settings.alerts.channels, now=ledger.instant)

    async def ask(model: str, messages: list[dict[str, object]]) -> str:
        assert worker.errands is not None
        return await worker.errands.say(model, messages)

    judge = build_judge(settings, encoder, ask, lambda model: worker.catalog.kept_as(model))
    worker = Worker(
        settings=settings,
        answering=answering,
        background=background,
        database=database,
        ledger=ledger,
        courier=Courier(database, channels(settings.alerts, time.time), now=ledger.instant, random=random.random),
        cache_alerts=cache_alerts,
        anomaly_alerts=AnomalyAlerts(database, settings.alerts.channels, now=ledger.instant),
        exports=Scheduler(database, settings.exports, statement_file, listed=prices.listed, now=ledger.instant),
        rates=_rates(database, ledger, catalog, background),
        prices=prices,
        keyring=keyring,
        key_watch=KeyWatch(database, keyring),
        gate=_gate(settings, telemetry),
        watchdog=Watchdog(),
        encoder=encoder,
        cache=build_cache(settings, encoder, judge, watch_of(telemetry, cache_alerts)),
        engines=engines,
        transport=transport,
        upstreams=Upstreams(providers, settings, lambda: prices.generation),
        deployments=Deployments(monotonic=time.monotonic),
        catalog=catalog,
        telemetry=telemetry,
        distilling=Distilling(
            settings.home / DISTILLED, frozenset(settings.distillation.projects), settings.distillation.max_size
        ),
        files=Files(database, settings.kept, now=ledger.instant),
        responses=Responses(database, ledger.boot, settings.kept, now=ledger.instant),
    )
    return worker


def _gate(settings: Settings, telemetry: Telemetry) -> Gate:
    server = settings.server
    return Gate(server.max_in_flight, server.lag_target, random=random.random, turned_away=telemetry.turned_away)


def _rates(database: Database, ledger: Ledger, catalog: Catalog, tasks: Tasks) -> Rates:
    """Where other workers may share the database, limits per minute are shared in it."""
    keeper = None
    if database.dialect == "postgresql":
        keeper = Keeper(
            database, now=ledger.instant, monotonic=time.monotonic, processes=lambda: ledger.processes, tasks=tasks
        )
    return Rates(
        database,
        names=lambda model: names_of(catalog, model),
        now=ledger.instant,
        monotonic=time.monotonic,
        keeper=keeper,
    )


def pipeline_of(worker: Worker) -> Pipeline:
    """The request path over this worker's parts."""
    several = answering(worker.upstreams, worker.deployments, worker.prices, worker.ledger, worker.answering)
    pumps = Pumps(several, worker.answering, monotonic=time.monotonic)
    recorder = Recorder(
        worker.ledger,
        worker.telemetry,
        monotonic=time.monotonic,
        encoder_nano=nano(worker.settings.cache.encoder_hour_usd) / 3_600,
        answered=worker.distilling.offer,
    )
    errand_means = ErrandMeans(
        catalog=worker.catalog,
        pumps=pumps,
        ledger=worker.ledger,
        recorder=recorder,
        telemetry=worker.telemetry,
        now=worker.ledger.instant,
        monotonic=time.monotonic,
    )
    worker.errands = Errands(errand_means, worker.settings.cache)
    worker.audits = Audits(worker.errands, worker.cache, worker.answering)
    judge = OfflineJudge(worker.encoder)
    asking, flights = Asking(worker.settings.cache, installation_secret(worker.settings)), Flights()
    worker.shadows = Shadows(worker.errands, worker.catalog, judge, worker.answering, random=random.random)
    return Pipeline(
        Parts(
            catalog=worker.catalog,
            charging=Charging(worker.upstreams, worker.prices),
            asking=asking,
            cache=worker.cache,
            flights=flights,
            pumps=pumps,
            recorder=recorder,
            rates=worker.rates,
            cheaper=Cheaper(worker.ledger, worker.catalog),
            herds=Herds(worker.cache, wait=worker.settings.cache.herd_wait),
            elsewhere=Elsewhere(
                worker.cache.leases,
                asking,
                flights,
                worker.telemetry,
                monotonic=time.monotonic,
                wait=worker.settings.cache.wait_for_others,
                beyond=worker.settings.cache.wait_beyond_first,
            ),
            audits=worker.audits,
            shadows=worker.shadows,
            telemetry=worker.telemetry,
            monotonic=time.monotonic,
        )
    )


def create_app(settings: Settings, rereading: Rereading = _NEVER_AGAIN) -> App:
    """The ASGI application of one gateway worker. Nothing is opened before its lifespan starts."""
    logs.configure(settings.server.log)
    worker = build(settings)
    services = services_of(worker)
    reloader = services.reloader = reloader_of(worker, services, rereading)
    for name, engine in worker.engines.items():
        worker.telemetry.watch_engine(name, Watched(label(settings, name), engine.stats, engine.figures))
    alone = worker.deployments.left_alone
    worker.telemetry.watch(Standing(load=worker.gate.load, waiting=worker.ledger.waiting, left_alone=alone))
    plane, trouble = data_plane_of(worker, pipeline_of(worker)), StartTrouble()
    worker.office = plane.office

    @asynccontextmanager
    async def lifespan(_: Litestar) -> AsyncGenerator[None, None]:
        with trouble.noted():
            await worker.start()
        reloader.obey(signal.SIGHUP, worker.background)
        try:
            yield
        finally:
            await worker.stop()

    readiness = Readiness(worker.engines, worker.encoder.status, lambda: worker.upstreams.beyond_engines)
    desks: Desks = {
        **plane.desks,
        Listing: Listing(worker.catalog, worker.keyring, int(time.time())),
        Probes: Probes(readiness, worker.upstreams, worker.deployments, worker.telemetry),
    }
    control = ControlPlane(services, largest=settings.server.max_body)
    app = App(lifespan=[lifespan], openapi_config=None, logging_config=None)
    app.routed = DataRoutes(plane.endpoints, desks, largest=settings.server.max_body, beside=control.router)
    app.data_plane, app.sockets, app.doors, app.control = plane.direct, plane.sockets, plane.doors, control

    def drain() -> None:
        worker.drain()
        plane.drain()

    app.trouble, app.drain = trouble, drain
    return app
