"""What gateways on one database should have in common: the secret of their keys, and what their files say.

Where two hosts have different limits or routes in nearhit.yaml, requests are answered by this one or that, the limits
of whichever started last are in force, and nothing says so. So every process leaves a mark of each section with its
boot, and names the hosts whose marks differ.
Knows: sections, marks, boots that live. Does not know: how a file is read, what any section means.
"""

import hashlib
import hmac
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import msgspec
import structlog
from sqlalchemy import Connection, select, update

from gateway.db.models import Boot
from gateway.db.session import UNREACHABLE, Database
from gateway.firstrun import installation_secret
from gateway.ledger import Ledger
from gateway.ledger.book import clock
from gateway.secret_proof import OTHER, is_the_same
from gateway.settings import Settings

log = structlog.get_logger("nearhit.configuration")

SECTIONS = (
    "providers",
    "models",
    "budgets",
    "cache",
    "ledger",
    "retention",
    "kept",
    "alerts",
    "exports",
    "distillation",
)
"""Those whose settings hold for all who share a database. The others are each host's own, or say where it listens."""
_ALIVE_SECONDS = 90.0
_LENGTH = 16
Marks = Mapping[str, str]


async def agree(database: Database, ledger: Ledger, settings: Settings) -> None:
    """Say in the log what other hosts have otherwise. `settings`: those in force from now on."""
    secret = installation_secret(settings)
    if not await is_the_same(database, secret):
        log.error("%s", OTHER)
        return
    if database.dialect == "sqlite":
        return  # which one host has to itself
    with suppress(*UNREACHABLE):  # nothing is wrong with the settings then
        others = await database.transact(_left, ledger.boot, marks(settings, secret), ledger.instant())
        for host, sections in others.items():
            log.warning("another host on this database has another nearhit.yaml", host=host, sections=sections)


async def others(url: str, settings: Settings) -> dict[str, list[str]]:
    """Hosts that live on that database, and the sections in which they differ; it is only looked at."""
    database = Database(url)
    own = marks(settings, installation_secret(settings))
    try:
        async with database.read() as connection:
            return await connection.run_sync(lambda blocking: _others(blocking, own, "", clock(blocking, 0.0)))
    finally:
        await database.close()


def marks(settings: Settings, secret: bytes) -> dict[str, str]:
    """By section. Credentials count as there or not; nobody without `secret` learns anything of the rest."""
    told = settings.model_dump(mode="json", include=set(SECTIONS))
    return {name: _mark(secret, [name, told[name]]) for name in SECTIONS}


def _mark(secret: bytes, told: list[Any]) -> str:
    return hmac.digest(secret, msgspec.json.encode(told, order="deterministic"), hashlib.sha256).hex()[:_LENGTH]


def _left(connection: Connection, boot: str, own: Marks, now: float) -> dict[str, list[str]]:
    """Leave marks with a boot; who has others."""
    connection.execute(update(Boot).where(Boot.id == boot).values(marks=dict(own)))
    host = connection.scalar(select(Boot.host).where(Boot.id == boot)) or ""
    return _others(connection, own, host, now)


def _others(connection: Connection, own: Marks, host: str, now: float) -> dict[str, list[str]]:
    """Boots of `host` are left out: its workers read their file one after another."""
    found: dict[str, list[str]] = {}
    alive = select(Boot.host, Boot.marks).where(
        Boot.closed.is_(None), Boot.seen > now - _ALIVE_SECONDS, Boot.host != host, Boot.marks.is_not(None)
    )
    for name, left in connection.execute(alive.order_by(Boot.started)):
        theirs: Marks = left or {}
        differing = [section for section, mark in own.items() if theirs.get(section, mark) != mark]
        if differing:
            found[name] = differing
        else:
            found.pop(name, None)
    return found
