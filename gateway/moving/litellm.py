"""LiteLLM's `config.yaml`: model_list, router_settings, litellm_settings, general_settings.

Knows: what of it has a counterpart here, how its deployments and references to the environment are written. Does not
know: where the result goes. Source: LiteLLM's documentation of the proxy's configuration (1.109).
"""

import re
from copy import deepcopy
from decimal import Decimal
from typing import Any, cast

from gateway.moving import KINDS, LOCAL, Moved, each_once, key_of, target_of, usual_name, window_of

_NAMED = re.compile(r"os\.environ/([A-Za-z_][A-Za-z0-9_]*)")
_NO_SECRET = frozenset({"", "none", "empty", "dummy"})
_REFERENCE = re.compile(r"^os\.environ/([A-Za-z_][A-Za-z0-9_]*)$")
_STRATEGIES = {
    "simple-shuffle": "weighted",
    "least-busy": "least_busy",
    "latency-based-routing": "fastest",
    "cost-based-routing": "cheapest",
    "usage-based-routing": "least_busy",
    "usage-based-routing-v2": "least_busy",
}
_TIME = (
    "set providers.<name>.first_chunk_timeout (streams) and answer_timeout (whole answers), or send x-nearhit-timeout"
)
_NOT_NEEDED = {  # router_settings that are always on here, or settled otherwise
    "num_retries": "retries are bounded by a budget of a fifth of all requests",
    "allowed_fails": "circuits open after five failures in a row",
    "cooldown_time": "circuits are tried again after 1 s, then 2, 4, … 30 s",
    "retry_after": "an upstream's Retry-After is always kept",
    "enable_pre_call_checks": "context windows are always checked",
    "redis_host": "see `redis` at the top level",
    "redis_port": "see `redis` at the top level",
    "redis_password": "see `redis` at the top level",
    "redis_url": "see `redis` at the top level",
    "timeout": _TIME,
    "stream_timeout": _TIME,
    "request_timeout": _TIME,
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
        raise ValueError("there is no model_list of mappings in it: is this a configuration of the LiteLLM proxy?")
    router, library = _part(config, "router_settings"), _part(config, "litellm_settings")
    groups = _groups(found, cast("list[Part]", models))
    named = str(router.get("routing_strategy") or "simple-shuffle")
    strategy = _STRATEGIES.get(named)
    if strategy is None:
        found.left.append(f"router_settings.routing_strategy {named}: the order is as written instead")
    for name, rows in groups.items():
        route = each_once(_shared_by_limits(rows) if named == "simple-shuffle" else [entry for entry, _ in rows])
        chosen: Part = {"route": route}
        if len(route) > 1 and strategy is not None:
            chosen["strategy"] = strategy
        found.config.setdefault("models", {})[name] = chosen
    _fallbacks(found, {**library, **router})
    _aliases(found, router)
    _budgets(found, library, {name: [given for _, given in rows] for name, rows in groups.items()})
    _cache(found, library)
    _general(found, _part(config, "general_settings"))
    _rest(found, config, router, library)
    return found


def reference(value: Any) -> Any:
    """`os.environ/NAME` as `${NAME}`; everything else as it is."""
    read = _REFERENCE.match(value) if isinstance(value, str) else None
    return "${" + read[1] + "}" if read else value


def _secret(found: Moved, given: Part, field: str, usual: str) -> Any:
    """A reference, also for what stands there in plain text."""
    value = given.get(field)
    if not isinstance(value, str) or value.lower() in _NO_SECRET or _REFERENCE.match(value):
        return reference(value)
    name = found.secret(value, usual)
    found.say(f"{field} of {given.get('model')!r}: it stands there in plain text and is expected as ${{{name}}}")
    return "${" + name + "}"


def _groups(found: Moved, models: list[Part]) -> dict[str, list[tuple[Any, Part]]]:
    """The places of each name, with what is written beside them."""
    groups: dict[str, list[tuple[Any, Part]]] = {}
    for row in models:
        name, given, info = str(row.get("model_name") or ""), _part(row, "litellm_params"), _part(row, "model_info")
        if "*" in name or "*" in str(given.get("model")):
            found.left.append(f"model_list {name!r}: names with * are not needed, `provider/model` always works")
            continue
        prices = {field: info[field] for field in _COSTS if field in info}
        entry = _entry(found, name, {**prices, **given}, str(info.get("base_model") or ""))
        if lost := sorted(set(info) - _INFO - set(prices)):
            found.left.append(f"model_list {name!r}: model_info {', '.join(lost)}")
        if entry is not None:
            groups.setdefault(name, []).append((entry, given))
    return groups


def _shared_by_limits(rows: list[tuple[Any, Part]]) -> list[Any]:
    """LiteLLM shuffles by `rpm`, else `tpm`, where no weights are written; one without has no share then."""
    route = [entry for entry, _ in rows]
    if any(given.get("weight") is not None for _, given in rows):
        return route
    field = next((name for name in ("rpm", "tpm") if isinstance(rows[0][1].get(name), int)), None)
    if field is None or len(rows) < 2:
        return route
    return [{"to": target_of(entry), "weight": _whole(given.get(field))} for entry, given in rows]


def _whole(value: Any) -> int:
    return value if isinstance(value, int) else 0


_COSTS = ("input_cost_per_token", "output_cost_per_token")
_INFO = frozenset(  # of model_info: what says nothing about requests, or is heeded
    {"id", "base_model", "mode", "db_model", "created_at", "updated_at", "created_by", "updated_by", "description"}
)
# Names without a provider that are OpenAI's.
_OPENAI = re.compile(
    r"gpt|o\d|chatgpt|text-embedding|text-moderation|omni|whisper|tts|dall-e|ft:|davinci|babbage|codex|sora"
)


def _entry(found: Moved, name: str, given: Part, base: str) -> Any:
    """A place of a route; None where its provider has no counterpart. `base`: the model behind a deployment."""
    if not (told := str(given.get("model") or "")):
        found.left.append(f"model_list {name!r}: its litellm_params name no model")
        return None
    prefix, slash, model = told.partition("/")
    if not slash:
        prefix, model = ("anthropic" if told.startswith("claude") else "openai"), told
        if prefix == "openai" and not (
            _OPENAI.match(told) or {"api_base", "base_url", "custom_llm_provider"} & set(given)
        ):
            found.left.append(f"model_list {name!r}: {told!r} names no provider; it is taken for OpenAI's")
    kind = KINDS.get(str(given.get("custom_llm_provider") or prefix))
    if kind is None:
        found.left.append(f"model_list {name!r}: the provider of {told!r} is not known here")
        return None
    model, region = _without_way(kind, model)
    provider = _provider(found, kind, {"aws_region_name": region, **given} if region else given)
    if kind == "azure" and base and found.deployed(provider, base.rpartition("/")[2], model):
        model = base.rpartition("/")[2]  # which has a list price, as no deployment's name has
    target = f"{provider}/{model}"
    unknown = sorted(set(given) - _PARAMS)
    if set(_COSTS) <= set(unknown):
        unknown = [field for field in unknown if not field.endswith("put_cost_per_token")]
        read, made = (_millions(given[f"{way}put_cost_per_token"]) for way in ("in", "out"))
        found.left.append(f"model_list {name!r}: its price; set it with: nearhit prices set {target} {read} {made}")
    if not _TIMES.isdisjoint(given):
        found.left.append(f"model_list {name!r}: its timeouts; {_TIME.replace('<name>', provider)}")
    if unknown:
        found.left.append(f"model_list {name!r}: litellm_params {', '.join(unknown)}")
    weight = given.get("weight")
    return {"to": target, "weight": weight} if isinstance(weight, int | float) else target


def _millions(cost: Any) -> str:
    """USD for a million tokens of what one costs."""
    return f"{(Decimal(str(cost)) * 1_000_000).normalize():f}" if isinstance(cost, int | float) else "USD"


def _without_way(kind: str, model: str) -> tuple[str, str]:
    """The model itself, and the region that stood before it: LiteLLM writes the API it asks, and where, into a name."""
    region = ""
    while True:
        first, slash, rest = model.partition("/")
        if slash and kind == "bedrock" and _REGION.fullmatch(first):
            region = first
        elif not slash or first not in _WAYS.get(kind, ()):
            return model, region
        model = rest


_REGION = re.compile(r"[a-z]{2}(?:-[a-z]+)+-\d")
_WAYS = {
    "bedrock": ("converse", "converse_like", "invoke"),
    "openai": ("responses", "chat"),
    "azure": ("responses", "chat"),
}
_TIMES = frozenset({"timeout", "stream_timeout"})
_TIMED = _TIMES | {"request_timeout"}
_PARAMS = frozenset(
    {
        *("model", "api_key", "api_base", "base_url", "api_version", "organization", "custom_llm_provider", "weight"),
        *("rpm", "tpm", "max_budget", "budget_duration", "timeout", "stream_timeout", "max_retries", "num_retries"),
        *(
            "aws_region_name",
            "aws_access_key_id",
            "aws_secret_access_key",
            "aws_session_token",
            "max_parallel_requests",
        ),
    }
)


def _provider(found: Moved, kind: str, given: Part) -> str:
    base = reference(given.get("api_base") or given.get("base_url"))
    key = _secret(found, given, "api_key", usual_name(kind))
    if kind == "ollama" and isinstance(base, str) and not base.rstrip("/").endswith("/v1"):
        base = base.rstrip("/") + "/v1"
    if kind == "bedrock":
        names = ("aws_access_key_id", "aws_secret_access_key", "aws_session_token")
        parts = [str(_secret(found, given, name, name.upper())) for name in names if given.get(name)]
        key = ":".join(parts) or key
    if key is None:
        key = "none" if kind in LOCAL or base is not None else key_of(kind)
    return found.provider(
        kind,
        base_url=base,
        api_key=key,
        api_version=str(reference(given["api_version"])) if kind == "azure" and given.get("api_version") else None,
        organization=reference(given.get("organization")) if kind == "openai" else None,
        region=reference(given.get("aws_region_name")) if kind == "bedrock" else None,
        max_in_flight=given.get("max_parallel_requests"),
    )


def _fallbacks(found: Moved, settings: Part) -> None:
    """Other groups behind a group: tried when everything before them has failed, or would not answer.

    Those of everybody (`*`, default_fallbacks) are for groups without some of their own.
    """
    models: dict[str, Part] = found.config.get("models", {})
    alias = {name: _aliased(target) for name, target in _part(settings, "model_group_alias").items()}
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
    for alias, target in _part(router, "model_group_alias").items():
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
                budgets.append(_budget(found, scope, sum(numbers), durations.pop() or None))
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
    return {"scope": scope, "limit_usd": str(reference(most)), "window": window or "month"}


def _cache(found: Moved, library: Part) -> None:
    given = _part(library, "cache_params")
    if not library.get("cache"):
        found.config["cache"] = {"mode": "off"}
        return
    kind = str(given.get("type") or "local")
    cache: Part = {"mode": "semantic" if "semantic" in kind else "exact"}
    if isinstance(given.get("ttl"), int | float):
        cache["ttl"] = given["ttl"]
    if given.get("mode") == "default_off":
        cache["mode"] = "off"
        found.left.append("cache_params.mode default_off: requests cannot switch a cache on here, so it is off for all")
    if kind.startswith("redis") and given.get("url"):
        found.config["redis"] = reference(given["url"])
    elif kind.startswith("redis") and given.get("host"):
        scheme = "rediss" if given.get("ssl") else "redis"
        found.config["redis"] = f"{scheme}://{reference(given['host'])}:{reference(given.get('port') or 6379)}/0"
        if given.get("password"):
            found.left.append("cache_params.password: put it into `redis: redis://:PASSWORD@host:port/0`")
    if "similarity_threshold" in given:
        found.left.append(
            "cache_params.similarity_threshold: reuse is bounded by error rates (cache.max_error_rate), not by a cosine"
        )
    if lost := sorted(set(given) - _CACHE):
        found.left.append(f"cache_params: {', '.join(lost)}")
    found.config["cache"] = cache


_CACHE = frozenset({"type", "ttl", "mode", "url", "host", "port", "password", "ssl", "similarity_threshold"})


def _general(found: Moved, general: Part) -> None:
    if "database_url" in general:
        found.left.append(
            "general_settings.database_url: give nearhit a database of its own (`database: postgresql://…`); "
            "without one it keeps its books in a file"
        )
    if "master_key" in general:
        found.left.append("general_settings.master_key: set NEARHIT_ADMIN_KEY; make keys with `nearhit keys create`")
    rest = sorted(set(general) - {"database_url", "master_key"})
    if rest:
        found.left.append(f"general_settings: {', '.join(rest)}")


def _rest(found: Moved, config: Part, router: Part, library: Part) -> None:
    for name in sorted(set(router) - _DONE):
        found.left.append(f"router_settings.{name}: {_NOT_NEEDED.get(name, 'no counterpart')}")
    known = {"cache", "cache_params", "max_budget", "budget_duration", *_DONE, *(set(_NOT_NEEDED) - _TIMED)}
    for name in sorted(set(library) - known):
        why = "metrics and traces are built in (telemetry.otlp)" if "callback" in name else "no counterpart"
        why = _TIME if name in _TIMED else why
        found.left.append(f"litellm_settings.{name}: {why}")
    parts = {"model_list", "router_settings", "litellm_settings", "general_settings"}
    for name in sorted(set(config) - parts):
        found.left.append(f"{name}: no counterpart")


def _part(given: Part, name: str) -> Part:
    found = given.get(name)
    return cast("Part", found) if isinstance(found, dict) else {}
