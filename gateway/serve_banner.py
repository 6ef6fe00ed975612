"""What `nearhit serve` says: what is still loading, and once ready everything a newcomer needs.

Knows the settings and two secrets that are shown once. Prints nothing itself, reads nothing.
"""

from collections.abc import Mapping

from msgspec import Struct

from gateway.settings import WELL_KNOWN, Settings
from gateway.settings_shown import address


class Ready(Struct, frozen=True, kw_only=True):
    """What is told when everything answers. The keys are None when they were made by an earlier start."""

    url: str
    seconds: float
    api_key: str | None
    admin_key: str | None


def base_url(host: str, port: int) -> str:
    """Where a client on this machine reaches us."""
    shown = {"0.0.0.0": "127.0.0.1", "": "127.0.0.1", "::": "[::1]"}.get(host, host)  # noqa: S104 - not a bind
    if ":" in shown and not shown.startswith("["):
        shown = f"[{shown}]"
    return f"http://{shown}:{port}"


def loading(waiting: Mapping[str, str]) -> str:
    """One line per change: `loading: encoder (reading weights), local (starting)`."""
    parts = [f"{name} ({why})" for name, why in sorted(waiting.items())]
    return f"nearhit: loading: {', '.join(parts)}" if parts else "nearhit: starting"


def banner(settings: Settings, ready: Ready) -> str:
    """The page that is printed once, ending in a line break."""
    rows = [*_keys(settings, ready), *_places(ready.url), *_parts(settings)]
    width = max(len(name) for name, _ in rows) + 2
    lines = [f"  {name:<{width}}{text}" for name, text in rows]
    head = f"nearhit is ready at {ready.url}/v1  (after {ready.seconds:.1f} s)"
    return "\n".join(["", head, "", *lines, "", *_example(settings, ready), ""]) + "\n"


def _keys(settings: Settings, ready: Ready) -> list[tuple[str, str]]:
    once = "(shown this once)"
    api = f"{ready.api_key}  {once}" if ready.api_key else "made earlier; another: nearhit keys create NAME"
    if ready.admin_key:
        admin = f"{ready.admin_key}  {once}"
    elif settings.admin_key is not None:
        admin = "as configured (NEARHIT_ADMIN_KEY or admin_key)"
    else:
        admin = "made earlier; NEARHIT_ADMIN_KEY sets another"
    return [("API key", api), ("admin key", admin)]


def _places(url: str) -> list[tuple[str, str]]:
    return [("dashboard", f"{url}/ui"), ("API docs", f"{url}/docs"), ("metrics", f"{url}/metrics")]


def _parts(settings: Settings) -> list[tuple[str, str]]:
    engines = ", ".join(f"{name} ({chosen.model})" for name, chosen in settings.engines.items())
    upstreams = ", ".join(f"{name} ({chosen.kind})" for name, chosen in settings.providers.items())
    known = ", ".join(sorted(variable for variable, _ in WELL_KNOWN.values()))
    return [
        ("cache", _cache(settings)),
        ("engines", engines or "off; on: engines: {local: {model: demo}} in nearhit.yaml"),
        ("upstreams", upstreams or f"off; on: set one of {known}, or providers: in nearhit.yaml"),
        ("store", _store(settings)),
        ("Redis", "on" if settings.redis else "off; on: redis: redis://HOST:6379/0 (shares the cache between workers)"),
        ("traces", address(settings.telemetry.otlp or "off; on: telemetry: {otlp: http://HOST:4318}")),
    ]


def _cache(settings: Settings) -> str:
    cache = settings.cache
    if cache.mode == "off":
        return "off; on: cache: {mode: semantic}"
    exact = "exact only; answers by meaning: cache: {mode: semantic}"
    told = {
        "exact": exact,
        "shadow": "exact, and semantic in the shadow (decides, does not serve); on: cache: {mode: semantic}",
        "semantic": f"exact and semantic, at most {cache.max_error_rate:.2%} wrong answers",
    }
    return told[cache.mode]


def _store(settings: Settings) -> str:
    if settings.database is not None and settings.database.startswith("postgresql"):
        return f"PostgreSQL, {settings.server.workers} worker(s)"
    return f"SQLite in {settings.home} (one worker); more: database: postgresql://USER@HOST/NAME"


def _example(settings: Settings, ready: Ready) -> list[str]:
    model = next(iter(settings.models), "chat" if settings.engines else None)
    model = model or f"{next(iter(settings.providers), 'PROVIDER')}/MODEL"
    asked = '[{"role": "user", "content": "What is time to first token?"}]'
    return [
        f"  curl {ready.url}/v1/chat/completions -H 'content-type: application/json' \\",
        f"    -H 'authorization: Bearer {ready.api_key or 'YOUR-KEY'}' \\",
        f'    -d \'{{"model": "{model}", "messages": {asked}}}\'',
    ]
