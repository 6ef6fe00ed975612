"""The control plane without a running gateway: database, books, prices and cache, opened by this process alone.

Knows: the home's lock and the parts that control routes call. Does not know: engines, upstreams, the data plane.
"""

import os
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial

from litestar.types import ASGIApp

from cache.semantic import SemanticCache
from cache.types import CacheConfig
from gateway.auth import Keyring
from gateway.catalog import Catalog
from gateway.cli.wrong import Wrong
from gateway.control_plane import ControlPlane
from gateway.db.migrate import StaleSchema
from gateway.db.session import UNREACHABLE, Database, words_of
from gateway.firstrun import AdminKey, installation_secret
from gateway.ledger import Ledger
from gateway.parts import aliases, build_store, offers
from gateway.prices import PriceBook
from gateway.routes.access import admin_socket
from gateway.serve_home import CannotServe, lock, prepare
from gateway.services import Services
from gateway.settings import Settings
from gateway.tasks import Tasks
from policies.reuse import load as load_policy


@asynccontextmanager
async def offline_app(settings: Settings) -> AsyncGenerator[ASGIApp, None]:
    """The control plane as the administrator sees it. Raises Wrong when the home or the database cannot be had."""
    async with AsyncExitStack() as stack:
        try:
            prepare(settings)
            if settings.database is None:  # one process at a time writes SQLite
                stack.callback(os.close, lock(settings.home))
        except (CannotServe, OSError) as error:
            raise Wrong(str(error)) from error
        services = await _services(settings, stack)
        yield admin_socket(ControlPlane(services, largest=None, pages=False))


async def _services(settings: Settings, stack: AsyncExitStack) -> Services:
    database = Database(settings.database_url)
    try:
        await database.start()
        secret = installation_secret(settings)
    except (StaleSchema, ValueError) as error:
        await database.close()
        raise Wrong(str(error)) from error
    except UNREACHABLE as error:
        raise Wrong(f"the database cannot be used: {words_of(error)}") from error
    stack.push_async_callback(database.close)
    tasks = Tasks()
    stack.push_async_callback(partial(tasks.finish, 1.0))
    ledger = Ledger(
        database, settings.home / "journal", settings=settings, now=time.time, monotonic=time.monotonic, tasks=tasks
    )
    await ledger.start(background=False)
    stack.push_async_callback(ledger.close)
    prices = PriceBook(database, settings=settings, now=ledger.instant)
    await prices.load()
    admin = AdminKey(settings)
    return Services(
        settings=settings,
        database=database,
        keyring=Keyring(database, secret, now=ledger.instant, monotonic=time.monotonic, admin_key=admin),
        ledger=ledger,
        prices=prices,
        now=ledger.instant,
        cache=await _cache(settings, stack),
        models=lambda: sorted(settings.models),
        kept_as=_kept_as(settings),
    )


def _kept_as(settings: Settings) -> Callable[[str], str]:
    """As a gateway of these settings would say; where they lead nowhere, names stand for themselves."""
    try:
        places = offers(settings, (*settings.providers, "local", *settings.engines))
        return Catalog(settings.models, places, aliases(settings)).kept_as
    except ValueError:
        return str


async def _cache(settings: Settings, stack: AsyncExitStack) -> SemanticCache:
    """The kept answers without an encoder: they can be listed, counted and taken out."""
    found = SemanticCache(
        build_store(settings),
        None,
        load_policy(settings.cache.policy).Policy(),
        config=CacheConfig(mode="exact"),
        now=time.time,
        monotonic=time.monotonic,
    )
    await found.start()
    stack.push_async_callback(found.close)
    return found
