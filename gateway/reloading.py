"""The configuration file read again while requests are answered: what may change does, the rest is named.

Knows: which sections can change under way (providers, models, budgets) and in which order they are put in force. Does
not know: how a file is read, signals, what any part does with its settings. Answers under way go on as they began.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping

import structlog
from msgspec import Struct

from gateway import file_limits
from gateway.catalog import Catalog
from gateway.db.session import UNREACHABLE
from gateway.errors import Conflict, GatewayError, InvalidRequest, Overloaded
from gateway.fleet import Fleet
from gateway.parts import build_catalog, offers
from gateway.prices import PriceBook
from gateway.providers import Provider
from gateway.rereading import Rereading
from gateway.settings import ProviderSettings, Settings
from gateway.tasks import Tasks
from gateway.upstreams import Upstreams

log = structlog.get_logger("nearhit.configuration")

_LIVE = ("providers", "models", "budgets")
Build = Callable[[str, ProviderSettings], Provider]


class Reloaded(Struct, kw_only=True):
    """Names of what changed: `changed` is in force, `needs_restart` is not."""

    changed: list[str]
    needs_restart: list[str]


class Means(Struct, frozen=True, kw_only=True):
    """What a reload puts new settings into. `build` makes one upstream; `told` is handed the settings in force.

    `limits` puts those of a file in force; `agree` compares it with those of others. `counted`: whether what was read
    could be used.
    """

    upstreams: Upstreams
    catalog: Catalog
    prices: PriceBook
    limits: Callable[[Settings], Awaitable[None]]
    build: Build
    told: Callable[[Settings], None]
    agree: Callable[[Settings], Awaitable[None]]
    counted: Callable[[bool], None]


class Reloader:
    """One per worker."""

    def __init__(self, means: Means, settings: Settings, rereading: Rereading) -> None:
        self._means = means
        self._started_with = settings
        self._read = rereading.read
        self._spread = rereading.spread
        self._one_at_a_time = asyncio.Lock()

    def obey(self, number: int, tasks: Tasks) -> None:
        """From now on that signal has the configuration read again; a mistake in it is logged."""
        if self._read is not None:
            loop = asyncio.get_running_loop()
            loop.add_signal_handler(number, lambda: tasks.spawn(self._obeyed(), "reload"))

    async def _obeyed(self) -> None:
        try:
            await self.reload()
        except GatewayError as error:
            log.error("the configuration was not read again", error=error.message)

    async def reload(self, *, spread: bool = False) -> Reloaded:
        """Raises InvalidRequest, and changes nothing, where the file cannot be used; Conflict where there is none."""
        if self._read is None:
            raise Conflict(
                "This process was not started from settings that can be read again.", code="no_configuration"
            )
        async with self._one_at_a_time:
            try:
                new = await asyncio.to_thread(self._read)
                changed = await self._put_in_force(new)
            except (ValueError, LookupError) as error:
                self._means.counted(False)
                message = f"The configuration cannot be used, and nothing has changed: {error}"
                raise InvalidRequest(message, code="invalid_configuration") from error
            except UNREACHABLE as error:
                self._means.counted(False)
                raise Overloaded(
                    "The database does not answer, so nothing of the configuration is in force but what was. Read it "
                    "again in a moment.",
                    code="database_unavailable",
                    headers=(("retry-after", "2"),),
                ) from error
        self._means.counted(True)
        fixed = [name for name in type(new).model_fields if name not in _LIVE]
        waiting = [name for name in fixed if getattr(new, name) != getattr(self._started_with, name)]
        log.info("configuration read again", changed=changed, needs_restart=waiting)
        if spread and self._spread is not None:
            self._spread()
        return Reloaded(changed=changed, needs_restart=waiting)

    async def _put_in_force(self, new: Settings) -> list[str]:
        """All that can fail comes first: what is wrong with one part must not leave another in force."""
        means, old = self._means, self._means.upstreams.settings
        changed = [name for name in _LIVE if getattr(new, name) != getattr(old, name)]
        in_force = old.model_copy(update={name: getattr(new, name) for name in _LIVE})
        providers = self._providers(old, new)
        file_limits.check(in_force, build_catalog(in_force, providers))
        if "budgets" in changed:
            await means.limits(new)
        means.catalog.put(new.models, offers(in_force, providers))
        means.upstreams.put(providers, in_force)
        means.prices.configure(in_force)
        means.told(in_force)
        for provider in providers.values():
            if isinstance(provider, Fleet) and provider.is_named:
                await provider.refresh()
        await means.agree(in_force)
        return changed

    def _providers(self, old: Settings, new: Settings) -> dict[str, Provider]:
        """Upstreams that are written as before stay the same objects; engines are never touched."""
        standing: Mapping[str, Provider] = self._means.upstreams.providers
        found = {name: provider for name, provider in standing.items() if name not in old.providers}
        if taken := sorted(set(new.providers) & set(found)):
            raise ValueError(f"a provider and an engine are both called {', '.join(taken)}")
        for name, chosen in new.providers.items():
            same = old.providers.get(name) == chosen and name in standing
            found[name] = standing[name] if same else self._means.build(name, chosen)
        return found
