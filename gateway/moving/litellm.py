"""LiteLLM's `config.yaml`: model_list, router_settings, litellm_settings, general_settings.

Knows: what of it has a counterpart here, how its deployments and references to the environment are written. Does not
know: where the result goes. Source: LiteLLM's documentation of the proxy's configuration (1.109).
"""

import re
from copy import deepcopy
from decimal import Decimal
from typing import Any, cast

from gateway.moving import Moved, each_once, target_of, window_of
from gateway.moving.litellm_places import part, place, reference, secret, wildcard, with_credentials
from gateway.moving.litellm_told import NOT_NEEDED, TIME, TIMED, by_reason, why

_NAMED = re.compile(r"(?:os\.environ/|\$\{)([A-Za-z_][A-Za-z0-9_]*)")
_STRATEGIES = {
    "simple-shuffle": "weighted",
    "least-busy": "least_busy",
    "latency-based-routing": "fastest",
    "cost-based-routing": "cheapest",
    "usage-based-routing": "least_busy",
    "usage-based-routing-v2": "least_busy",
}
_DONE = frozenset(
    {
        *("routing_strategy", "fallbacks", "context_window_fallbacks", "content_policy_fallbacks"),
        *("default_fallbacks", "model_group_alias"),
    }
)
Part = dict[str, Any]


def moved(config: Part) -> Moved:
    """Raises ValueError for what is no such file."""
    found = Moved(taken=set(_NAMED.findall(str(config))))
    models = config.get("model_list")
    if not isinstance(models, list) or not all(isinstance(row, dict) for row in cast("list[Any]", models)):
        where = (
            f"; it includes {_listed(config['include'])}: move those, or put them into one"
            if "include" in config
            else ""
        )
        raise ValueError(
            f"there is no model_list of mappings in it: is this a configuration of the LiteLLM proxy?{where}"
        )
    config = with_credentials(config)
    models = config["model_list"]
    router, library = part(config, "router_settings"), part(config, "litellm_settings")
    groups = _groups(found, cast("list[Part]", models))
    named = str(router.get("routing_strategy") or "simple-shuffle")
    strategy = _STRATEGIES.get(named)
    if strategy is None:
        found.left.append(f"router_settings.routing_strategy {named}: the order is as written instead")
    for name, rows in groups.items():
        ordered = _in_order(rows)
        route = each_once(_shared_by_limits(ordered) if named == "simple-shuffle" else [entry for entry, _ in ordered])
        chosen: Part = {"route": route}
        if len(route) > 1 and strategy is not None:
            chosen["strategy"] = strategy
        found.config.setdefault("models", {})[name] = chosen
    settings = {**library, **router}
    _fallbacks(found, settings)
    if settings.get("default_fallbacks") and any(_turn(row) == 0 for row in cast("list[Part]", models)):
        found.left.append(
            "default_fallbacks: names asked for as `provider/model` have none; give those that need one a route"
        )
    _aliases(found, router)
    _budgets(found, library, {name: [given for _, given in rows] for name, rows in groups.items()})
    _cache(found, library)
    _general(found, part(config, "general_settings"))
    _rest(found, config, router, library)
    return found


def _groups(found: Moved, models: list[Part]) -> dict[str, list[tuple[Any, Part]]]:
    """The places of each name, with what is written beside them, in written order.

    Providers are named in another one: `openai/*` and what has no address of its own come first, so that `openai/…`
    leads to OpenAI where it is asked at all.
    """
    groups: dict[str, list[tuple[Any, Part]]] = {}
    placed: dict[int, Any] = {}
    for index in sorted(range(len(models)), key=lambda index: _turn(models[index])):
        row, name = models[index], str(models[index].get("model_name") or "")
        if _turn(row) == 0:
            wildcard(found, name, row)
        else:
            placed[index] = place(found, name, row)
    for index, row in enumerate(models):
        if placed.get(index) is not None:
            groups.setdefault(str(row.get("model_name") or ""), []).append((placed[index], part(row, "litellm_params")))
    return groups


def _turn(row: Part) -> int:
    given = part(row, "litellm_params")
    if "*" in str(row.get("model_name")) or "*" in str(given.get("model")):
        return 0
    return 2 if given.get("api_base") or given.get("base_url") else 1


def _in_order(rows: list[tuple[Any, Part]]) -> list[tuple[Any, Part]]:
    """Deployments with a higher `order` stand by until those before them fail."""
    orders = [given.get("order") for _, given in rows]
    numbers = [order if isinstance(order, int) else None for order in orders]
    written = [number for number in numbers if number is not None]
    if not written:
        return rows
    last = max(written) + 1
    ranked = sorted(
        ((last if number is None else number, row) for number, row in zip(numbers, rows, strict=True)),
        key=lambda ranked: ranked[0],
    )
    first = ranked[0][0]
    return [
        (entry if rank == first else {"to": target_of(entry), "weight": 0}, given) for rank, (entry, given) in ranked
    ]


def _shared_by_limits(rows: list[tuple[Any, Part]]) -> list[Any]:
    """LiteLLM shuffles by `rpm`, else `tpm`, where no weights are written; one without has no share then."""
    route = [entry for entry, _ in rows]
    if any(given.get("weight") is not None or isinstance(given.get("order"), int) for _, given in rows):
        return route
    field = next((name for name in ("rpm", "tpm") if isinstance(rows[0][1].get(name), int)), None)
    if field is None or len(rows) < 2:
        return route
    return [{"to": target_of(entry), "weight": _whole(given.get(field))} for entry, given in rows]


def _whole(value: Any) -> int:
    return value if isinstance(value, int) else 0


def _fallbacks(found: Moved, settings: Part) -> None:
    """Other groups behind a group: tried when everything before them has failed, or would not answer.

    Those of everybody (`*`, default_fallbacks) are for groups without some of their own.
    """
    models: dict[str, Part] = found.config.get("models", {})
    alias = {name: _aliased(target) for name, target in part(settings, "model_group_alias").items()}
    wanted: list[tuple[str, list[str], str | None]] = []
    for field, on in (
        ("fallbacks", None),
        ("context_window_fallbacks", "context"),
        ("content_policy_fallbacks", "content_filter"),
    ):
        for row in _rows(field, settings.get(field) or []):
            wanted += [(alias.get(name, name), others, on) for name, others in row.items()]
    everyone = cast("list[str]", settings.get("default_fallbacks") or [])
    everyone = [*(other for name, others, on in wanted if name == "*" and on is None for other in others), *everyone]
    wanted = [row for row in wanted if row[0] != "*" or row[2] is not None]
    own = {name for name, _, on in wanted if on is None}
    wanted += [(name, everyone, None) for name in models if everyone and name not in own]
    before = {name: list(chosen["route"]) for name, chosen in models.items()}
    for name, others, on in wanted:
        chosen = models.get(name)
        if chosen is None:
            found.left.append(f"fallbacks of {name!r}: there is no such model")
            continue
        if on is not None and on not in chosen.setdefault("fallback_on", []):
            chosen["fallback_on"].append(on)
        for other in others:
            group = alias.get(str(other), str(other))
            for entry in before.get(group, []):
                _behind(chosen, entry)
            if group not in before:
                found.left.append(f"fallback of {name!r} to {other!r}: there is no such model")


def _rows(field: str, given: Any) -> list[dict[str, list[str]]]:
    rows: list[Any] = cast("list[Any]", given) if isinstance(given, list) else [given]
    if not all(isinstance(row, dict) for row in rows):
        raise ValueError(f"{field} is no list of mappings")
    return rows


def _behind(chosen: Part, entry: Any) -> None:
    """At the end of a route. Where it is not the order that decides, a weight of 0 is taken last."""
    to = target_of(entry)
    if any(to == target_of(there) for there in chosen["route"]):
        return
    chosen["route"].append({"to": to, "weight": 0} if chosen.get("strategy") else to)


def _aliased(target: Any) -> str:
    return str(cast("Part", target).get("model") if isinstance(target, dict) else target)


def _aliases(found: Moved, router: Part) -> None:
    models: dict[str, Part] = found.config.get("models", {})
    for alias, target in part(router, "model_group_alias").items():
        name = _aliased(target)
        if name in models:
            models[str(alias)] = deepcopy(models[name])
        else:
            found.left.append(f"router_settings.model_group_alias {alias!r}: there is no model {name!r}")


def _budgets(found: Moved, library: Part, groups: dict[str, list[Part]]) -> None:
    """LiteLLM's limits are per deployment: together they are the group's, where each of them has one."""
    budgets: list[Part] = []
    if (most := library.get("max_budget")) is not None:
        budgets.append(_budget(found, "org", most, library.get("budget_duration")))
    for name, rows in groups.items():
        scope = f"model:{name}"
        for field in ("rpm", "tpm", "max_budget"):
            given = [row[field] for row in rows if row.get(field) is not None]
            if not given:
                continue
            numbers = [value for value in given if isinstance(value, int | float)]
            durations = {str(row.get("budget_duration") or "") for row in rows}
            if len(numbers) < len(rows) or (field == "max_budget" and len(durations) > 1):
                found.left.append(
                    f"model_list {name!r}: {field} is no number in each of its deployments; a limit here is the model's"
                )
            elif field == "max_budget":
                most = sum(Decimal(str(number)) for number in numbers)
                budgets.append(_budget(found, scope, most, durations.pop() or None))
            else:
                budgets.append({"scope": scope, field: int(sum(numbers))})
    if budgets:
        found.config["budgets"] = _one_each(budgets)


def _one_each(budgets: list[Part]) -> list[Part]:
    """One budget for each scope: money and rates of the same belong together."""
    merged: dict[str, Part] = {}
    for one in budgets:
        merged[one["scope"]] = {**merged.get(one["scope"], {}), **one}
    return list(merged.values())


def _budget(found: Moved, scope: str, most: Any, duration: Any) -> Part:
    """Without a duration it is never renewed."""
    window = "total" if duration is None else window_of(str(duration))
    if window is None:
        found.left.append(f"budget_duration {duration} of {scope}: a calendar month instead")
    amount = f"{Decimal(str(most)):f}" if isinstance(most, int | float | Decimal) else str(reference(most))
    return {"scope": scope, "limit_usd": amount, "window": window or "month"}


def _cache(found: Moved, library: Part) -> None:
    given = part(library, "cache_params")
    if not library.get("cache"):
        found.config["cache"] = {"mode": "off"}
        return
    kind = str(given.get("type") or "redis")  # which is LiteLLM's default
    cache: Part = {"mode": "semantic" if "semantic" in kind else "exact"}
    if isinstance(given.get("ttl"), int | float):
        cache["ttl"] = given["ttl"]
    if given.get("mode") == "default_off":
        cache["mode"] = "off"
        found.left.append("cache_params.mode default_off: requests cannot switch a cache on here, so it is off for all")
    if kind.startswith("redis"):
        _redis(found, given)
    if "similarity_threshold" in given:
        found.left.append(
            "cache_params.similarity_threshold: reuse is bounded by error rates (cache.max_error_rate), not by a cosine"
        )
    if lost := sorted(set(given) - _CACHE):
        found.left.append(f"cache_params: {', '.join(lost)}")
    found.config["cache"] = cache


_CACHE = frozenset(
    {"type", "ttl", "mode", "url", "host", "port", "username", "password", "ssl", "db", "similarity_threshold"}
)


def _redis(found: Moved, given: Part) -> None:
    url = reference(given.get("url"))
    if isinstance(url, str) and "@" in url and "${" not in url:
        url = secret(found, {"url": url, "model": "cache_params"}, "url", "REDIS_URL")
    if url:
        found.config["redis"] = url
        return
    if not given.get("host"):
        found.left.append(
            "cache_params: no address of Redis is written, LiteLLM finds it in REDIS_HOST, REDIS_PORT, REDIS_PASSWORD; "
            "write `redis: redis://:${REDIS_PASSWORD}@host:6379/0`, without it the cache is kept on this machine"
        )
        return
    who = ""
    if password := secret(found, {**given, "model": "cache_params"}, "password", "REDIS_PASSWORD"):
        who = f"{reference(given.get('username') or '')}:{password}@"
        found.left.append(
            f"cache_params.password: it is expected as {password}, a part of an address: %40, %2F, %3A for @, / and :"
        )
    scheme = "rediss" if given.get("ssl") else "redis"
    port, database = reference(given.get("port") or 6379), reference(given.get("db") or 0)
    found.config["redis"] = f"{scheme}://{who}{reference(given['host'])}:{port}/{database}"


def _general(found: Moved, general: Part) -> None:
    if "database_url" in general:
        found.left.append(
            "general_settings.database_url: give nearhit a database of its own (`database: postgresql://…`); "
            "without one it keeps its books in a file"
        )
    if "master_key" in general:
        found.left.append("general_settings.master_key: set NEARHIT_ADMIN_KEY; make keys with `nearhit keys create`")
    for lost in by_reason("general_settings", set(general) - {"database_url", "master_key"}):
        found.left.append(f"general_settings: {lost}")


def _rest(found: Moved, config: Part, router: Part, library: Part) -> None:
    for name in sorted(set(router) - _DONE):
        found.left.append(f"router_settings.{name}: {why('router_settings', name)}")
    known = {"cache", "cache_params", "max_budget", "budget_duration", *_DONE, *(set(NOT_NEEDED) - TIMED)}
    for name in sorted(set(library) - known):
        reason = TIME if name in TIMED else why("litellm_settings", name)
        found.left.append(f"litellm_settings.{name}: {reason}")
    parts = {"model_list", "router_settings", "litellm_settings", "general_settings", "credential_list"}
    for name in sorted(set(config) - parts):
        if name == "environment_variables":
            found.left.append(f"{name}: set them in the environment of nearhit: {_listed(config[name])}")
        elif name == "include":
            found.left.append(f"include: put the models of {_listed(config[name])} into this file and move it again")
        else:
            found.left.append(f"{name}: {why('', name)}")


def _listed(given: Any) -> str:
    """Names alone: what stands beside them may be secret."""
    return ", ".join(str(one) for one in cast("list[Any]", given)) if isinstance(given, list | dict) else str(given)
