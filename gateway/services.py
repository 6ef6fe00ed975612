"""What the control plane's routes and pages are given: one object, filled in one place (`gateway.app.create_app`).

Knows: names and types of the parts. Does not know: how any of them is built, started or closed.
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from gateway.settings import Settings

if TYPE_CHECKING:  # heavy or optional parts; routes only ever call them
    from cache.semantic import SemanticCache
    from engine.api import Engine
    from gateway.auth import Keyring
    from gateway.db.session import Database
    from gateway.deployments import Deployments
    from gateway.gauges import Gauges
    from gateway.ledger import Ledger
    from gateway.oidc import SignOn
    from gateway.planting import Planter
    from gateway.prices import PriceBook
    from gateway.providers import Provider
    from gateway.rates import Rates
    from gateway.reloading import Reloader
    from gateway.telemetry import Telemetry


class Services:
    """`cache` is None where nothing is cached; `telemetry`, `gauges`, `planter`, `rates`, `reloader`,
    `deployments` in short-lived processes; `sign_on` where only keys sign in.

    `now`: wall-clock seconds. `models` answers the names clients may ask for, `kept_as` under which an answer to one of
    them is kept. `verdicts`: held while one of people's is taken in, since the next depends on it.
    A plain class: Litestar would take a dataclass apart to check it.
    """

    def __init__(  # noqa: PLR0913 - one name per part is the point
        self,
        *,
        settings: Settings,
        database: "Database",
        keyring: "Keyring",
        ledger: "Ledger",
        prices: "PriceBook",
        now: Callable[[], float],
        cache: "SemanticCache | None" = None,
        engines: "Mapping[str, Engine] | None" = None,
        providers: "Mapping[str, Provider] | None" = None,
        telemetry: "Telemetry | None" = None,
        planter: "Planter | None" = None,
        rates: "Rates | None" = None,
        sign_on: "SignOn | None" = None,
        gauges: "Gauges | None" = None,
        models: Callable[[], list[str]] = list,
        kept_as: Callable[[str], str] = str,
        reloader: "Reloader | None" = None,
        deployments: "Deployments | None" = None,
    ) -> None:
        self.settings = settings
        self.database = database
        self.keyring = keyring
        self.ledger = ledger
        self.prices = prices
        self.now = now
        self.cache = cache
        self.engines = engines or {}
        self.providers: Mapping[str, Provider] = {} if providers is None else providers
        self.telemetry = telemetry
        self.planter = planter
        self.rates = rates
        self.sign_on = sign_on
        self.gauges = gauges
        self.models = models
        self.kept_as = kept_as
        self.reloader = reloader
        self.deployments = deployments
        self.verdicts = asyncio.Lock()
