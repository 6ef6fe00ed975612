"""Portkey's gateway configuration: a strategy over targets, with cache, retries and a time limit.

Knows: what of it has a counterpart here; targets may be strategies themselves. Does not know: where the result goes.
Source: Portkey's documentation of the config object.
"""

from typing import Any, cast

from gateway.moving import KINDS, LOCAL, Moved, key_of

_NAME = "default"
_MODES = {"loadbalance": "weighted", "fallback": "ordered", "single": "ordered"}
Part = dict[str, Any]


def moved(config: Part) -> Moved:
    """A model called `default` with all targets. Raises ValueError for what is no such file."""
    if not isinstance(config.get("targets"), list) and not config.get("provider"):
        raise ValueError("there are neither targets nor a provider in it: is this a Portkey configuration?")
    found = Moved()
    mode = str(cast("Part", config.get("strategy") or {}).get("mode") or "single")
    if mode not in _MODES:
        found.left.append(f"strategy.mode {mode}: the order is as written instead")
    route = _targets(found, config)
    if not route:
        raise ValueError("no target names a model (override_params.model) of a provider that is known here")
    chosen: Part = {"route": route}
    if len(route) > 1:
        chosen["strategy"] = _MODES.get(mode, "ordered")
    found.config["models"] = {_NAME: chosen}
    cache = cast("Part", config.get("cache") or {})
    found.config["cache"] = {"mode": {"simple": "exact", "semantic": "semantic"}.get(str(cache.get("mode")), "off")}
    if isinstance(cache.get("max_age"), int | float):
        found.config["cache"]["ttl"] = cache["max_age"]
    for name, why in _LEFT.items():
        if name in config:
            found.left.append(f"{name}: {why}")
    return found


_LEFT = {
    "retry": "retries are bounded by a budget of a fifth of all requests",
    "request_timeout": "set providers.<name>.first_chunk_timeout, or send x-nearhit-timeout",
    "before_request_hooks": "no counterpart",
    "after_request_hooks": "no counterpart",
    "input_guardrails": "no counterpart",
    "output_guardrails": "no counterpart",
}


def _targets(found: Moved, config: Part) -> list[Any]:
    route: list[Any] = []
    for target in cast("list[Part]", config.get("targets") or [config]):
        if "targets" in target:
            found.left.append("a strategy inside a strategy: its targets stand in one row")
            route += [entry for entry in _targets(found, target) if entry not in route]
            continue
        entry = _entry(found, target)
        if entry is not None and entry not in route:
            route.append(entry)
    return route


def _entry(found: Moved, target: Part) -> Any:
    named = str(target.get("provider") or "").removeprefix("@")
    kind = KINDS.get(named)
    if kind is None:
        what = f"provider {named!r}" if named else f"virtual key {target.get('virtual_key')!r}"
        found.left.append(f"target with {what}: write its provider and key under `providers`")
        return None
    model = cast("Part", target.get("override_params") or {}).get("model")
    if not isinstance(model, str):
        found.left.append(f"target {named!r}: it names no model; clients may ask for `{kind}/<model>`")
        return None
    base = target.get("custom_host")
    if "virtual_key" in target:
        found.left.append(f"virtual key {target['virtual_key']!r}: its secret is expected as {key_of(kind)}")
    if "api_key" in target:
        found.left.append(f"the api_key of target {named!r}: it is expected as {key_of(kind)}")
    key = "none" if kind in LOCAL and "api_key" not in target else key_of(kind)
    provider = found.provider(kind, base_url=base, api_key=key, region=target.get("aws_region"))
    to, weight = f"{provider}/{model}", target.get("weight")
    return {"to": to, "weight": weight} if isinstance(weight, int | float) else to
