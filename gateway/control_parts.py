"""What the control plane is given, put together from a worker's parts.

Knows: which parts each of them needs. Does not know: routes, pages, requests.
"""

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from gateway import file_limits
from gateway.agreement import agree
from gateway.asking import Asking
from gateway.firstrun import installation_secret
from gateway.gauges import Gauges
from gateway.oidc import SignOn
from gateway.parts import build_upstream
from gateway.planting import Ground, Planter
from gateway.providers import Provider
from gateway.reloading import Means, Reloader
from gateway.rereading import Rereading
from gateway.services import Services
from gateway.settings import ProviderSettings, Settings

if TYPE_CHECKING:
    from gateway.app import Worker


def reloader_of(worker: "Worker", services: Services, rereading: Rereading) -> Reloader:
    """Puts the settings that are read again in force, in every part that can change while it runs."""

    def told(settings: Settings) -> None:
        services.settings = settings

    async def limits(settings: Settings) -> None:
        await file_limits.put(worker.ledger, worker.rates, settings, worker.ledger.instant)

    def build_one(name: str, chosen: ProviderSettings) -> Provider:
        return build_upstream(name, chosen, worker.transport, worker.background)

    means = Means(
        upstreams=worker.upstreams,
        catalog=worker.catalog,
        prices=worker.prices,
        limits=limits,
        build=build_one,
        told=told,
        agree=lambda chosen: agree(worker.database, worker.ledger, chosen),
        counted=worker.telemetry.reread,
    )
    return Reloader(means, worker.settings, rereading)


def services_of(worker: "Worker") -> Services:
    """What routes and pages may use."""
    return Services(
        settings=worker.settings,
        database=worker.database,
        keyring=worker.keyring,
        ledger=worker.ledger,
        prices=worker.prices,
        rates=worker.rates,
        now=worker.ledger.instant,
        cache=worker.cache,
        engines=worker.engines,
        providers=worker.upstreams.providers,
        telemetry=worker.telemetry,
        planter=_planter(worker),
        sign_on=_sign_on(worker.settings, worker.ledger.instant),
        gauges=Gauges(worker.telemetry.exposition, monotonic=time.monotonic),
        models=worker.catalog.names,
        kept_as=worker.catalog.kept_as,
        deployments=worker.deployments,
    )


def _sign_on(settings: Settings, now: Callable[[], float]) -> SignOn | None:
    """`now`: what all hosts share, since a sign-in that one of them began may come back to another."""
    return None if settings.oidc is None else SignOn(settings.oidc, installation_secret(settings), now=now)


def _planter(worker: "Worker") -> Planter:
    return Planter(
        Ground(
            settings=worker.settings,
            catalog=worker.catalog,
            asking=Asking(worker.settings.cache, installation_secret(worker.settings)),
            cache=worker.cache,
            prices=worker.prices,
            now=worker.ledger.instant,
        )
    )
